"""Plans a single run of a pattern: nothing is sorted, no tile is counted.

The choice follows from the problem alone, so that kernels are prepared while the GPU still analyses
the pattern: those that take the nonzeros in any order, and those that compute every tile. Only
where gathering takes long, and tiles would not if the pattern were a mask, the choice waits for the
analysis, which tells how long runs of consecutive columns are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.runtime.device import Device
from sddmm.backends.base import FirstRun
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import GpuExecutor, KernelPlan
from sddmm.backends.cuda.facts import UniformFacts
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.pattern_layouts import AheadLayouts
from sddmm.backends.cuda.planning_context import refused
from sddmm.backends.cuda.spec import ROW_IDS, GpuKernel
from sddmm.backends.cuda.tile_costs import (
    Candidate,
    MostTiles,
    ahead_us,
    first_run_us,
    most_tiles,
    runs_at_once,
    tiles_pay,
    with_time_of_mask,
)
from sddmm.dtypes import DTYPES
from sddmm.problem import alike

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern

# The density, nonzeros per entry of the matrix, below which no kernel that computes every tile is
# worth a look: an H200 gathers 1.4 % of the entries in the time of a whole half-precision product.
_MIN_DENSITY = 0.008
# A problem whose sizes no kernel refuses.
_SIZE = 128

# When tiles may pay whether the pattern is a mask or not, or it may pay to wait for the analysis:
# the products (nonzeros times k) and the time of gathering from which on; the part of a first call
# by gathering that may be lost on patterns that turn out not to be masks, of half types and of
# others, in which torch gathers nearly as fast; and what any first call takes beside.
_LATE_PRODUCTS, _LATE_US = 1e8, 80.0
_MOST_HALF_LOSS, _MOST_LOSS, _ANY_CALL_US = 0.15, 0.04, 45.0
# What a look at a few columns takes before a pattern is gathered; and the part of gathering a mask
# that tiles must promise to gain, as slow hosts take longer for more launches and waits.
_PROBE_US, _LEAST_GAIN = 20.0, 0.35
# The part by which L1 shortens the gathering of dense rows by gather_rows, wherever their nonzeros
# are: in full from this density on, below it in proportion.
_DENSE_GAIN, _DENSE = 0.19, 0.06


class Choice(NamedTuple):
    """The kernels to try in turn: the next serves if columns turn out not to ascend. late: the tile
    kernel to compare with the first of them when the analysis, of its request, is done. most_tiles:
    the number of tiles up to which it is faster, if it lists them. is_probed: whether it is worth
    the analysis for patterns alone that look like a mask."""

    candidates: list[Candidate]
    late: Candidate | None = None
    is_probed: bool = False
    most_tiles: MostTiles | None = None


class OneOffPlanner:
    """Plans single runs by these kernels."""

    def __init__(self, kernels: tuple[GpuKernel, ...]) -> None:
        self._kernels = kernels
        self._serving = functools.lru_cache(maxsize=256)(self._kernels_for)
        self._choice = functools.lru_cache(maxsize=1024)(self._choose)

    def choose(self, problem: SddmmProblem, device: Device, by_rows: bool = False) -> Choice:
        """The kernels for a problem, which are those for all that are alike. by_rows: whether
        gather_rows does what row_gather would."""
        choice: Choice = self._choice(alike(problem), device, by_rows)
        kernels = [x.kernel for x in (*choice.candidates, choice.late) if x is not None]
        if any(kernel.refuses(problem, device) is not None for kernel in kernels):
            choice = self._choice(problem, device, by_rows)
        return choice

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        device: Device,
        first_run: FirstRun | None = None,
    ) -> GpuExecutor | None:
        """The fastest kernel for a single run; None if all that serve must be prepared longer.

        first_run: launched behind the analysis, before the host waits for it, if the kernel takes
        any indices; else as soon as the pattern is found to be right. ValueError, as
        SparsePattern.check, for a wrong pattern.
        """
        is_kept = first_run is None or first_run.keeps_pattern
        by_rows = gather_rows.serves(problem, device, pattern.is_csr, is_kept)
        choice = self.choose(problem, device, by_rows)
        if choice.late is not None:
            layouts = AheadLayouts(pattern, device, choice.late.request, is_kept)
            return self._prepare_late(layouts, problem, device, choice, first_run)
        for candidate in choice.candidates:
            layouts = AheadLayouts(pattern, device, candidate.request, is_kept)
            try:
                plans = candidate.kernel.prepare(layouts, problem, device_model(device))
                executor = self._executor(plans, candidate.kernel, problem, device)
                if first_run is not None and all(plan.takes_any_indices for plan in plans):
                    first_run(executor)
            finally:
                analysis = layouts.wait()
            if analysis.ascends or candidate.request == ROW_IDS:
                _launch(executor, first_run)
                return executor
        return None

    def _prepare_late(
        self,
        layouts: AheadLayouts,
        problem: SddmmProblem,
        device: Device,
        choice: Choice,
        first_run: FirstRun | None,
    ) -> GpuExecutor:
        """The faster of two kernels for a pattern that is analysed first."""
        late, kernel = choice.late, choice.candidates[0].kernel
        assert late is not None
        try:  # both, while the GPU is busy
            model = device_model(device)
            plans = {k.name: k.prepare(layouts, problem, model) for k in (kernel, late.kernel)}
        finally:
            analysis = layouts.wait()
        count = late.request.tile_count((problem.m, problem.n))
        pay = functools.partial(tiles_pay, late.kernel, kernel, device, False)
        if analysis.ascends and pay(problem, analysis, count):
            kernel = late.kernel
        executor = self._executor(plans[kernel.name], kernel, problem, device)
        _launch(executor, first_run)
        return executor

    def _executor(
        self,
        plans: tuple[KernelPlan, ...],
        kernel: GpuKernel,
        problem: SddmmProblem,
        device: Device,
    ) -> GpuExecutor:
        """What runs these plans."""
        explanation = functools.partial(self._explain, kernel, problem, device)
        return GpuExecutor(plans, explanation, device.index)

    def _choose(self, problem: SddmmProblem, device: Device, by_rows: bool) -> Choice:
        small = problem._replace(m=_SIZE, n=_SIZE, k=_SIZE, nnz=_SIZE)
        any_order, every_tile = self._serving(small, device)
        may_be_late = problem.nnz * problem.k * (problem.heads or 1) >= _LATE_PRODUCTS
        is_sparse = problem.nnz < _MIN_DENSITY * problem.m * problem.n
        any_order = _that_serve(any_order, problem, device)
        if not may_be_late or by_rows:  # few products, or gather_rows takes the place of the first
            any_order = any_order[:1]
        if (is_sparse and not may_be_late) or not every_tile:
            if len(any_order) == 1:
                return Choice([Candidate(any_order[0], ROW_IDS, 0.0)])
            every_tile = []
        tiles_that_serve = _that_serve(every_tile, problem, device)
        ranking = self._rank((*tiles_that_serve, *any_order), problem, device)
        any_order_first = next((c for c in ranking if c.request == ROW_IDS), None)
        if any_order_first is None:
            return Choice(ranking[:1])
        tiles = [candidate for candidate in ranking if candidate.request != ROW_IDS]
        if may_be_late and tiles and any_order_first.total_us >= _LATE_US:
            return self._choose_for_mask_or_not(tiles, any_order_first, problem, device, by_rows)
        best = ranking[:1] if ranking[0].request != ROW_IDS else []
        return Choice([*best, any_order_first])

    def _choose_for_mask_or_not(
        self,
        tiles: list[Candidate],
        gather: Candidate,
        problem: SddmmProblem,
        device: Device,
        by_rows: bool,
    ) -> Choice:
        """The tile kernel that is the fastest for the slower of a uniform pattern and a mask; and
        whether to wait for the analysis, which tells, because only one of both is worth tiles."""
        model = device_model(device)
        both = with_time_of_mask(tiles, problem, model)
        if not both:
            return Choice([gather])
        gather_us, gather_mask_us = _gather_us(gather, problem, model, by_rows)
        is_half = DTYPES[problem.dtype].is_half
        most_loss_us = (_MOST_HALF_LOSS if is_half else _MOST_LOSS) * (gather_us + _ANY_CALL_US)

        for_both = [
            (candidate, mask_us)
            for candidate, mask_us in both
            if candidate.total_us <= gather_us and mask_us <= gather_mask_us + most_loss_us
        ]
        if for_both:
            chosen, mask_us = min(for_both, key=lambda pair: max(pair[0].total_us, pair[1]))
            if chosen.total_us + mask_us < gather_us + gather_mask_us:
                return Choice([chosen, gather])
        both = with_time_of_mask(tiles, problem, model, is_late=True)
        chosen, mask_us = min(both, key=lambda pair: min(pair[0].total_us, pair[1]))
        gain_us, mask_gain_us = gather_us - chosen.total_us, gather_mask_us - mask_us
        is_probed = by_rows and mask_gain_us > gain_us
        loss_us = ahead_us(problem, chosen.request, model) - ahead_us(problem, ROW_IDS, model)
        least_us = loss_us
        if is_probed:
            loss_us, least_us = _PROBE_US, _LEAST_GAIN * gather_mask_us
        if max(gain_us, mask_gain_us) < least_us or loss_us > most_loss_us:
            return Choice([gather])
        most = most_tiles(chosen, gather_us, gather_mask_us, problem, model)
        request = chosen.request._replace(row_ids_too=True)
        late = chosen._replace(request=request, total_us=mask_us)
        return Choice([gather], late, is_probed, most if chosen.lists_tiles else None)

    def _rank(
        self, kernels: Iterable[GpuKernel], problem: SddmmProblem, device: Device
    ) -> list[Candidate]:
        """The kernels for a single run, the fastest first; those that could not be are left out."""
        model = device_model(device)
        facts = UniformFacts((problem.m, problem.n), problem.nnz, every_tile=True)
        ranking: list[Candidate] = []
        for kernel in kernels:
            request = kernel.needs_ahead(problem, model)
            if request is None:
                continue
            run_us = first_run_us(kernel, request, problem, facts, model)
            if run_us is not None:
                at_once = runs_at_once(kernel, problem)
                total_us = run_us + ahead_us(problem, request, model, at_once)
                ranking.append(Candidate(kernel, request, total_us))
        return sorted(ranking, key=_total_us)

    def _kernels_for(
        self, small: SddmmProblem, device: Device
    ) -> tuple[list[GpuKernel], list[GpuKernel]]:
        """The kernels that serve a single run of a small problem: those that take its nonzeros in
        any order, in the order of all kernels, and those that compute every tile."""
        serving = _that_serve(self._kernels, small, device)
        ranking = self._rank(serving, small, device)
        any_order = {c.kernel.name for c in ranking if c.request == ROW_IDS}
        return (
            [kernel for kernel in serving if kernel.name in any_order],
            [c.kernel for c in ranking if c.request != ROW_IDS],
        )

    def _explain(self, chosen: GpuKernel, problem: SddmmProblem, device: Device) -> list[str]:
        """An executor holds this method, so no object of it may hold a pattern: a cycle."""
        serving = _that_serve(self._kernels, problem, device)
        # `choose` has ranked them for an alike problem, or for this one if that was refused.
        rankings = (self._rank(serving, asked, device) for asked in (alike(problem), problem))
        ranking = next(r for r in rankings if any(c.kernel is chosen for c in r))
        total_us = next(c.total_us for c in ranking if c.kernel is chosen)
        lines = [
            f"kernel   {chosen.name}: {total_us:.3g} us predicted of a single run, "
            "its analysis included"
        ]
        late = self.choose(problem, device).late
        if late is not None and late.kernel is chosen:
            lines = [
                f"kernel   {chosen.name}: {late.total_us:.3g} us predicted of a mask, which the "
                "analysis has found"
            ]
        lines += [
            f"  not    {other.kernel.name}: {other.total_us:.3g} us predicted"
            for other in ranking
            if other.kernel is not chosen
        ]
        return lines + refused(self._kernels, problem, device)


def _that_serve(
    kernels: Iterable[GpuKernel], problem: SddmmProblem, device: Device
) -> list[GpuKernel]:
    return [kernel for kernel in kernels if kernel.refuses(problem, device) is None]


def _launch(executor: GpuExecutor, first_run: FirstRun | None) -> None:
    """Launch the first run, unless that was done, of a pattern that is found to be right."""
    if first_run is not None:
        first_run(executor)


def _gather_us(
    gather: Candidate, problem: SddmmProblem, model: DeviceModel, by_rows: bool
) -> tuple[float, float]:
    """The times of gathering a uniform pattern, and a mask."""
    if not by_rows:
        return gather.total_us, gather.total_us
    density = problem.nnz / max(1, problem.m * problem.n)  # of a wrong pattern, of no entries
    gather_us = gather.total_us * (1 - _DENSE_GAIN * min(1.0, density / _DENSE))
    return gather_us, min(gather_us, gather_rows.mask_us(problem, model))


def _total_us(candidate: Candidate) -> float:
    return candidate.total_us
