"""Plans a single run of a pattern: nothing is sorted, no tile is counted.

The choice follows from the problem alone, so that kernels are prepared while the GPU still analyses
the pattern: those that take the nonzeros in any order, and those that compute every tile.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.runtime.device import Device
from sddmm.backends.base import FirstRun
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import GpuExecutor
from sddmm.backends.cuda.facts import UniformFacts
from sddmm.backends.cuda.pattern_layouts import AheadLayouts
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, GpuKernel

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern

# The density, nonzeros per entry of the matrix, below which no kernel that computes every tile is
# worth a look: an H200 gathers 1.4 % of the entries in the time of a whole half-precision product.
_MIN_DENSITY = 0.008
# A problem whose sizes no kernel refuses.
_SIZE = 128


class Candidate(NamedTuple):
    """A kernel for a single run, the analysis that it needs, and the time of both together; that
    is 0 if there is no other."""

    kernel: GpuKernel
    request: AnalysisRequest
    total_us: float


class OneOffPlanner:
    """Plans single runs by these kernels."""

    def __init__(self, kernels: tuple[GpuKernel, ...]) -> None:
        self._kernels = kernels
        self._serving = functools.lru_cache(maxsize=256)(self._kernels_for)
        self.choose = functools.lru_cache(maxsize=1024)(self._choose)

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        device: Device,
        first_run: FirstRun | None = None,
    ) -> GpuExecutor | None:
        """The fastest kernel for a single run; None if all that serve must be prepared longer.

        first_run: launched behind the analysis, before the host waits for it, if the kernel takes
        any indices. ValueError, as SparsePattern.check, for a wrong pattern.
        """
        for candidate in self.choose(problem, device):
            layouts = AheadLayouts(
                pattern, device, candidate.request,
                is_kept=first_run is None or first_run.keeps_pattern,
            )  # fmt: skip
            try:
                plans = candidate.kernel.prepare(layouts, problem, device_model(device))
                explanation = functools.partial(self._explain, candidate, problem, device)
                current_device = loader.runtime.current_device
                executor = GpuExecutor(plans, explanation, {}, device.index, current_device)
                if first_run is not None and all(plan.takes_any_indices for plan in plans):
                    first_run(executor)
            finally:
                analysis = layouts.wait()
            if analysis.ascends or candidate.request == ROW_IDS:
                return executor
        return None

    def _choose(self, problem: SddmmProblem, device: Device) -> list[Candidate]:
        """The fastest kernel, and if that needs ascending columns, one that needs no order."""
        small = problem._replace(m=_SIZE, n=_SIZE, k=_SIZE, nnz=_SIZE)
        any_order, every_tile = self._serving(small, device)
        is_sparse = problem.nnz < _MIN_DENSITY * problem.m * problem.n
        if is_sparse or not every_tile:
            if len(any_order) == 1 and any_order[0].refuses(problem, device) is None:
                return [Candidate(any_order[0], ROW_IDS, 0.0)]
            every_tile = []
        best: list[Candidate] = []
        for candidate in self._rank((*every_tile, *any_order), problem, device):
            if candidate.kernel.refuses(problem, device) is None:
                if candidate.request == ROW_IDS:
                    return [*best, candidate]
                best = best or [candidate]
        return best

    def _rank(
        self, kernels: Iterable[GpuKernel], problem: SddmmProblem, device: Device
    ) -> list[Candidate]:
        """The kernels for a single run, the fastest first; those that could not be are left out."""
        model = device_model(device)
        facts = UniformFacts((problem.m, problem.n), problem.nnz, every_tile=True)
        ranking: list[Candidate] = []
        for kernel in kernels:
            request = kernel.needs_ahead(problem, model)
            cost = None if request is None else kernel.cost_us(problem, facts, model)
            if request is not None and cost is not None:
                total_us = cost.run_us + _analysis_us(problem, request, model)
                ranking.append(Candidate(kernel, request, total_us))
        return sorted(ranking, key=_total_us)

    def _kernels_for(
        self, small: SddmmProblem, device: Device
    ) -> tuple[list[GpuKernel], list[GpuKernel]]:
        """The kernels that serve a single run of a small problem: those that take its nonzeros in
        any order, and those that compute every tile."""
        serving = [kernel for kernel in self._kernels if kernel.refuses(small, device) is None]
        ranking = self._rank(serving, small, device)
        any_order = [c.kernel for c in ranking if c.request == ROW_IDS]
        return any_order, [c.kernel for c in ranking if c.request != ROW_IDS]

    def _explain(self, chosen: Candidate, problem: SddmmProblem, device: Device) -> list[str]:
        """An executor holds this method, so no object of it may hold a pattern: a cycle."""
        serving = [k for k in self._kernels if k.refuses(problem, device) is None]
        ranking = self._rank(serving, problem, device)
        total_us = next(c.total_us for c in ranking if c.kernel is chosen.kernel)
        lines = [
            f"kernel   {chosen.kernel.name}: {total_us:.3g} us predicted of a single run, "
            "its analysis included"
        ]
        lines += [
            f"  not    {other.kernel.name}: {other.total_us:.3g} us predicted"
            for other in ranking
            if other.kernel is not chosen.kernel
        ]
        for kernel in self._kernels:
            reason = kernel.refuses(problem, device)
            if reason is not None and not kernel.parts:
                lines.append(f"  not    {kernel.name}: {reason}")
        return lines


def _total_us(candidate: Candidate) -> float:
    return candidate.total_us


def _analysis_us(problem: SddmmProblem, request: AnalysisRequest, model: DeviceModel) -> float:
    """The bytes that an analysis reads and writes, beside what every analysis takes."""
    written = 4 * problem.nnz
    if request.tile_row_offsets:
        written = 4 * request.offset_count((problem.m, problem.n))
    return 1e6 * (problem.nnz * problem.index_dtype.itemsize + written) / model.memory_bytes
