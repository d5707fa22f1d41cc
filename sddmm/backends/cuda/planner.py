"""The planner: which kernel computes a problem on a pattern, and how it is prepared.

It asks every registered kernel what it costs and how to prepare it, and knows none by its name.
Preparation and the expected runs are ranked together. A single run is planned from the problem
alone; for many, the pattern is analysed, and its tiles are counted unless it is uniform. What
follows from a problem alone is decided once for all of about its sizes (`alike`), as
mini-batches come in ever new ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gemm_core.runtime.device import Device
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.executor import Explanation
from sddmm.backends.cuda.facts import PatternFacts, UniformFacts
from sddmm.backends.cuda.pattern_layouts import (
    AheadLayouts,
    PatternLayouts,
    rows_are_known_to_fall,
)
from sddmm.backends.cuda.planning_context import (
    Kernel,
    Kernels,
    PlanningContext,
    UniformPlan,
    explain,
    refused,
)
from sddmm.backends.cuda.spec import ROW_IDS, Layouts
from sddmm.backends.cuda.transposed_layouts import TransposedLayouts
from sddmm.problem import Problem, alike

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern

P = TypeVar("P", bound=Problem)
E = TypeVar("E")


class Planner(Generic[P, E]):
    """Plans the problems of one operator by the kernels that are registered for it.

    executor: makes what runs the plans of a kernel, of the plans, their explanation and the index
    of the device.
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
        context: PlanningContext = self.context(alike(problem), device)
        if kernel is not None:
            return kind(context, problem, pattern, self._executor).requested(kernel)
        likely = [context.if_uniform(calls).kernel]
        if transpose:
            likely.append(context.if_transpose_is_uniform(calls))
        if any(chosen.refuses(problem, device) is not None for chosen in likely):
            context = self.context(problem, device)  # the kernel serves the rounded problem alone
        return kind(context, problem, pattern, self._executor).fastest(calls)


class _Preparation(Generic[E]):
    """The preparation of one pattern for one problem, for many runs. context: that of the problem
    or of one that is alike."""

    def __init__(
        self,
        context: PlanningContext,
        problem: Problem,
        pattern: SparsePattern,
        executor: Callable[..., E],
    ) -> None:
        self._context, self._problem, self._pattern = context, problem, pattern
        self._make_executor = executor

    def requested(self, name: str) -> E:
        """The kernel that the caller named; ValueError if there is none, or if it refuses."""
        context, problem = self._context, self._problem
        kernels, device = context.kernels, context.device
        kernel = kernels.get(name)
        if kernel is None:
            names = ", ".join(kernels)
            raise ValueError(f"kernel must be one of {names}, got {name!r}")
        reason = kernel.refuses(problem, device)
        if reason is not None:
            raise ValueError(f"kernel {name!r}{':' if kernel.parts else ''} {reason}")
        layouts = PatternLayouts(self._pattern, device, kernel.tile_sizes)

        def explanation() -> list[str]:
            return [f"kernel   {name}, as demanded", *refused(kernels.values(), problem, device)]

        return self._executor(self._prepare(kernel, layouts), explanation)

    def fastest(self, calls: int) -> E:
        """The kernel with the least predicted time of its preparation and so many runs."""
        context = self._context
        uniform = context.if_uniform(calls)
        layouts = PatternLayouts(self._pattern, context.device, context.tile_sizes)
        plans: tuple[Any, ...] | None = None
        if self._prepares_ahead(uniform):
            analysis, plans = self._prepare_ahead(uniform)
        else:
            analysis = layouts.analysis(uniform.request)
        if context.is_uniform(analysis, self._problem):
            chosen, facts = uniform.kernel, self._if_uniform(is_sorted=True)
        else:
            facts = layouts.facts(count_tiles=self._tiles_may_pay(layouts, analysis))
            chosen = self._best(facts, calls)
            # A plan that reads nonzeros by row is that of any pattern whose rows ascend.
            if not (analysis.rows_ascend and uniform.ahead == ROW_IDS):
                plans = None
        if plans is None or chosen is not uniform.kernel:
            plans = self._prepare(chosen, layouts)
        layouts.forget_large_counts()
        return self._executor(plans, self._explanation(chosen, facts, calls))

    def _prepares_ahead(self, uniform: UniformPlan) -> bool:
        """Whether launches are prepared while the analysis runs. For nonzeros that may be in any
        order, as those of mini-batches mostly are, only if the analysis finds their tiles."""
        if uniform.ahead is None or rows_are_known_to_fall(self._pattern):
            return False
        return self._pattern.is_csr or uniform.ahead != ROW_IDS

    def _tiles_may_pay(
        self, layouts: PatternLayouts, analysis: Analysis, transpose: bool = False
    ) -> bool:
        """layouts, analysis: of the nonzeros as they are stored; where rows fall, this analysis
        does not tell it. transpose: they are those of the transpose of the problem's pattern."""
        context = self._context
        request = context.segments_request()
        if context.tile_sizes and request.block is not None and not analysis.rows_ascend:
            transpose = transpose != analysis.ascends_by_column
            analysis = layouts.analysis_in_order(request)
        return context.tiles_may_pay(analysis, transpose)

    def _best(self, facts: PatternFacts, calls: int) -> Kernel:
        """The fastest for a pattern with these facts that does not refuse."""
        context, problem = self._context, self._problem
        ranking = context.rank(facts, calls, problem)
        return next(x.kernel for x in ranking if x.kernel.refuses(problem, context.device) is None)

    def _if_uniform(self, is_sorted: bool) -> PatternFacts:
        problem = self._problem
        return UniformFacts((problem.m, problem.n), problem.nnz, ascends=is_sorted)

    def _explanation(self, chosen: Kernel, facts: PatternFacts, calls: int) -> Explanation:
        """An executor holds it, so no object of it may hold a pattern, which would be a cycle."""
        context = self._context
        return functools.partial(
            explain, context.kernels, self._problem, context.device, chosen, facts, calls
        )

    def _executor(self, plans: tuple[Any, ...], explanation: Explanation) -> E:
        return self._make_executor(plans, explanation, device_index=self._context.device.index)

    def _prepare(self, kernel: Kernel, layouts: Layouts) -> tuple[Any, ...]:
        """Wait for the work arrays too: the next call may come on another stream."""
        context = self._context
        plans = kernel.prepare(layouts, self._problem, context.model)
        loader.runtime.wait(context.device.index)
        return plans

    def _prepare_ahead(self, ahead: UniformPlan) -> tuple[Analysis, tuple[Any, ...]]:
        """The analysis of the pattern, and the launches that are prepared from it while the GPU
        still runs it: kernels wait for what they launch meanwhile."""
        context = self._context
        layouts = AheadLayouts(self._pattern, context.device, ahead.request, many_runs=True)
        try:
            plans = ahead.kernel.prepare(layouts, self._problem, context.model)
        finally:
            analysis = layouts.wait()
        return analysis, plans


class _OfTranspose(_Preparation[E]):
    """The preparation of the transpose of a pattern: the fastest by the pattern's own analyses, if
    its rows never fall or have been sorted; else the transpose is analysed, as a pattern of its
    own."""

    def requested(self, name: str) -> E:
        self._pattern = self._pattern.T
        return super().requested(name)

    def fastest(self, calls: int) -> E:
        context, pattern = self._context, self._pattern
        layouts = TransposedLayouts(pattern, context.device, context.tile_sizes)
        stored, request = layouts.stored, context.segments_request()
        analysis = stored.analysis(ROW_IDS if rows_are_known_to_fall(pattern) else request)
        if not (analysis.rows_ascend or stored.sort_serves_transpose):
            self._pattern = pattern.T
            return super().fastest(calls)
        if context.is_uniform(analysis, self._problem, transpose=True):
            chosen, facts = context.if_transpose_is_uniform(calls), self._if_uniform(False)
        else:
            counts = self._tiles_may_pay(stored, analysis, transpose=True)
            facts = layouts.facts(count_tiles=counts)
            chosen = self._best(facts, calls)
        plans = self._prepare(chosen, layouts)
        stored.forget_large_counts()
        return self._executor(plans, self._explanation(chosen, facts, calls))
