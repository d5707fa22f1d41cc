"""The planner: which kernel computes a problem on a pattern, and how it is prepared.

It asks every registered kernel what it needs, what it costs and how to prepare it, and knows none
by its name. An analysis counts the tiles of one size only, so of the kernels that depend on such
counts those are considered that need the same size as the fastest on a full matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.runtime.device import Device
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.cost_model import (
    Cost,
    TileStats,
    uniform_threshold,
    uniform_tile_stats,
)
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import Explanation, GpuExecutor
from sddmm.backends.cuda.pattern_layouts import AheadLayouts, PatternLayouts
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, GpuKernel

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern

Kernels = Mapping[str, GpuKernel]

_ONE_TILE = TileStats(1, 0, 0)


class Prediction(NamedTuple):
    """A kernel, and what it should cost."""

    kernel: GpuKernel
    cost: Cost


class AheadPlan(NamedTuple):
    """A kernel that may be prepared while the analysis runs, and the analysis that it needs."""

    kernel: GpuKernel
    request: AnalysisRequest


class CountedKernel(NamedTuple):
    """A kernel whose cost depends on counts of tiles: what to count, and its time if all tiles of
    the matrix are computed."""

    kernel: GpuKernel
    request: AnalysisRequest
    full_us: float


class Planner:
    """Plans the problems of one operator by the kernels that are registered for it."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.context = functools.lru_cache(maxsize=1024)(
            functools.partial(PlanningContext, kernels)
        )
        self.refuses = functools.lru_cache(maxsize=1024)(self._refuses)

    def _refuses(self, problem: SddmmProblem, device: Device) -> str | None:
        """None if a kernel computes `problem` on `device`, else the reason of the first kernel."""
        reasons: list[str] = []
        for kernel in self.kernels.values():
            reason = kernel.refuses(problem, device)
            if reason is None:
                return None
            reasons.append(reason)
        return reasons[0]

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        device: Device,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
    ) -> GpuExecutor:
        """The launches for a problem on a device.

        kernel: request one by name. calls: the number of runs to expect; of a single one the
        kernel serves that prepares least.
        """
        preparation = _Preparation(self.context(problem, device), pattern)
        if kernel is not None:
            return preparation.requested(kernel)
        if calls <= 1 or problem.nnz == 0:
            return preparation.cheapest()
        return preparation.fastest()


class PlanningContext:
    """Planning decisions that depend only on the problem and the device.

    They are cached and reused for every pattern. uncounted: the kernels whose cost needs no count
    of tiles, the fastest first. counting: what to count for the others, or None if that cannot pay.
    ahead: what may be prepared while the first analysis runs. uniform_threshold: a sorted pattern
    with at least this many non-empty row segments counts as uniform, and its tiles are not counted.
    executor(plans, explanation): what runs the plans of a kernel.
    """

    def __init__(self, kernels: Kernels, problem: SddmmProblem, device: Device) -> None:
        self.kernels, self.problem, self.device = kernels, problem, device
        self.model = device_model(device)
        self.refusals: dict[str, str] = {}
        self.uncounted: list[Prediction] = []
        self._countable: list[GpuKernel] = []  # those whose cost depends on counts of tiles
        for name, kernel in kernels.items():
            reason = kernel.refuses(problem, device)
            if reason is not None:
                self.refusals[name] = reason
                continue
            cost = kernel.cost_us(problem, None, self.model)
            if cost is None:
                self._countable.append(kernel)
            else:
                self.uncounted.append(Prediction(kernel, cost))
        self.uncounted.sort(key=_run_us)
        # A kernel made of others has no reason of its own to explain.
        explained = {n: reason for n, reason in self.refusals.items() if not kernels[n].parts}
        self.executor = functools.partial(
            GpuExecutor, refusals=explained, device_index=device.index,
            current_device=loader.runtime.current_device,
        )  # fmt: skip
        fastest = self._fastest_on_a_full_matrix()
        self.counting = None if fastest is None else fastest.request
        self.ahead = self._ahead(fastest)
        self.uniform_threshold = 0.0
        if self.counting is not None and self.counting.block is not None:
            self.uniform_threshold = uniform_threshold(problem, self.counting.block[1])

    @functools.cached_property
    def cheapest(self) -> GpuKernel | None:
        """The kernel that prepares least of those that may be prepared while the analysis runs,
        whatever the order of the nonzeros."""
        any_order = [
            prediction
            for prediction in self.uncounted
            if prediction.kernel.needs_ahead(self.problem, self.model) == ROW_IDS
        ]
        return min(any_order, key=_prepare_us).kernel if any_order else None

    def rank(self, stats: TileStats | None) -> list[Prediction]:
        """All kernels worth considering, the fastest first; stats: of the counted tiles."""
        ranking = list(self.uncounted)
        for kernel in self._countable if stats is not None else ():
            if kernel.needs(self.problem, self.model) == self.counting:
                cost = kernel.cost_us(self.problem, stats, self.model)
                if cost is not None:
                    ranking.append(Prediction(kernel, cost))
        return sorted(ranking, key=_run_us)

    def rank_if_uniform(self) -> list[Prediction]:
        """The ranking for a uniform pattern."""
        counting = self.counting
        assert counting is not None
        tiles = counting.tile_count((self.problem.m, self.problem.n))
        return self.rank(uniform_tile_stats(self.problem, tiles, counting.min_tile_nnz))

    def explain_ahead(self) -> list[str]:
        """The explanation of what was prepared ahead.

        An executor holds this method, so no object here may hold a pattern: it would be a cycle.
        """
        return _explain(self.uncounted if self.counting is None else self.rank_if_uniform())

    def _fastest_on_a_full_matrix(self) -> CountedKernel | None:
        """The kernel whose size of tiles is counted.

        None where a single tile takes longer than what prepares least: then nothing is counted.
        """
        problem, model = self.problem, self.model
        fastest: CountedKernel | None = None
        one_tile_us = 0.0
        for kernel in self._countable:
            one_tile = kernel.cost_us(problem, _ONE_TILE, model)
            if one_tile is None or kernel.parts:  # a kernel made of others needs what they need
                continue
            request = kernel.needs(problem, model)
            tiles = request.tile_count((problem.m, problem.n))
            cost = kernel.cost_us(problem, TileStats(tiles, 0, 0), model)
            if cost is not None and (fastest is None or cost.run_us < fastest.full_us):
                fastest = CountedKernel(kernel, request, cost.run_us)
                one_tile_us = one_tile.run_us
        if fastest is not None and self.uncounted:
            cheapest = min(self.uncounted, key=_prepare_us)
            if one_tile_us >= cheapest.cost.run_us:
                return None
        return fastest

    def _ahead(self, fastest: CountedKernel | None) -> AheadPlan | None:
        """The kernel to prepare on the assumption that the pattern is sorted and uniform."""
        best = self.uncounted[0] if self.uncounted else None
        if fastest is not None and (best is None or fastest.full_us < best.cost.run_us):
            request = fastest.kernel.needs_ahead(self.problem, self.model)
            if request is not None:
                return AheadPlan(fastest.kernel, request)
        if best is None:
            return None
        request = best.kernel.needs_ahead(self.problem, self.model)
        if request is None:
            return None
        if fastest is not None:  # row segments are as wide as a tile
            request = request._replace(block=fastest.request.block)
        return AheadPlan(best.kernel, request)


class _Preparation:
    """The preparation of one pattern for one problem."""

    def __init__(self, context: PlanningContext, pattern: SparsePattern) -> None:
        self._context, self._pattern = context, pattern

    def requested(self, name: str) -> GpuExecutor:
        """The kernel that the caller named; ValueError if there is none, or if it refuses."""
        context = self._context
        kernel = context.kernels.get(name)
        if kernel is None:
            names = ", ".join(context.kernels)
            raise ValueError(f"kernel must be one of {names}, got {name!r}")
        reason = context.refusals.get(name)
        if reason is not None:
            raise ValueError(f"kernel {name!r}{':' if kernel.parts else ''} {reason}")
        request = kernel.needs(context.problem, context.model)
        return self._prepare(kernel, request, lambda: [f"kernel   {name}, as demanded"])

    def cheapest(self) -> GpuExecutor:
        """The kernel that prepares least."""
        cheapest = self._context.cheapest
        if cheapest is None:
            return self.fastest()
        explanation = [f"kernel   {cheapest.name}, which prepares least"]
        return self._prepare_ahead(AheadPlan(cheapest, ROW_IDS), lambda: explanation)[1]

    def fastest(self) -> GpuExecutor:
        """The kernel with the least predicted time of a run."""
        context = self._context
        if context.ahead is not None:
            analysis, executor = self._prepare_ahead(context.ahead, context.explain_ahead)
            if context.counting is None:
                serves = analysis.rows_ascend
            else:
                serves = analysis.ascends and analysis.row_segments >= context.uniform_threshold
            if serves:
                return executor
        stats = None
        if context.counting is not None:
            stats = AheadLayouts(self._pattern, context.device, context.counting).wait().stats
        ranking = context.rank(stats)
        request = context.counting or ROW_IDS
        return self._prepare(ranking[0].kernel, request, lambda: _explain(ranking))

    def _prepare(
        self, kernel: GpuKernel, request: AnalysisRequest, explanation: Explanation
    ) -> GpuExecutor:
        """Wait for the work arrays too: the next call may come on another stream."""
        context = self._context
        layouts = PatternLayouts(self._pattern, context.device, request)
        plans = kernel.prepare(layouts, context.problem, context.model)
        loader.runtime.wait(context.device.index)
        return context.executor(plans, explanation)

    def _prepare_ahead(
        self, ahead: AheadPlan, explanation: Explanation
    ) -> tuple[Analysis, GpuExecutor]:
        """The analysis of the pattern, and what is prepared from it while the GPU still runs it."""
        context = self._context
        layouts = AheadLayouts(self._pattern, context.device, ahead.request)
        try:
            plans = ahead.kernel.prepare(layouts, context.problem, context.model)
            executor = context.executor(plans, explanation)
        finally:
            analysis = layouts.wait()
        return analysis, executor


def _run_us(prediction: Prediction) -> float:
    return prediction.cost.run_us


def _prepare_us(prediction: Prediction) -> float:
    return prediction.cost.prepare_us


def _explain(ranking: list[Prediction]) -> list[str]:
    best, *others = (f"{p.kernel.name}: {p.cost.run_us:.3g} us predicted" for p in ranking)
    return [f"kernel   {best}", *(f"  not    {other}" for other in others)]
