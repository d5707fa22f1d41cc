"""What the kernels reach on a device, for the cost model."""

from __future__ import annotations

import functools
from dataclasses import replace

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.cost_model import Rates, TileRate
from sddmm.backends.cuda.measure_device import Speed, speed

# Measured on an H200 of 132 multiprocessors (docs/results/h200).
_H200 = Rates(
    l2_bytes=9.1e12,
    memory_bytes=3.9e12,
    shared_bytes=24e12,
    launch_us=4.0,
    tiles={
        "tile_wgmma_128x256x64": TileRate(656e12, 9.7e-3),
        "tile_wgmma_128x224x64": TileRate(646e12, 9.5e-3),
        "tile_wgmma_256x152x64": TileRate(652e12, 12.5e-3),
        "tile_mma_128x128x64": TileRate(539e12, 15e-3),
        "tile_mma_tf32_64x64x32": TileRate(150e12, 5e-3),
        "tile_mma_tf32x3_64x64x32": TileRate(45e12, 5e-3),
    },
)
_H200_MULTIPROCESSORS = 132
# What the probe measures on it.
_H200_SPEED = Speed(gather_bytes=8.6e12, copy_bytes=4.0e12, mm_flops=866e12)


@functools.cache
def rates_of(device: Device) -> Rates:
    """An H200's, in proportion to what is measured of both."""
    found = speed(device)
    if found is None:
        return guessed(device)
    gather = found.gather_bytes / _H200_SPEED.gather_bytes
    return _scaled(
        gather,
        found.copy_bytes / _H200_SPEED.copy_bytes,
        found.mm_flops / _H200_SPEED.mm_flops,
    )


def guessed(device: Device) -> Rates:
    """An H200's, in proportion to the multiprocessors."""
    part = device.sm_count / _H200_MULTIPROCESSORS
    return _scaled(part, part, part)


def _scaled(l2: float, memory: float, tensor_cores: float) -> Rates:
    return replace(
        _H200,
        l2_bytes=_H200.l2_bytes * l2,
        memory_bytes=_H200.memory_bytes * memory,
        shared_bytes=_H200.shared_bytes * l2,
        tiles={
            name: TileRate(rate.flops * tensor_cores, rate.fixed_us / tensor_cores)
            for name, rate in _H200.tiles.items()
        },
    )
