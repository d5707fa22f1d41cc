"""What tiles take in a single run, of a mask and of other patterns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.facts import CountedFacts, PatternFacts, TileCounts
from sddmm.backends.cuda.kernels.column_runs.host import MASK_RUN
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.tile import BlockTileKernel
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, GpuKernel

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# What the host takes longer for tiles than for a gather, while the GPU analyses, then to launch;
# and the bytes that could be read in the time in which an analysis collects row offsets
# of tiles, per nonzero. Measured on an H200, by first calls of `+study=regret`.
_HOST_US, _LAUNCH_US = 35.0, 20.0
_OFFSETS_BYTES = 18
# The nonzeros up to which tiles are launched before the host knows whether a pattern is a mask: its
# rows could be stored in less time then, but by less than the host waits. And what the host takes
# longer for that than for a gather: on hosts of H200s 20 us in a loop of such calls, 40 and more
# where other work has filled the CPU's caches between them.
MOST_AT_ONCE, _AT_ONCE_US = 2**21, 35.0
# A run whose operands and offsets no run before it has read, over one of many.
_FIRST_RUN = 1.1
# The row offsets of tiles per nonzero up to which they are collected.
_MOST_OFFSETS = 2
# What listing the tiles that are not empty takes, beside reading all offsets; and how many times as
# much a mask must gain by it.
_LIST_US, _WORTH_LIST = 10.0, 3
# The tiles of a mask in proportion to as many full ones: those of 64 x 64, and the power of a
# tile's area by which larger ones are more, as more of them stand across an edge.
_MASK_TILES, _MASK_AREA, _MORE_TILES = 1.2, 64 * 64, 0.25


class Candidate(NamedTuple):
    """A kernel for a single run, the analysis that it needs, and the time of both together; that
    is 0 if there is no other. lists_tiles: whether to list those that are not empty, as a mask
    gains by that."""

    kernel: GpuKernel
    request: AnalysisRequest
    total_us: float
    lists_tiles: bool = False


def runs_at_once(kernel: GpuKernel, problem: SddmmProblem) -> bool:
    """Whether all tiles are launched before the analysis is done, if they pay whatever it finds."""
    return isinstance(kernel, BlockTileKernel) and problem.nnz <= MOST_AT_ONCE


def first_run_us(
    kernel: GpuKernel,
    request: AnalysisRequest,
    problem: SddmmProblem,
    facts: PatternFacts,
    model: DeviceModel,
) -> float | None:
    """A single run, without its analysis; None if the kernel predicts none."""
    cost = kernel.cost_us(problem, facts, model)
    if cost is None:
        return None
    return cost.run_us if request == ROW_IDS else _FIRST_RUN * cost.run_us


def ahead_us(
    problem: SddmmProblem, request: AnalysisRequest, model: DeviceModel, at_once: bool = False
) -> float:
    """What a run waits for: the bytes of its analysis; if that is one of tiles, the host too.
    at_once: as `runs_at_once`."""
    if request == ROW_IDS:
        return 1e6 * problem.nnz * (problem.index_dtype.itemsize + 4) / model.memory_bytes
    offsets = 4 * request.offset_count((problem.m, problem.n))
    analysis_us = 1e6 * (problem.nnz * _OFFSETS_BYTES + offsets) / model.memory_bytes
    if at_once:
        return max(_AT_ONCE_US, analysis_us)
    return max(_HOST_US, analysis_us) + _LAUNCH_US


def _when_checked(candidate: Candidate, problem: SddmmProblem, model: DeviceModel) -> Candidate:
    """With the time of a run that waits for the analysis, in place of one at once."""
    ahead = functools.partial(ahead_us, problem, candidate.request, model)
    return candidate._replace(total_us=candidate.total_us + ahead() - ahead(at_once=True))


def with_time_of_mask(
    tiles: list[Candidate], problem: SddmmProblem, model: DeviceModel, is_late: bool = False
) -> list[tuple[Candidate, float]]:
    """The tile kernels whose row offsets are few enough to be collected, each with the time of a
    single run of a mask, its analysis included. They list tiles where a mask gains by it, unless
    they run at once. is_late: none does, as the choice waits for the analysis."""
    found: list[tuple[Candidate, float]] = []
    for candidate in tiles:
        kernel, request = candidate.kernel, candidate.request
        at_once = runs_at_once(kernel, problem)
        if at_once and is_late:
            candidate, at_once = _when_checked(candidate, problem, model), False
        offsets = request.offset_count((problem.m, problem.n))
        if offsets > _MOST_OFFSETS * problem.nnz:
            continue
        count = _tiles_of_mask(problem, request)
        empty = request.tile_count((problem.m, problem.n)) - count
        of_all, of_listed = (
            first_run_us(kernel, request, problem, facts, model)
            for facts in (
                _facts(problem, request, count, empty, is_mask=not at_once),
                _facts(problem, request, count),
            )
        )
        if of_all is None or of_listed is None:
            continue
        run_us, list_us = of_all, _LIST_US + 1e6 * 4 * offsets / model.memory_bytes
        # Clusters of blocks with such tiles share loads of tiles side by side, which a list parts.
        is_high = request.block is not None and request.block[0] > request.block[1]
        if not (at_once or is_high) and of_all - of_listed >= _WORTH_LIST * list_us:
            total_us = candidate.total_us + list_us
            candidate = candidate._replace(total_us=total_us, lists_tiles=True)
            run_us = of_listed + list_us
        found.append((candidate, run_us + ahead_us(problem, request, model, at_once)))
    return found


def _tiles_of_mask(problem: SddmmProblem, request: AnalysisRequest) -> int:
    """The number of tiles that a mask is taken to have: nearly full ones."""
    assert request.block is not None
    area = request.block[0] * request.block[1]
    more: float = _MASK_TILES * max(1.0, (area / _MASK_AREA) ** _MORE_TILES)
    total = request.tile_count((problem.m, problem.n))
    return min(total, round(more * problem.nnz / area) + 1)


def _facts(
    problem: SddmmProblem,
    request: AnalysisRequest,
    tiles: int,
    empty: int = 0,
    is_mask: bool = True,
) -> CountedFacts:
    """The facts of a pattern of so many tiles. empty: those without nonzeros that are launched.
    is_mask: whether runs are as long as tiles are wide; else no nonzero has a neighbour."""
    block = request.block
    assert block is not None
    runs = problem.nnz // block[1] if is_mask else problem.nnz
    return CountedFacts(problem.nnz, runs, True, {block: TileCounts(tiles, 0, (), empty)}, ())


class MostTiles(NamedTuple):
    """The number of tiles up to which computing those that are not empty is faster than gathering:
    of a mask, and of another pattern."""

    of_mask: int
    of_others: int

    def allow(self, problem: SddmmProblem, analysis: Analysis, launched: int) -> bool:
        """Whether so many tiles pay."""
        return launched <= (self.of_mask if _is_mask(problem, analysis) else self.of_others)


def most_tiles(
    tiles: Candidate,
    gather_us: float,
    gather_mask_us: float,
    problem: SddmmProblem,
    model: DeviceModel,
) -> MostTiles:
    """From all tiles, half of them, and so on, until they are faster: few of them may take longer
    than more, which occupy more multiprocessors. gather_us, gather_mask_us: of another pattern, and
    of a mask."""

    def most(us: float, is_mask: bool) -> int:
        count = above = tiles.request.tile_count((problem.m, problem.n))
        above_us = us
        while count > 0:
            facts = _facts(problem, tiles.request, count, is_mask=is_mask)
            run_us = first_run_us(tiles.kernel, tiles.request, problem, facts, model)
            if run_us is None:
                return 0
            if run_us <= us:
                part = (us - run_us) / max(above_us - run_us, 1e-9)
                return int(count + (above - count) * part)
            count, above, above_us = count // 2, count, run_us
        return 0

    return MostTiles(most(gather_mask_us, True), most(gather_us, False))


def tiles_pay(
    tiles: GpuKernel,
    gather: GpuKernel,
    device: Device,
    by_rows: bool,
    problem: SddmmProblem,
    analysis: Analysis,
    launched: int,
) -> bool:
    """Whether computing every tile is faster than gathering, by what the analysis has found.

    by_rows: whether gather_rows does what row_gather would. launched: the number of all tiles.
    """
    facts, model = _estimate(problem, analysis, launched), device_model(device)
    tiles_us = first_run_us(tiles, analysis.request, problem, facts, model)
    gather_us = first_run_us(gather, ROW_IDS, problem, facts, model)
    if tiles_us is None or gather_us is None:  # none of both is a candidate then
        return False
    if by_rows and _is_mask(problem, analysis):
        gather_us = min(gather_us, gather_rows.mask_us(problem, model))
    return tiles_us < gather_us


def _is_mask(problem: SddmmProblem, analysis: Analysis) -> bool:
    """Whether runs of consecutive columns are long."""
    return problem.nnz >= MASK_RUN * analysis.runs


def _estimate(problem: SddmmProblem, analysis: Analysis, total: int) -> CountedFacts:
    """What an analysis tells of its tiles, of which there are so many. Those of a mask that are not
    empty have nonzeros in most rows; others in as many as chance leaves."""
    block = analysis.request.block
    assert block is not None
    segments = problem.m * ceil_div(problem.n, block[1])
    part = min(1.0, analysis.row_segments / max(1, segments))
    if _is_mask(problem, analysis):
        part = min(1.0, _MASK_TILES * part)
    else:
        part = 1 - (1 - part) ** block[0]
    tiles = max(1, round(part * total))
    counts = {block: TileCounts(tiles, 0, (), total - tiles)}
    parts = ((block[1], analysis.row_segments),)
    return CountedFacts(problem.nnz, analysis.runs, True, counts, parts)
