"""What a planner decides for a problem alone: the kernels that serve, and the fastest of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gemm_core.runtime.device import Device
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.cost_model import Cost, uniform_threshold
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.facts import (
    CountedFacts,
    PatternFacts,
    TileCounts,
    UniformFacts,
    fewest_tiles,
)
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, OperatorKernel
from sddmm.problem import Problem, rounded

# The least time of a run for which tiles are counted.
_WORTH_COUNTING_US = 1.0
# The block whose row segments are counted where no kernel has tiles; of the rows, any number does.
_SEGMENT_BLOCK = (64, 64)

Kernel = OperatorKernel[Any, Any]
Kernels = Mapping[str, Kernel]


class Prediction(NamedTuple):
    """A kernel, and what it should cost."""

    kernel: Kernel
    cost: Cost


class UniformPlan(NamedTuple):
    """The plan for a sorted, uniform pattern: the first analysis, which finds out whether the
    pattern is such, and the fastest kernel then. ahead: what the kernel needs to be prepared while
    the analysis runs, or None.
    """

    kernel: Kernel
    request: AnalysisRequest
    ahead: AnalysisRequest | None


class PlanningContext:
    """Planning decisions that depend only on the problem and the device.

    They are cached and reused for every pattern and for all problems that are `alike`. serving: the
    kernels that do not refuse. tile_sizes: the sizes of tiles on whose counts their costs depend;
    empty if no kernel that depends on counts can be the fastest. if_uniform(calls): the plan for a
    uniform pattern. if_transpose_is_uniform(calls): the kernel for one whose nonzeros come by
    column.
    """

    def __init__(self, kernels: Kernels, problem: Problem, device: Device) -> None:
        self.kernels, self.problem, self.device = kernels, problem, device
        self.model = device_model(device)
        reasons = {name: kernel.refuses(problem, device) for name, kernel in kernels.items()}
        self.refusals = {name: reason for name, reason in reasons.items() if reason is not None}
        self.serving = [kernel for name, kernel in kernels.items() if reasons[name] is None]
        self.tile_sizes = self._tile_sizes()
        self._segment_block = self._block_of_segments()
        self.if_uniform = functools.lru_cache(maxsize=8)(self._plan_if_uniform)
        self.if_transpose_is_uniform = functools.lru_cache(maxsize=8)(self._choose_if_by_column)
        self._counts_may_pay = functools.lru_cache(maxsize=64)(self._many_segments_may_pay)

    def rank(
        self, facts: PatternFacts, calls: int = MANY_CALLS, problem: Problem | None = None
    ) -> list[Prediction]:
        """All kernels worth considering for such a pattern, the least total time first. problem:
        the one of the alike problems whose sizes count."""
        problem = self.problem if problem is None else problem
        ranking = [
            Prediction(kernel, cost)
            for kernel in self.serving
            if (cost := kernel.cost_us(problem, facts, self.model)) is not None
        ]
        return sorted(ranking, key=lambda prediction: prediction.cost.total_us(calls))

    def rank_if_uniform(self, calls: int = MANY_CALLS, is_sorted: bool = True) -> list[Prediction]:
        """The ranking for a uniform pattern. is_sorted: its nonzeros ascend; else by column."""
        problem = self.problem
        facts = UniformFacts((problem.m, problem.n), problem.nnz, ascends=is_sorted)
        return self.rank(facts, calls)

    def is_uniform(self, analysis: Analysis, problem: Problem, transpose: bool = False) -> bool:
        """Whether a pattern with this analysis, of the request of `if_uniform`, is sorted and has
        as many non-empty row segments as chance leaves. Where no cost depends on it, order is
        enough: of the columns too, if row offsets of tiles were collected, which hold for no other
        order.

        problem: the pattern's. transpose: the pattern is the transpose of the problem's.
        """
        if self._segment_block is None or analysis.request.block is None:
            return analysis.ascends if analysis.request.tile_row_offsets else analysis.rows_ascend
        shape = (problem.n, problem.m) if transpose else (problem.m, problem.n)
        least = uniform_threshold(shape, problem.nnz, analysis.request.block[1])
        return analysis.ascends and analysis.row_segments >= least

    def _plan_if_uniform(self, calls: int) -> UniformPlan:
        best = self.rank_if_uniform(calls)[0].kernel
        ahead = best.needs_ahead(self.problem, self.model)
        request = ahead or ROW_IDS
        if request.block is None:
            request = self.segments_request()
        return UniformPlan(best, request, ahead)

    def _choose_if_by_column(self, calls: int) -> Kernel:
        return self.rank_if_uniform(calls, is_sorted=False)[0].kernel

    def segments_request(self) -> AnalysisRequest:
        """An analysis that counts row segments, where costs depend on whether a pattern is uniform:
        as wide as the widest tiles."""
        return ROW_IDS._replace(block=self._segment_block)

    def _block_of_segments(self) -> tuple[int, int] | None:
        if self.tile_sizes:
            return max(self.tile_sizes, key=lambda block: block[1])
        needs_uniform = any(kernel.needs_uniform for kernel in self.serving)
        return _SEGMENT_BLOCK if needs_uniform else None

    def _tile_sizes(self) -> tuple[tuple[int, int], ...]:
        """The sizes of the tiles of all kernels, if one could be faster than those that need no
        count: with all nonzeros in full tiles, in a single run."""
        nnz = self.problem.nnz
        sizes = dict.fromkeys(size for kernel in self.serving for size in kernel.tile_sizes)
        full = {size: fewest_tiles(nnz, 0, 1, size) for size in sizes}
        return tuple(sizes) if self._may_pay(full) else ()

    def tiles_may_pay(self, analysis: Analysis, transpose: bool = False) -> bool:
        """Whether it is worth counting the tiles of a pattern with this analysis, which is not
        uniform: many row segments are in many tiles.

        transpose: the pattern is the transpose of the problem's.
        """
        block = analysis.request.block
        if block is None or not analysis.ascends:
            return True
        shared = rounded(analysis.cols.numel() - analysis.row_segments)
        return self._counts_may_pay(self.problem.nnz - shared, block[1], transpose)

    def _many_segments_may_pay(self, segments: int, width: int, transpose: bool) -> bool:
        """segments: of rows, as wide as `width` columns."""
        counts: dict[tuple[int, int], TileCounts] = {}
        for size in self.tile_sizes:
            block = size[::-1] if transpose else size
            counts[size] = fewest_tiles(self.problem.nnz, segments, width, block)
        known = CountedFacts(self.problem.nnz, 1, True, {}, ((width, segments),))
        if transpose:
            known = CountedFacts(self.problem.nnz, 1, False, {}, (), ascends_by_column=True)
        return self._may_pay(counts, known)

    def _may_pay(
        self, counts: Mapping[tuple[int, int], TileCounts], known: CountedFacts | None = None
    ) -> bool:
        """Whether a kernel could be faster in a single run than those that need no count, by these
        tiles of each size. known: the facts of a pattern whose tiles are not counted."""
        problem, model = self.problem, self.model
        uncounted = (kernel.cost_us(problem, known, model) for kernel in self.serving)
        uncounted_us = min((c.run_us for c in uncounted if c is not None), default=float("inf"))
        facts = CountedFacts(problem.nnz, 1, True, counts, ())
        costs = (k.cost_us(problem, facts, model) for k in self.serving if k.tile_sizes)
        return any(
            cost.run_us + _WORTH_COUNTING_US < uncounted_us for cost in costs if cost is not None
        )


def explain(
    kernels: Kernels,
    problem: Problem,
    device: Device,
    chosen: Kernel,
    facts: PatternFacts,
    calls: int,
) -> list[str]:
    """The chosen kernel, the others by their predictions, and why the rest does not serve."""
    ranking = PlanningContext(kernels, problem, device).rank(facts, calls)
    predicted = {x.kernel.name: f": {x.cost.run_us:.3g} us predicted" for x in ranking}
    lines = [f"kernel   {chosen.name}{predicted.pop(chosen.name, '')}"]
    lines += [f"  not    {name}{prediction}" for name, prediction in predicted.items()]
    return lines + refused(kernels.values(), problem, device)


def refused(kernels: Iterable[Any], problem: Problem, device: Device) -> list[str]:
    """The kernels that do not serve, each with its reason. One that is made of others has no reason
    of its own."""
    reasons = {x.name: x.refuses(problem, device) for x in kernels if not x.parts}
    return [f"  not    {name}: {reason}" for name, reason in reasons.items() if reason is not None]
