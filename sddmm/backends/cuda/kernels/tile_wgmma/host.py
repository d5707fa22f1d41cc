"""tile_wgmma: dense tiles by wgmma, whose operands TMA loads; a block stays for many tiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.persistent_tile import PersistentTileKernel, cluster_tile_facts
from sddmm.backends.cuda.layouts import TileWork

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The lanes of a warp that sample a row together, and how many nonzeros of a row each of them may
# prefetch, as its registers allow: a lane has twice as many rows where tiles are tall.
_LANES_PER_ROW, _MAX_DEPTH, _MAX_DEPTH_OF_TALL = 8, 4, 1


def prefetch_depth(nnz: int, rows: int) -> int:
    """The nonzeros of a row that each lane prefetches, so that most of the rows need no more."""
    mean = nnz / max(1, rows)
    return min(_MAX_DEPTH, math.ceil((mean + 2 * math.sqrt(mean)) / _LANES_PER_ROW) or 1)


class TileWgmma(PersistentTileKernel):
    """The warps that multiply a tile also sample it."""

    def sampling(self, work: TileWork, problem: SddmmProblem) -> dict[str, int | bool]:
        block_m = self.tile[0]
        depth = prefetch_depth(problem.nnz, work.tiles.length * block_m)
        return {"PREFETCH_DEPTH": min(depth, _MAX_DEPTH_OF_TALL) if block_m > 128 else depth}


def tile_wgmma(block_m: int, block_n: int, row_bytes: int, rate: TileRate) -> TileWgmma:
    """A variant. Its shared memory holds four stages and their barriers, then `row_bytes` bytes of
    each of a warp's 16 rows at most (sampled_warp.cuh)."""
    facts = cluster_tile_facts(
        "tile_wgmma", (block_m, block_n), 4, 8 * 16 * row_bytes,
        LANES_PER_ROW=_LANES_PER_ROW, ROW_BYTES=row_bytes,
    )  # fmt: skip
    return TileWgmma(rate=rate, **facts)
