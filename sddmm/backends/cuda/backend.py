"""The GPU kernels of this package."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.base import resolve_lazy_view
from sddmm.backends.cuda import analysis, loader
from sddmm.backends.cuda import cost_model as choose
from sddmm.backends.cuda.analysis import ROWS, Analysis, Wanted, crow_of
from sddmm.backends.cuda.kernels import tile
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.kernels.row_gather import host as gather
from sddmm.backends.cuda.kernels.tile_wgmma import host as tile_tma
from sddmm.backends.cuda.kernels.windows import host as windows
from sddmm.backends.cuda.layouts import (
    Nonzeros,
    SortedRows,
    TileWork,
    by_row_and_column,
    every_tile,
    outside,
    tile_ids,
    tile_list,
    window_list,
)
from sddmm.backends.cuda.loader import Bound, Launch
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.backends.cuda.terms import quickest_first, terms_of
from sddmm.errors import out_of_memory
from sddmm.problem import Problem
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.pattern import SparsePattern

# Of a choice, a line or more; put into words when it is asked for.
Reason = Callable[[], list[str]]

# With rows, and by tiles of one size.
_ANALYSES_PER_PATTERN = 2

ANALYSES = DerivedKey[list[Analysis]]("analyses")
_BY_ROW = DerivedKey[Nonzeros]("nonzeros by row")
_SORTED = DerivedKey[Nonzeros]("nonzeros by row and column")


class GpuExecute:
    """The launches that compute a problem, one after the other, on the current stream.

    What follows from where the operands lie is worked out when they come to lie elsewhere.
    refusals: of the kernels that do not serve.
    """

    def __init__(
        self,
        launches: tuple[Launch, ...],
        reason: Reason,
        refusals: dict[str, str],
        index: int,
    ) -> None:
        self.launches, self.index = launches, index
        self._current_device = loader.runtime.current_device
        self._reason, self._refusals = reason, refusals
        # Replaced whole, never changed: another thread may be about to use it.
        self._last: tuple[object, list[Bound]] = (None, [])

    @property
    def notes(self) -> list[str]:
        told = [f"  not    {name}: {reason}" for name, reason in self._refusals.items()]
        return self._reason() + told

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        if self.index != self._current_device():
            with torch.cuda.device(self.index):  # the driver launches in the current context
                return self(a, b, values, alpha, out)
        a, b = resolve_lazy_view(a), resolve_lazy_view(b)
        if values is not None:
            values = resolve_lazy_view(values).contiguous()
        place = (a.data_ptr(), b.data_ptr(), a.stride(), b.stride())
        known, bounds = self._last
        if known != place:
            bounds, copies = self._bind(a, b.mT)
            if not copies:  # which are of the values as they are now
                self._last = (place, bounds)
        for bound in bounds:
            bound(0 if values is None else values.data_ptr(), out.data_ptr(), alpha)
        return None

    def _bind(self, a: Tensor, b_t: Tensor) -> tuple[list[Bound], list[Tensor]]:
        """The launches on these operands, and copies that must live until they are launched."""
        bounds, copies = [], []
        for launch in self.launches:
            operands = [x if launch.fits(x) else launch.lay_out(x) for x in (a, b_t)]
            bounds.append(launch.bind(operands[0], operands[1]))
            copies += [x for x in operands if x is not a and x is not b_t]
        return bounds, copies


class CudaBackend:
    """Serves every problem on a CUDA device, by the kernels of this package."""

    name = "cuda"
    kernels = (*KERNELS, choose.HYBRID)

    def available(self) -> str | None:
        return loader.runtime.unavailable()

    def refuses(self, problem: Problem) -> str | None:
        runtime, place = loader.runtime, problem.device
        return runtime.refuses(place) or _refusal(problem, runtime.device(place))

    def prepare(
        self,
        pattern: SparsePattern,
        problem: Problem,
        kernel: str | None = None,
        reuse: bool = True,
    ) -> GpuExecute:
        device = loader.runtime.device(problem.device)
        if device.index != loader.runtime.current_device():
            with torch.cuda.device(device.index):
                return self.prepare(pattern, problem, kernel, reuse)
        try:
            return prepared_for(pattern, problem, device, kernel, reuse)
        except torch.OutOfMemoryError as error:
            least = 4 * problem.nnz  # the rows
            what = f"preparing a plan of {problem.nnz} nonzeros"
            raise out_of_memory(f"{what}, at least,", least, problem.device) from error


def prepared_for(
    pattern: SparsePattern,
    problem: Problem,
    device: Device,
    kernel: str | None = None,
    reuse: bool = True,
) -> GpuExecute:
    """The launches for a problem on a device.

    kernel: demand one. reuse: whether what is prepared may pay in later runs.
    """
    return _Preparation(pattern, problem, device).make(kernel, reuse)


class _Preparation:
    """Making one plan. What follows from the pattern alone is kept with it, for the next."""

    def __init__(self, pattern: SparsePattern, problem: Problem, device: Device) -> None:
        self.pattern, self.problem, self.device = pattern, problem, device
        self.terms = terms_of(problem, device)
        self.newest: list[Analysis] = pattern.derive(ANALYSES, list)  # of the pattern

    def make(self, kernel: str | None, reuse: bool) -> GpuExecute:
        if kernel is not None:
            demanded = f"kernel   {kernel}, as demanded"
            return self._settled(self._demanded(kernel), lambda: [demanded])
        if not reuse or self.problem.nnz == 0:
            least = f"kernel   {choose.GATHER}, which prepares least"
            return self._meanwhile(ROWS, self._gather, lambda: [least])[1]
        return self._choose()

    def _choose(self) -> GpuExecute:
        spec, best = self.terms.counted_spec, self.terms.without_tiles[0].name
        if spec is None:
            reason = functools.partial(_told, self.terms.without_tiles)
            if best == choose.GATHER:
                return self._gathered(reason)
            return self._settled(self._single(KERNELS[best]), reason)
        if self.terms.all_tiles_pay or best == choose.GATHER:
            execute = self._made_for_even(spec)
            if execute is not None:
                return execute
        known, profile = self._counted(spec)
        ranked = self._ranked(spec, profile)
        best = ranked[0].name
        if best == choose.HYBRID:
            launches = self._hybrid(spec, known, profile)
        elif best == spec.name:
            launches = (self._tiled(spec, known, 1, profile.tiles),)
        else:
            launches = self._single(KERNELS[best])
        return self._settled(launches, lambda: _told(ranked))

    def _ranked(self, spec: KernelSpec, profile: choose.TileProfile) -> list[choose.Prediction]:
        by_tiles = choose.with_tiles(self.problem, spec, profile, self.terms.rates, self.device)
        return quickest_first([*self.terms.without_tiles, *by_tiles])

    def _ranked_if_even(self, spec: KernelSpec) -> list[choose.Prediction]:
        even = choose.even_profile(self.problem, spec, self._least(spec))
        return self._ranked(spec, even)

    def _made_for_even(self, spec: KernelSpec) -> GpuExecute | None:
        """What serves a sorted pattern that is spread evenly; None if it is not so: then its
        nonzeros have to be counted by tile."""
        terms = self.terms
        make = functools.partial(self._every_tile, spec) if terms.all_tiles_pay else self._gather
        known, execute = self._meanwhile(
            terms.even, make, lambda: _told(self._ranked_if_even(spec))
        )
        return execute if known.ascends and known.segments >= terms.even_segments else None

    def _gathered(self, reason: Reason) -> GpuExecute:
        """row_gather, of the nonzeros grouped by row."""
        known, execute = self._meanwhile(ROWS, self._gather, reason)
        if known.rows_ascend:
            return execute
        return self._settled(self._single(KERNELS[choose.GATHER]), reason)

    def _meanwhile(
        self, wanted: Wanted, make: Callable[[Analysis], Launch], reason: Reason
    ) -> tuple[Analysis, GpuExecute]:
        """An analysis, and what is made of it while the GPU looks at the pattern."""
        found = self._begun(wanted)
        try:
            execute = self._execute((make(found),), reason)
        finally:  # what is begun is finished before the thread begins another
            self._keep(found)
        return found, execute

    def _every_tile(self, spec: KernelSpec, found: Analysis) -> Launch:
        assert found.starts is not None
        tiles = every_tile(self.pattern.shape, spec.tile[:2], found.cols.device)
        return self._tile_launch(spec, TileWork(tiles, found.starts, found.cols, None))

    def _gather(self, found: Analysis) -> Launch:
        assert found.rows is not None
        stored = Nonzeros(found.rows, found.cols, None)
        return gather.prepare(KERNELS[choose.GATHER], stored, self.problem, self.device)

    def _demanded(self, kernel: str) -> tuple[Launch, ...]:
        if kernel == choose.HYBRID:
            spec = self.terms.tile_spec
            if spec is None:
                raise ValueError(f"kernel {kernel!r}: no tile kernel computes {self.problem.dtype}")
            return self._hybrid(spec, *self._counted(spec))
        if kernel not in KERNELS:
            names = ", ".join([*KERNELS, choose.HYBRID])
            raise ValueError(f"kernel must be one of {names}, got {kernel!r}")
        if kernel in self.terms.refusals:
            raise ValueError(f"kernel {kernel!r} {self.terms.refusals[kernel]}")
        return self._single(KERNELS[kernel])

    def _single(self, spec: KernelSpec) -> tuple[Launch, ...]:
        problem, device = self.problem, self.device
        if spec.family == "gather":
            return (gather.prepare(spec, self._grouped(), problem, device),)
        if spec.family == "windows":
            width = windows.width_of(spec, problem)
            if width == 0:
                raise ValueError(f"kernel {spec.name!r} holds no row of k = {problem.k}")
            work = window_list(self._grouped(), problem.n, width)
            return (windows.prepare(spec, work, problem, device),)
        known, profile = self._counted(spec)
        return (self._tiled(spec, known, 1, profile.tiles),)

    def _hybrid(
        self, spec: KernelSpec, known: Analysis, profile: choose.TileProfile
    ) -> tuple[Launch, ...]:
        assert known.counts is not None
        grouped, least = self._grouped(), known.wanted.least
        ids = tile_ids(grouped, self.problem.n, spec.tile[:2])
        rest = outside(grouped, ids, known.counts, least)
        gathered = gather.prepare(KERNELS[choose.GATHER], rest, self.problem, self.device)
        return (self._tiled(spec, known, least, profile.worth_tiles), gathered)

    def _tiled(self, spec: KernelSpec, known: Analysis, least: int, chosen: int) -> Launch:
        """The `chosen` tiles of at least `least` nonzeros."""
        assert known.counts is not None
        tiles = tile_list(known.counts, self.pattern.shape, spec.tile[:2], least, chosen)
        rows = self._sorted()
        starts = tile.listed_starts(rows, tiles, self.problem.m, self.device)
        return self._tile_launch(spec, TileWork(tiles, starts, rows.cols, rows.order))

    def _tile_launch(self, spec: KernelSpec, work: TileWork) -> Launch:
        prepare = tile_tma.prepare if spec.family == "tile_tma" else tile.prepare
        return prepare(spec, work, self.problem, self.device)

    def _grouped(self) -> Nonzeros:
        """The nonzeros by row."""
        known = self._analysed(ROWS)
        assert known.rows is not None
        stored = Nonzeros(known.rows, known.cols, None)
        if known.rows_ascend:
            return stored
        return self.pattern.derive(_BY_ROW, lambda: by_row_and_column(stored, self.pattern.shape))

    def _sorted(self) -> SortedRows:
        """The nonzeros by row, and by column within a row."""
        known, grouped = self._analysed(ROWS), self._grouped()
        if not known.ascends and grouped.order is None:
            grouped = self.pattern.derive(
                _SORTED, lambda: by_row_and_column(grouped, self.pattern.shape)
            )
        crow = crow_of(self.pattern, grouped.rows)
        return SortedRows(crow, grouped.cols, grouped.order)

    def _counted(self, spec: KernelSpec) -> tuple[Analysis, choose.TileProfile]:
        """The pattern with the counts of a kernel's tiles."""
        known = self._analysed(Wanted(spec.tile[:2], self._least(spec)))
        assert known.profile is not None
        return known, known.profile

    def _least(self, spec: KernelSpec) -> int:
        rates = self.terms.rates
        if spec.name not in rates.tiles:
            return 1
        return choose.least_nonzeros(self.problem, spec, rates)

    def _analysed(self, wanted: Wanted) -> Analysis:
        found = self._begun(wanted)
        self._keep(found)
        return found

    def _begun(self, wanted: Wanted) -> Analysis:
        """An analysis of the pattern that holds what is wanted: one that it has, or a new one."""
        for known in self.newest:
            if known.wanted == wanted or (wanted == ROWS and known.rows is not None):
                return known
        return analysis.begin(self.pattern, self.device, wanted)

    def _keep(self, found: Analysis) -> None:
        if not found.finished:
            self.newest.append(found.finish())
            del self.newest[:-_ANALYSES_PER_PATTERN]

    def _settled(self, launches: tuple[Launch, ...], reason: Reason) -> GpuExecute:
        """Waits for the work arrays: the next call may come on another stream."""
        loader.runtime.wait(self.device.index)
        return self._execute(launches, reason)

    def _execute(self, launches: tuple[Launch, ...], reason: Reason) -> GpuExecute:
        return GpuExecute(launches, reason, self.terms.refusals, self.device.index)


def _told(ranked: list[choose.Prediction]) -> list[str]:
    best, *others = (f"{p.name}: {p.us:.3g} us predicted" for p in ranked)
    return [f"kernel   {best}", *(f"  not    {other}" for other in others)]


@functools.lru_cache(maxsize=1024)
def _refusal(problem: Problem, device: Device) -> str | None:
    """Why not even the kernel that serves most computes a problem, or None."""
    return KERNELS[choose.GATHER].refuses(problem, device)
