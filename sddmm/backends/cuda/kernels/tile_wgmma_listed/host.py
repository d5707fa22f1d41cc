"""tile_wgmma_listed: dense tiles by wgmma, stored from lists of their nonzeros."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER
from gemm_core.runtime.tensor_map import TensorMap
from sddmm.backends.cuda.cost_model import Cost, DeviceModel, TileRate, sort_us
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.persistent_tile import (
    KernelArrays,
    PersistentTileKernel,
    cluster_tile_facts,
)
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.slot_lists import SLOTS, SlotLists, slot_lists
from sddmm.backends.cuda.spec import AnalysisRequest

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

_STAGES = 3
# The slots of 32 rows that each of two warpgroups has: one for float sums, two for sums of two
# bytes. Rows are padded by as many elements as put neighbouring rows into different banks.
_FLOAT_SLOTS, _HALF_SLOTS, PADDING = 1, 2, 8
# The threads that sample, the nonzeros that each of them copies at once, at most, and the batches
# of them under way.
_SAMPLERS, _MAX_DEPTH, _AHEAD = 96, 7, 3
COPIED_BYTES = _AHEAD * _MAX_DEPTH * _SAMPLERS * 8
# By which uneven tiles take longer, as who multiplies and who samples wait for each other: times
# the unevenness, up to that at which no more is seen. Fitted to 30 times of 15 patterns on an H200.
_UNEVEN, _MOST_UNEVEN = 0.3, 0.5


class Arguments(ctypes.Structure):
    """The parameters of kernels that store by lists (listed_tiles.cuh)."""

    _fields_ = [
        ("a", TensorMap),
        ("b", TensorMap),
        *((name, POINTER) for name in ("out", "entries", "slot_starts", "tiles")),
        ("head_out", LONG),
        ("alpha", DOUBLE),
        *((name, INT) for name in ("tile_count", "heads", "k")),
        *((f"unused{i}", INT) for i in range(17)),
    ]


class TileWgmmaListed(PersistentTileKernel):
    """Three warps store a tile by a list of its nonzeros, which is made once per pattern."""

    parameters = Arguments

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> AnalysisRequest | None:
        return None  # lists are made of what the analysis finds

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        cost = super().cost_us(problem, facts, model)
        counts = None if facts is None else facts.tiles(self.block)
        if cost is None or counts is None:
            return None
        longer = 1 + _UNEVEN * min(_MOST_UNEVEN, counts.unevenness)
        return Cost(longer * cost.run_us, cost.prepare_us + sort_us(problem.nnz, model))

    def arrays(self, work: TileWork, blocks: int) -> KernelArrays:
        lists = self.lists(work, blocks)
        args = {
            "entries": lists.entries.data_ptr(), "slot_starts": lists.starts.data_ptr(),
            "tiles": lists.coords.data_ptr(), "tile_count": work.tiles.length,
        }  # fmt: skip
        return KernelArrays(args, lists)

    def lists(self, work: TileWork, blocks: int) -> SlotLists:
        """The tiles in the order in which they are computed, and their nonzeros; here in the order
        of `work`, whatever the number of blocks."""
        return slot_lists(work, self.tile[1] + PADDING)

    def sampling(self, work: TileWork, problem: SddmmProblem) -> dict[str, int | bool]:
        return list_batches(problem.nnz, SLOTS * work.tiles.length)


def list_batches(nnz: int, slots: int) -> dict[str, int | bool]:
    """Batches of equal size, in which most slots are sampled, and how many are under way."""
    mean = nnz / max(1, slots)
    per_thread = ceil_div(int(mean + 2 * math.sqrt(mean)), _SAMPLERS) or 1
    batches = ceil_div(per_thread, _MAX_DEPTH)
    return {"DEPTH": ceil_div(per_thread, batches), "AHEAD": _AHEAD}


def tile_wgmma_listed(block_n: int, rate: TileRate) -> TileWgmmaListed:
    """A variant, with tiles of 128 rows."""
    pitch = block_n + PADDING
    slot_bytes = max(_FLOAT_SLOTS * (32 * 4 * pitch + 16), _HALF_SLOTS * (32 * 2 * pitch + 16))
    facts = cluster_tile_facts(
        "tile_wgmma_listed", (128, block_n), _STAGES, 16 + 2 * slot_bytes + COPIED_BYTES,
        FLOAT_SLOTS=_FLOAT_SLOTS, HALF_SLOTS=_HALF_SLOTS, PITCH=pitch,
    )  # fmt: skip
    return TileWgmmaListed(rate=rate, **facts)
