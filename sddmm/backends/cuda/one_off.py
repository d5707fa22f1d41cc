"""Plans a single run of a pattern: nothing is sorted, no tile is counted.

The choice follows from the problem alone, so that kernels are prepared while the GPU still analyses
the pattern: those that take the nonzeros in any order, and those that compute every tile.
"""

from __future__ import annotations

import functools
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
    """A kernel for a single run, the analysis that it needs, and the time of both together."""

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

        first_run: launched behind the analysis, before the host waits for it, if the kernel is
        guarded. ValueError, as SparsePattern.check, for a wrong pattern.
        """
        for candidate in self.choose(problem, device):
            layouts = AheadLayouts(pattern, device, candidate.request, first_run is not None)
            try:
                plans = candidate.kernel.prepare(layouts, problem, device_model(device))
                explanation = functools.partial(self._explain, candidate, problem, device)
                current_device = loader.runtime.current_device
                executor = GpuExecutor(plans, explanation, {}, device.index, current_device)
                if first_run is not None and all(plan.is_guarded for plan in plans):
                    first_run(executor)
            finally:
                analysis = layouts.wait()
            if analysis.ascends or candidate.request == ROW_IDS:
                return executor
        return None

    def _choose(self, problem: SddmmProblem, device: Device) -> list[Candidate]:
        """The fastest kernel, and if that needs ascending columns, one that needs no order."""
        ranking = [c for c in self._rank(problem, device) if not c.kernel.refuses(problem, device)]
        any_order = [candidate for candidate in ranking if candidate.request == ROW_IDS]
        return [*(c for c in ranking[:1] if c.request != ROW_IDS), *any_order[:1]]

    def _rank(self, problem: SddmmProblem, device: Device) -> list[Candidate]:
        """The kernels for a single run, the fastest first; those that could not be are left out."""
        model = device_model(device)
        is_dense = problem.nnz >= _MIN_DENSITY * problem.m * problem.n
        facts = UniformFacts((problem.m, problem.n), problem.nnz, every_tile=True)
        ranking: list[Candidate] = []
        small = problem._replace(m=_SIZE, n=_SIZE, k=_SIZE, nnz=_SIZE)
        for kernel in self._serving(small, device):
            if kernel.tile_sizes and not is_dense:
                continue
            request = kernel.needs_ahead(problem, model)
            cost = None if request is None else kernel.cost_us(problem, facts, model)
            if request is not None and cost is not None:
                total_us = cost.run_us + _analysis_us(problem, request, model)
                ranking.append(Candidate(kernel, request, total_us))
        return sorted(ranking, key=lambda candidate: candidate.total_us)

    def _kernels_for(self, small: SddmmProblem, device: Device) -> list[GpuKernel]:
        """The kernels that serve small problems of these dtypes."""
        return [kernel for kernel in self._kernels if kernel.refuses(small, device) is None]

    def _explain(self, chosen: Candidate, problem: SddmmProblem, device: Device) -> list[str]:
        """An executor holds this method, so no object of it may hold a pattern: a cycle."""
        lines = [f"kernel   {chosen.kernel.name}: {chosen.total_us:.3g} us predicted of one run"]
        for other in self._rank(problem, device):
            if other.kernel is not chosen.kernel:
                lines.append(f"  not    {other.kernel.name}: {other.total_us:.3g} us predicted")
        for kernel in self._kernels:
            reason = kernel.refuses(problem, device)
            if reason is not None and not kernel.parts:
                lines.append(f"  not    {kernel.name}: {reason}")
        return lines


def _analysis_us(problem: SddmmProblem, request: AnalysisRequest, model: DeviceModel) -> float:
    """The bytes that an analysis reads and writes, beside what every analysis takes."""
    written = 4 * problem.nnz
    if request.tile_row_offsets:
        written = 4 * request.offset_count((problem.m, problem.n))
    return 1e6 * (problem.nnz * problem.index_dtype.itemsize + written) / model.memory_bytes
