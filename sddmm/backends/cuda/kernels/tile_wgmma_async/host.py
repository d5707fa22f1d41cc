"""tile_wgmma_async: dense tiles by wgmma, which warps of their own store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.persistent_tile import PersistentTileKernel, cluster_tile_facts
from sddmm.backends.cuda.layouts import TileWork

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The lanes that sample a row of few nonzeros together, and the nonzeros of a row that each of them
# may prefetch, as its registers allow; a whole warp samples a longer row.
_LANES_PER_ROW, _MAX_DEPTH = 8, 4
_WARP_LANES, _WARP_DEPTHS = 32, (2, 4)
# Rows are stored as segments where runs of consecutive columns have at least so many nonzeros.
_SEGMENT_NNZ = 4


def sampling_macros(
    nnz: int, rows: int, distinct: bool = False, runs: int = 0
) -> dict[str, int | bool]:
    """How the nonzeros of `rows` rows of tiles are sampled.

    distinct: columns strictly ascend within a row of the pattern. runs: the number of its runs of
    consecutive columns, 0 if unknown.
    """
    mean = nnz / max(1, rows)
    spread = math.sqrt(mean)
    segments = distinct and nnz >= _SEGMENT_NNZ * runs > 0
    if mean + spread <= _LANES_PER_ROW * _MAX_DEPTH and not segments:
        lanes = _LANES_PER_ROW
        depth = min(_MAX_DEPTH, math.ceil((mean + 2 * spread) / lanes) or 1)
    else:
        lanes = _WARP_LANES
        depth = _WARP_DEPTHS[mean + 2 * spread > lanes * _WARP_DEPTHS[0]]
    return {"LANES_PER_ROW": lanes, "PREFETCH_DEPTH": depth, "SEGMENTS": segments}


class TileWgmmaAsync(PersistentTileKernel):
    """Warps of their own sample a tile; ahead of tile_wgmma where k is 256 and more."""

    def sampling(self, work: TileWork, problem: SddmmProblem) -> dict[str, int | bool]:
        block_m = self.tile[0]
        # Tiles of more rows take the registers that finding segments needs.
        distinct = work.distinct and work.perm is None and block_m <= 128
        return sampling_macros(problem.nnz, work.tiles.length * block_m, distinct, work.runs)


class StagingSlots(NamedTuple):
    """Slots of 32 rows of sums in shared memory (staging_ring.cuh): their number for each of two
    warpgroups, and the bytes from row to row."""

    slots: int
    pitch: int

    @property
    def bytes(self) -> int:
        return 2 * self.slots * (32 * self.pitch + 16)


def tile_wgmma_async(
    block: tuple[int, int],
    stages: int,
    float_slots: StagingSlots,
    half_slots: StagingSlots,
    rate: TileRate,
    lead: int,
) -> TileWgmmaAsync:
    """A variant; the slots hold float sums, or sums of two bytes. lead: the stages by which the
    second warpgroup follows the first."""
    facts = cluster_tile_facts(
        "tile_wgmma_async", block, stages, 16 + max(float_slots.bytes, half_slots.bytes),
        LEAD=lead, FLOAT_SLOTS=float_slots.slots, FLOAT_PITCH=float_slots.pitch,
        HALF_SLOTS=half_slots.slots, HALF_PITCH=half_slots.pitch,
    )  # fmt: skip
    return TileWgmmaAsync(rate=rate, **facts)
