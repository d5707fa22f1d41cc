"""What the kernels reach on a device, for the cost model."""

from __future__ import annotations

from gemm_core.device import Device
from sddmm.choose import Rates, TileRate

# Measured on an H200; other devices by their multiprocessors.
_H200 = Rates(
    l2_bytes=9.1e12,
    memory_bytes=3.9e12,
    shared_bytes=24e12,
    launch_us=4.0,
    tiles={
        "tile_wgmma_128x256x64": TileRate(840e12, 14e-3),
        "tile_mma_128x128x64": TileRate(539e12, 15e-3),
        "tile_mma_tf32_64x64x32": TileRate(150e12, 5e-3),
        "tile_mma_tf32x3_64x64x32": TileRate(45e12, 5e-3),
    },
)


def rates_of(device: Device) -> Rates:
    return _H200
