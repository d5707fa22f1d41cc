"""tile_wgmma_tf32x3: dense tiles by wgmma, float32 as three TF32 products."""

from __future__ import annotations

import torch

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.tile import BlockTileKernel

_TILE, _STAGES = (128, 128, 32), 4


class TileWgmmaTf32x3(BlockTileKernel):
    """Serves float32 on Hopper where the caller accepts 3xTF32."""

    def stores_segments(self, aligned: bool) -> bool:
        """Not of unaligned operands, whose loads leave too few registers for NVRTC 13.0."""
        return aligned


def tile_wgmma_tf32x3(rate: TileRate | None = None) -> TileWgmmaTf32x3:
    """The kernel. A stage holds a tile of a, and the large and the small parts of one of b."""
    block_m, block_n, block_k = _TILE
    stage_bytes = (block_m + 2 * block_n) * block_k * torch.float32.itemsize + 16
    return TileWgmmaTf32x3(
        name=f"tile_wgmma_tf32x3_{block_m}x{block_n}x{block_k}",
        source="tile_wgmma_tf32x3",
        dtypes=(torch.float32,),
        precision="tf32x3",
        threads=512,
        tile=_TILE,
        shared_bytes=_STAGES * stage_bytes,
        min_capability=(9, 0),
        max_capability=(9, 0),
        rate=rate,
        defines={"STAGES": _STAGES},
    )
