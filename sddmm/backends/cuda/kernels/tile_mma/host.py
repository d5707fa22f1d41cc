"""tile_mma: dense tiles by mma.sync, in half types, TF32 or 3xTF32."""

from __future__ import annotations

import torch

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.tile import BlockTileKernel, block_tile_facts
from sddmm.dtypes import HALF_DTYPES


class TileMma(BlockTileKernel):
    """Serves half types, or float32 where the caller accepts TF32."""


def tile_mma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    min_blocks: int,
    precision: str = "ieee",
    rate: TileRate | None = None,
) -> TileMma:
    """A variant; precision "ieee" stands for half types, which have no other."""
    dtypes = HALF_DTYPES if precision == "ieee" else (torch.float32,)
    return TileMma(
        name=name,
        source="tile_mma",
        dtypes=dtypes,
        precision=precision,
        rate=rate,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": stages,
            "SPLIT": precision == "tf32x3",
        },
        **block_tile_facts(tile, warps, stages, min_blocks, dtypes[0].itemsize),
    )
