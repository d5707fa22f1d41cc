"""tile_mma: dense tiles by mma.sync, in half types, TF32 or 3xTF32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.tile import BlockTileKernel, block_tile_facts
from sddmm.dtypes import HALF_DTYPES


@dataclass(frozen=True, eq=False)
class TileMma(BlockTileKernel):
    """Serves half types, or float32 where the caller accepts TF32.

    hopper_min_blocks: as min_blocks, on Hopper, for which the compiler needs fewer registers.
    """

    hopper_min_blocks: int = 0

    def min_blocks_on(self, device: Device) -> int:
        on_hopper = device.capability == (9, 0) and self.hopper_min_blocks
        return self.hopper_min_blocks if on_hopper else self.min_blocks


def tile_mma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    min_blocks: int,
    precision: str = "ieee",
    rate: TileRate | None = None,
    hopper_min_blocks: int = 0,
) -> TileMma:
    """A variant; precision "ieee" stands for half types, which have no other."""
    dtypes = HALF_DTYPES if precision == "ieee" else (torch.float32,)
    return TileMma(
        name=name,
        source="tile_mma",
        dtypes=dtypes,
        precision=precision,
        rate=rate,
        hopper_min_blocks=hopper_min_blocks,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": stages,
            "SPLIT": precision == "tf32x3",
        },
        **block_tile_facts(tile, warps, stages, min_blocks, dtypes[0].itemsize),
    )
