"""tile_wmma: dense tiles by the wmma interface, in float16."""

from __future__ import annotations

import torch

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.tile import BlockTileKernel, block_tile_facts

_TILE, _STAGES, _MIN_BLOCKS = (128, 128, 32), 3, 2
_PAD = 8  # elements between two rows of a stage, against bank conflicts


class TileWmma(BlockTileKernel):
    """Serves float16."""


def tile_wmma(
    fragment: tuple[int, int], warps: tuple[int, int], rate: TileRate | None = None
) -> TileWmma:
    """The variant whose fragments have these rows and columns."""
    m, n = fragment
    return TileWmma(
        name=f"tile_wmma_m{m}n{n}k16",
        source="tile_wmma",
        dtypes=(torch.float16,),
        rate=rate,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": _STAGES,
            "FRAGMENT_M": m,
            "FRAGMENT_N": n,
            "PAD": _PAD,
        },
        **block_tile_facts(_TILE, warps, _STAGES, _MIN_BLOCKS, torch.float16.itemsize, _PAD),
    )
