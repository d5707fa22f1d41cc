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
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.cost_model import (
    Cost,
    TileStats,
    uniform_threshold,
    uniform_tile_stats,
)
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import Explanation, GpuExecutor, KernelPlan
from sddmm.backends.cuda.pattern_layouts import AheadLayouts, PatternLayouts
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, GpuKernel

if TYPE_CHECKING:
    from sddmm.problem import Problem
    from sddmm.sparse.pattern import SparsePattern

Kernels = Mapping[str, GpuKernel]


class Prediction(NamedTuple):
    """A kernel, and what it should cost."""

    kernel: GpuKernel
    cost: Cost


class AheadPlan(NamedTuple):
    """A kernel that may be prepared while the analysis runs, and the analysis that it needs."""

    kernel: GpuKernel
    request: AnalysisRequest


class Planner:
    """Plans the problems of one operator by the kernels that are registered for it."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.context = functools.lru_cache(maxsize=1024)(
            functools.partial(PlanningContext, kernels)
        )
        self.refuses = functools.lru_cache(maxsize=1024)(self._refuses)

    def _refuses(self, problem: Problem, device: Device) -> str | None:
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
        problem: Problem,
        device: Device,
        kernel: str | None = None,
        reuse: bool = True,
    ) -> GpuExecutor:
        """The launches for a problem on a device.

        kernel: request one by name. reuse: whether what is prepared may pay in later runs; else
        the kernel serves that prepares least.
        """
        preparation = _Preparation(self.context(problem, device), pattern)
        if kernel is not None:
            return preparation.requested(kernel)
        if not reuse or problem.nnz == 0:
            return preparation.cheapest()
        return preparation.fastest()


class PlanningContext:
    """Planning decisions that depend only on the problem and the device.

    They are cached and reused for every pattern. uncounted: the kernels whose cost needs no count
    of tiles, the fastest first. counting: what to count for the others, or None if that cannot pay.
    ahead: what may be prepared while the first analysis runs. uniform_threshold: a sorted pattern
    with at least this many non-empty row segments counts as uniform, and its tiles are not counted.
    """

    def __init__(self, kernels: Kernels, problem: Problem, device: Device) -> None:
        self.kernels, self.problem, self.device = kernels, problem, device
        self.model = device_model(device)
        refusals = {name: kernel.refuses(problem, device) for name, kernel in kernels.items()}
        self.serving = [kernel for name, kernel in kernels.items() if refusals[name] is None]
        self.refusals = {name: reason for name, reason in refusals.items() if reason is not None}
        self.uncounted = self._by_run_time(self.serving, None)
        self._counted, self.counting = self._counted_kernels()
        self.cheapest = self._cheapest_ahead()
        self.ahead = self._ahead()
        self.uniform_threshold = 0.0
        if self.counting is not None and self.counting.block is not None:
            self.uniform_threshold = uniform_threshold(problem, self.counting.block[1])

    @functools.cached_property
    def explained_refusals(self) -> dict[str, str]:
        """The refusals of kernels that are not made of others, whose reasons are told already."""
        return {
            name: reason for name, reason in self.refusals.items() if not self.kernels[name].parts
        }

    def rank(self, stats: TileStats | None) -> list[Prediction]:
        """All kernels worth considering, the fastest first; stats: of the counted tiles."""
        counted = [] if stats is None else self._by_run_time(self._counted, stats)
        return sorted([*self.uncounted, *counted], key=_run_us)

    def rank_if_uniform(self) -> list[Prediction]:
        """The ranking for a uniform pattern."""
        assert self.counting is not None
        return self.rank(
            uniform_tile_stats(self.problem, self._tile_count(), self.counting.min_tile_nnz)
        )

    def _by_run_time(self, kernels: list[GpuKernel], stats: TileStats | None) -> list[Prediction]:
        costs = ((kernel, kernel.cost_us(self.problem, stats, self.model)) for kernel in kernels)
        predictions = [Prediction(kernel, cost) for kernel, cost in costs if cost is not None]
        return sorted(predictions, key=_run_us)

    def _counted_kernels(self) -> tuple[list[GpuKernel], AnalysisRequest | None]:
        """The kernels that depend on counts of one tile size, and the analysis that counts.

        Nothing is counted where a single tile takes longer than what prepares least.
        """
        requests = {
            kernel: request
            for kernel in self.serving
            if (request := kernel.needs(self.problem, self.model)).min_tile_nnz > 0
        }
        full = [
            Prediction(kernel, cost)
            for kernel, request in requests.items()
            if (cost := self._cost_of_tiles(kernel, self._tiles_in(request))) is not None
        ]
        if not full:
            return [], None
        fastest = min(full, key=_run_us).kernel
        counting = requests[fastest]
        one_tile = self._cost_of_tiles(fastest, 1)
        if self.uncounted and one_tile is not None:
            least = min(self.uncounted, key=_prepare_us)
            if one_tile.run_us >= least.cost.run_us:
                return [], None
        return [kernel for kernel, request in requests.items() if request == counting], counting

    def _cheapest_ahead(self) -> AheadPlan | None:
        """The kernel that prepares least of those that may be prepared for any order of nonzeros
        while the analysis runs."""
        any_order = [
            prediction
            for prediction in self.uncounted
            if prediction.kernel.needs_ahead(self.problem, self.model) == ROW_IDS
        ]
        if not any_order:
            return None
        return AheadPlan(min(any_order, key=_prepare_us).kernel, ROW_IDS)

    def _ahead(self) -> AheadPlan | None:
        """The kernel to prepare on the assumption that the pattern is sorted and uniform."""
        candidates = [
            (prediction.cost.run_us, prediction.kernel, self._needs_ahead(prediction.kernel))
            for prediction in self.uncounted
        ]
        for kernel in self._counted:
            cost = self._cost_of_tiles(kernel, self._tile_count())
            request = self._needs_ahead(kernel)
            if cost is not None and request is not None:
                candidates.append((cost.run_us, kernel, request))
        if not candidates:
            return None
        _, kernel, request = min(candidates, key=lambda candidate: candidate[0])
        if request is None:
            return None
        if self.counting is not None:  # row segments are as wide as a tile
            request = request._replace(block=self.counting.block)
        return AheadPlan(kernel, request)

    def _needs_ahead(self, kernel: GpuKernel) -> AnalysisRequest | None:
        return kernel.needs_ahead(self.problem, self.model)

    def _cost_of_tiles(self, kernel: GpuKernel, tiles: int) -> Cost | None:
        return kernel.cost_us(self.problem, TileStats(tiles, 0, 0), self.model)

    def _tiles_in(self, request: AnalysisRequest) -> int:
        return request.tile_count((self.problem.m, self.problem.n))

    def _tile_count(self) -> int:
        return 0 if self.counting is None else self._tiles_in(self.counting)


class _Preparation:
    """The preparation of one pattern for one problem."""

    def __init__(self, context: PlanningContext, pattern: SparsePattern) -> None:
        self._context, self._pattern = context, pattern
        self._layouts = PatternLayouts(pattern, context.device)

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
        name = cheapest.kernel.name
        return self._prepare_ahead(cheapest, lambda: [f"kernel   {name}, which prepares least"])[1]

    def fastest(self) -> GpuExecutor:
        """The kernel with the least predicted time of a run."""
        context = self._context
        if context.ahead is not None:
            analysis, executor = self._prepare_ahead(context.ahead, self._explain_ahead)
            if self._serves_as_assumed(analysis):
                return executor
        stats = None
        if context.counting is not None:
            stats = self._layouts.analysis(context.counting).stats
        ranking = context.rank(stats)
        request = context.counting or ROW_IDS
        return self._prepare(ranking[0].kernel, request, lambda: _explain(ranking))

    def _serves_as_assumed(self, analysis: Analysis) -> bool:
        """Whether what was prepared ahead is the best for the pattern as the analysis found it."""
        context = self._context
        if context.counting is None:
            return analysis.rows_ascend
        return analysis.ascends and analysis.row_segments >= context.uniform_threshold

    def _prepare(
        self, kernel: GpuKernel, request: AnalysisRequest, explanation: Explanation
    ) -> GpuExecutor:
        """Wait for the work arrays too: the next call may come on another stream."""
        context = self._context
        layouts = PatternLayouts(self._pattern, context.device, request)
        plans = kernel.prepare(layouts, context.problem, context.model)
        loader.runtime.wait(context.device.index)
        return self._executor(plans, explanation)

    def _prepare_ahead(
        self, ahead: AheadPlan, explanation: Explanation
    ) -> tuple[Analysis, GpuExecutor]:
        """The analysis of the pattern, and what is prepared from it while the GPU still runs it."""
        context, launched = self._context, self._layouts.launch(ahead.request)
        layouts = AheadLayouts(launched, self._pattern.shape)
        try:
            plans = ahead.kernel.prepare(layouts, context.problem, context.model)
            executor = self._executor(plans, explanation)
        finally:  # a thread waits for one analysis before it launches another
            self._layouts.keep(launched)
        return launched, executor

    def _executor(self, plans: tuple[KernelPlan, ...], explanation: Explanation) -> GpuExecutor:
        context = self._context
        return GpuExecutor(
            plans, explanation, context.explained_refusals, context.device.index,
            loader.runtime.current_device,
        )  # fmt: skip

    def _explain_ahead(self) -> list[str]:
        context = self._context
        if context.counting is None:
            return _explain(context.uncounted)
        return _explain(context.rank_if_uniform())


def _run_us(prediction: Prediction) -> float:
    return prediction.cost.run_us


def _prepare_us(prediction: Prediction) -> float:
    return prediction.cost.prepare_us


def _explain(ranking: list[Prediction]) -> list[str]:
    best, *others = (f"{p.kernel.name}: {p.cost.run_us:.3g} us predicted" for p in ranking)
    return [f"kernel   {best}", *(f"  not    {other}" for other in others)]
