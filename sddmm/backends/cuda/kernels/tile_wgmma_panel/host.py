"""tile_wgmma_panel: dense tiles by wgmma for short k, by blocks that keep rows of B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cuda.cost_model import DeviceModel, TileRate
from sddmm.backends.cuda.kernels.persistent_tile import BLOCK_K, wgmma_tile_facts
from sddmm.backends.cuda.kernels.tile_wgmma_listed.host import (
    COPIED_BYTES,
    PADDING,
    TileWgmmaListed,
)
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.slot_lists import SlotLists, slot_lists

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The rows of A that a stage holds, which one warpgroup multiplies, and the rows of a tile.
_BOX_ROWS, _BLOCK_M = 64, 128
# The most elements of k of which a block keeps rows of B, and all the shared memory that it has.
_MAX_K, _SHARED_BYTES = 256, 232_448
# Two barriers, which each stage, slot and part of the panel has, and each warpgroup for its turns.
_BARRIER_BYTES = 16
# The part of a nonzero's time that it takes where there are several heads: their blocks go through
# the lists at the same time, and find them in L2.
_OF_SEVERAL_HEADS = 0.82
# The part of the time that it takes where B has no more rows than a block keeps.
_OF_ONE_PANEL = 0.87
# The most slots of 32 rows of float sums, and the stages that more than one slot must leave.
_MAX_SLOTS, _MIN_STAGES = 4, 5


class TileWgmmaPanel(TileWgmmaListed):
    """A block keeps the rows of B of its tiles; its warpgroups multiply and hand on in turns."""

    cluster = 1

    @property
    def boxes(self) -> tuple[int, int]:
        return _BOX_ROWS, self.block[1]

    def tiles_us(
        self, problem: SddmmProblem, tiles: int, nnz: int, runs: int, model: DeviceModel
    ) -> float:
        if (problem.heads or 1) > 1:
            nnz, runs = (round(_OF_SEVERAL_HEADS * count) for count in (nnz, runs))
        run_us = super().tiles_us(problem, tiles, nnz, runs, model)
        return _OF_ONE_PANEL * run_us if problem.n <= self.block[1] else run_us

    def lists(self, work: TileWork, blocks: int) -> SlotLists:
        return slot_lists(work, self.block[1] + PADDING, blocks)

    def sampling(self, work: TileWork, problem: SddmmProblem) -> dict[str, int | bool]:
        return {**panel_macros(self.block[1], problem.k), **super().sampling(work, problem)}


def panel_macros(block_n: int, k: int) -> dict[str, int | bool]:
    """How shared memory is divided: the kept rows of B, slots of sums, and stages of A."""
    k_blocks = ceil_div(k, BLOCK_K)
    taken = k_blocks * (block_n * BLOCK_K * 2 + _BARRIER_BYTES) + 2 * _BARRIER_BYTES + COPIED_BYTES
    stage_bytes = _BOX_ROWS * BLOCK_K * 2 + _BARRIER_BYTES
    # As many bytes hold two slots of half sums, with their barriers.
    slot_bytes = 32 * 4 * (block_n + PADDING) + 2 * _BARRIER_BYTES
    slots = (_SHARED_BYTES - taken - _MIN_STAGES * stage_bytes) // slot_bytes
    slots = min(max(1, slots), _MAX_SLOTS)
    return {
        "K_BLOCKS": k_blocks, "STAGES": (_SHARED_BYTES - taken - slots * slot_bytes) // stage_bytes,
        "FLOAT_SLOTS": slots, "HALF_SLOTS": 2 * slots,
    }  # fmt: skip


def tile_wgmma_panel(block_n: int, rate: TileRate) -> TileWgmmaPanel:
    """A variant, with tiles of 128 rows."""
    facts = wgmma_tile_facts(
        "tile_wgmma_panel", (_BLOCK_M, block_n), _SHARED_BYTES, BOX_ROWS=_BOX_ROWS,
        PITCH=block_n + PADDING,
    )  # fmt: skip
    return TileWgmmaPanel(rate=rate, max_k=_MAX_K, **facts)
