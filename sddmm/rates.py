"""What the kernels reach on a device, for the cost model."""

from __future__ import annotations

import functools
from dataclasses import replace

from gemm_core.device import Device
from sddmm.choose import Rates, TileRate

# Measured on an H200 of 132 multiprocessors (docs/results/h200).
_H200 = Rates(
    l2_bytes=9.1e12,
    memory_bytes=3.9e12,
    shared_bytes=24e12,
    launch_us=4.0,
    tiles={
        "tile_wgmma_128x256x64": TileRate(668e12, 9.3e-3),
        "tile_wgmma_128x224x64": TileRate(660e12, 8.9e-3),
        "tile_mma_128x128x64": TileRate(539e12, 15e-3),
        "tile_mma_tf32_64x64x32": TileRate(150e12, 5e-3),
        "tile_mma_tf32x3_64x64x32": TileRate(45e12, 5e-3),
    },
)
_H200_MULTIPROCESSORS = 132


@functools.cache
def rates_of(device: Device) -> Rates:
    """An H200's, in proportion to the multiprocessors: a guess for any other device."""
    part = device.sm_count / _H200_MULTIPROCESSORS
    return replace(
        _H200,
        l2_bytes=_H200.l2_bytes * part,
        memory_bytes=_H200.memory_bytes * part,
        shared_bytes=_H200.shared_bytes * part,
        tiles={
            name: TileRate(rate.flops * part, rate.fixed_us / part)
            for name, rate in _H200.tiles.items()
        },
    )
