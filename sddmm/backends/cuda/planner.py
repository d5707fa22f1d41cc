"""The planner: which kernel computes a problem on a pattern, and how it is prepared.

It asks every registered kernel what it costs and how to prepare it, and knows none by its name.
Preparation and the expected runs are ranked together. A single run is planned from the problem
alone; for many, the pattern is analysed, and its tiles are counted unless it is uniform.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.cost_model import Cost, uniform_threshold
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import Explanation
from sddmm.backends.cuda.facts import CountedFacts, PatternFacts, TileCounts, UniformFacts
from sddmm.backends.cuda.pattern_layouts import (
    AheadLayouts,
    PatternLayouts,
    TransposedLayouts,
    rows_are_known_to_fall,
)
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, Layouts, OperatorKernel

if TYPE_CHECKING:
    from sddmm.problem import Problem
    from sddmm.sparse.pattern import SparsePattern

# The least time of a run for which tiles are counted.
_WORTH_COUNTING_US = 1.0
# The block whose row segments are counted where no kernel has tiles; of the rows, any number does.
_SEGMENT_BLOCK = (64, 64)

P = TypeVar("P", bound="Problem")
E = TypeVar("E")

Kernel = OperatorKernel[Any, Any]
Kernels = Mapping[str, Kernel]


class Prediction(NamedTuple):
    """A kernel, and what it should cost."""

    kernel: Kernel
    cost: Cost


class UniformPlan(NamedTuple):
    """The plan for a sorted, uniform pattern: the first analysis, which finds out whether the
    pattern is such, and the fastest kernel then. ahead: what the kernel needs to be prepared while
    the analysis runs, or None. explanation: of the choice. An executor holds it, so no object of it
    may hold a pattern, which would be a cycle.
    """

    kernel: Kernel
    request: AnalysisRequest
    ahead: AnalysisRequest | None
    explanation: Explanation


class Planner(Generic[P, E]):
    """Plans the problems of one operator by the kernels that are registered for it.

    executor: makes what runs the plans of a kernel, of the plans, their explanation, the refusals
    of other kernels, and the index of the device beside what returns the current one.
    """

    def __init__(self, kernels: Kernels, executor: Callable[..., E]) -> None:
        self.kernels = kernels
        self._executor = executor
        self.context = functools.lru_cache(maxsize=1024)(
            functools.partial(PlanningContext, kernels)
        )
        self.refuses = functools.lru_cache(maxsize=1024)(self._refuses)

    def _refuses(self, problem: P, device: Device) -> str | None:
        """None if a kernel computes `problem` on `device`, else the reason of the first kernel."""
        reasons: list[str] = []
        for kernel in self.kernels.values():
            reason = kernel.refuses(problem, device)
            if reason is None:
                return None
            reasons.append(reason)
        return reasons[0] if reasons else "has no kernel for this operator"

    def prepare(
        self,
        pattern: SparsePattern,
        problem: P,
        device: Device,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        transpose: bool = False,
    ) -> E:
        """The launches for a problem on a device.

        kernel: request one by name. calls: the number of runs to expect. What is prepared pays
        within them. transpose: the problem is that of the pattern's transpose.
        """
        kind = _OfTranspose if transpose else _Preparation
        preparation = kind(self.context(problem, device), pattern, self._executor)
        if kernel is not None:
            return preparation.requested(kernel)
        return preparation.fastest(calls)


class PlanningContext:
    """Planning decisions that depend only on the problem and the device.

    They are cached and reused for every pattern. serving: the kernels that do not refuse.
    tile_sizes: the sizes of tiles on whose counts their costs depend; empty if no kernel that
    depends on counts can be the fastest. if_uniform(calls): the plan for a uniform pattern.
    if_transpose_is_uniform(calls): the kernel for one whose nonzeros come by column, and why.
    executor_options: what an executor of plans takes beside them and their explanation.
    """

    def __init__(self, kernels: Kernels, problem: Problem, device: Device) -> None:
        self.kernels, self.problem, self.device = kernels, problem, device
        self.model = device_model(device)
        reasons = {name: kernel.refuses(problem, device) for name, kernel in kernels.items()}
        self.refusals = {name: reason for name, reason in reasons.items() if reason is not None}
        self.serving = [kernel for name, kernel in kernels.items() if reasons[name] is None]
        # A kernel made of others has no reason of its own to explain.
        explained = {n: reason for n, reason in self.refusals.items() if not kernels[n].parts}
        self.executor_options = {"refusals": explained, "device_index": device.index}
        self.tile_sizes = self._tile_sizes()
        self._segment_block = self._block_of_segments()
        self.if_uniform = functools.lru_cache(maxsize=8)(self._plan_if_uniform)
        self.if_transpose_is_uniform = functools.lru_cache(maxsize=8)(self._choose_if_by_column)

    def rank(self, facts: PatternFacts, calls: int = MANY_CALLS) -> list[Prediction]:
        """All kernels worth considering for such a pattern, the least total time first."""
        ranking = [
            Prediction(kernel, cost)
            for kernel in self.serving
            if (cost := kernel.cost_us(self.problem, facts, self.model)) is not None
        ]
        return sorted(ranking, key=lambda prediction: prediction.cost.total_us(calls))

    def rank_if_uniform(self, calls: int = MANY_CALLS, is_sorted: bool = True) -> list[Prediction]:
        """The ranking for a uniform pattern. is_sorted: its nonzeros ascend; else by column."""
        problem = self.problem
        facts = UniformFacts((problem.m, problem.n), problem.nnz, ascends=is_sorted)
        return self.rank(facts, calls)

    def is_uniform(self, analysis: Analysis, transpose: bool = False) -> bool:
        """Whether a pattern with this analysis, of the request of `if_uniform`, is sorted and has
        as many non-empty row segments as chance leaves. Where no cost depends on it, order is
        enough: of the columns too, if row offsets of tiles were collected, which hold for no other
        order.

        transpose: the pattern is the transpose of the problem's.
        """
        if self._segment_block is None or analysis.request.block is None:
            return analysis.ascends if analysis.request.tile_row_offsets else analysis.rows_ascend
        problem = self.problem
        shape = (problem.n, problem.m) if transpose else (problem.m, problem.n)
        least = uniform_threshold(shape, problem.nnz, analysis.request.block[1])
        return analysis.ascends and analysis.row_segments >= least

    def _plan_if_uniform(self, calls: int) -> UniformPlan:
        best = self.rank_if_uniform(calls)[0].kernel
        ahead = best.needs_ahead(self.problem, self.model)
        request = ahead or ROW_IDS
        if request.block is None:
            request = self.segments_request()
        return UniformPlan(best, request, ahead, lambda: _explain(self.rank_if_uniform(calls)))

    def _choose_if_by_column(self, calls: int) -> tuple[Kernel, Explanation]:
        ranking = self.rank_if_uniform(calls, is_sorted=False)
        return ranking[0].kernel, lambda: _explain(ranking)

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
        least = {size: ceil_div(nnz, size[0] * size[1]) for size in sizes}
        return tuple(sizes) if self._may_pay(least) else ()

    def tiles_may_pay(self, analysis: Analysis, transpose: bool = False) -> bool:
        """Whether it is worth counting the tiles of a pattern with this analysis, which is not
        uniform: a tile holds one row segment of each of its rows at most, so that many segments are
        in many tiles. A kernel made of others may leave out such tiles, so its are counted.

        transpose: the pattern is the transpose of the problem's.
        """
        block = analysis.request.block
        has_parts = any(kernel.parts for kernel in self.serving)
        if block is None or has_parts or not analysis.ascends:
            return True
        least: dict[tuple[int, int], int] = {}
        for size in self.tile_sizes:
            rows, columns = size[::-1] if transpose else size
            segments = analysis.row_segments if columns <= block[1] else 0
            full = ceil_div(self.problem.nnz, rows * columns)
            least[size] = max(full, ceil_div(segments, rows))
        by_column = CountedFacts(self.problem.nnz, 1, False, {}, (), ascends_by_column=True)
        return self._may_pay(least, by_column if transpose else None)

    def _may_pay(
        self, tiles: Mapping[tuple[int, int], int], uncounted_facts: CountedFacts | None = None
    ) -> bool:
        """Whether a kernel could be faster in a single run than those that need no count, by as few
        full tiles of each size. uncounted_facts: what those know of the pattern."""
        problem, model = self.problem, self.model
        uncounted = (kernel.cost_us(problem, uncounted_facts, model) for kernel in self.serving)
        uncounted_us = min((c.run_us for c in uncounted if c is not None), default=float("inf"))
        counts = {size: TileCounts(count, count, ()) for size, count in tiles.items()}
        facts = CountedFacts(problem.nnz, 1, True, counts, ())
        costs = (k.cost_us(problem, facts, model) for k in self.serving if k.tile_sizes)
        return any(
            cost.run_us + _WORTH_COUNTING_US < uncounted_us for cost in costs if cost is not None
        )


class _Preparation(Generic[E]):
    """The preparation of one pattern for one problem, for many runs."""

    def __init__(
        self, context: PlanningContext, pattern: SparsePattern, executor: Callable[..., E]
    ) -> None:
        self._context, self._pattern, self._executor = context, pattern, executor

    def requested(self, name: str) -> E:
        """The kernel that the caller named; ValueError if there is none, or if it refuses."""
        context = self._context
        kernel = context.kernels.get(name)
        if kernel is None:
            names = ", ".join(context.kernels)
            raise ValueError(f"kernel must be one of {names}, got {name!r}")
        reason = context.refusals.get(name)
        if reason is not None:
            raise ValueError(f"kernel {name!r}{':' if kernel.parts else ''} {reason}")
        layouts = PatternLayouts(self._pattern, context.device, kernel.tile_sizes)
        return self._prepare(kernel, layouts, lambda: [f"kernel   {name}, as demanded"])

    def fastest(self, calls: int) -> E:
        """The kernel with the least predicted time of its preparation and so many runs."""
        context = self._context
        uniform = context.if_uniform(calls)
        layouts = PatternLayouts(self._pattern, context.device, context.tile_sizes)
        plans: tuple[Any, ...] | None = None
        if uniform.ahead is None or rows_are_known_to_fall(self._pattern):
            analysis = layouts.analysis(uniform.request)
        else:
            analysis, plans = self._prepare_ahead(uniform)
        if context.is_uniform(analysis):
            kernel, explanation = uniform.kernel, uniform.explanation
        else:
            facts = layouts.facts(count_tiles=context.tiles_may_pay(analysis))
            ranking = context.rank(facts, calls)
            kernel, explanation = ranking[0].kernel, lambda: _explain(ranking)
            # A plan that reads nonzeros by row is that of any pattern whose rows ascend.
            if not (analysis.rows_ascend and uniform.ahead == ROW_IDS):
                plans = None
        if plans is not None and kernel is uniform.kernel:
            return self._executor(plans, explanation, **context.executor_options)
        return self._prepare(kernel, layouts, explanation)

    def _prepare(self, kernel: Kernel, layouts: Layouts, explanation: Explanation) -> E:
        """Wait for the work arrays too: the next call may come on another stream."""
        context = self._context
        plans = kernel.prepare(layouts, context.problem, context.model)
        loader.runtime.wait(context.device.index)
        return self._executor(plans, explanation, **context.executor_options)

    def _prepare_ahead(self, ahead: UniformPlan) -> tuple[Analysis, tuple[Any, ...]]:
        """The analysis of the pattern, and the launches that are prepared from it while the GPU
        still runs it: kernels wait for what they launch meanwhile."""
        context = self._context
        layouts = AheadLayouts(self._pattern, context.device, ahead.request, many_runs=True)
        try:
            plans = ahead.kernel.prepare(layouts, context.problem, context.model)
        finally:
            analysis = layouts.wait()
        return analysis, plans


class _OfTranspose(_Preparation[E]):
    """The preparation of the transpose of a pattern: the fastest by the pattern's own analyses, if
    its rows never fall; else the transpose is analysed, as a pattern of its own."""

    def requested(self, name: str) -> E:
        self._pattern = self._pattern.T
        return super().requested(name)

    def fastest(self, calls: int) -> E:
        context, pattern = self._context, self._pattern
        layouts = TransposedLayouts(pattern, context.device, context.tile_sizes)
        analysis = None
        if not rows_are_known_to_fall(pattern):
            analysis = layouts.analysis_of_pattern(context.segments_request())
        if analysis is None or not analysis.rows_ascend:
            self._pattern = pattern.T
            return super().fastest(calls)
        if context.is_uniform(analysis, transpose=True):
            kernel, explanation = context.if_transpose_is_uniform(calls)
            return self._prepare(kernel, layouts, explanation)
        counts = context.tiles_may_pay(analysis, transpose=True)
        ranking = context.rank(layouts.facts(count_tiles=counts), calls)
        return self._prepare(ranking[0].kernel, layouts, lambda: _explain(ranking))


def _explain(ranking: list[Prediction]) -> list[str]:
    best, *others = (f"{p.kernel.name}: {p.cost.run_us:.3g} us predicted" for p in ranking)
    return [f"kernel   {best}", *(f"  not    {other}" for other in others)]
