"""The GPU kernels of this package."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.device import Device
from gemm_core.device import device as device_of
from sddmm import analysis, choose
from sddmm.analysis import Analysis, crow_of
from sddmm.families import Bound, Launch, gather, tile, tile_tma, windows
from sddmm.memory import out_of_memory
from sddmm.partition import (
    Nonzeros,
    SortedRows,
    by_row_and_column,
    outside,
    tile_ids,
    tile_list,
    window_list,
)
from sddmm.pattern import SparsePattern
from sddmm.problem import Problem
from sddmm.rates import rates_of
from sddmm.registry import KERNELS
from sddmm.spec import KernelSpec

if TYPE_CHECKING:
    from sddmm.backends import Execute


class GpuExecute:
    """The launches that compute a problem, one after the other, on the current stream.

    What follows from where the operands lie is worked out when they come to lie elsewhere.
    reason: of the choice, a line or more; refusals: of the kernels that do not serve.
    """

    def __init__(
        self,
        launches: tuple[Launch, ...],
        reason: Callable[[], list[str]],
        refusals: dict[str, str],
        index: int,
    ) -> None:
        self.launches, self.index = launches, index
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
        if self.index != torch.cuda.current_device():
            with torch.cuda.device(self.index):  # the driver launches in the current context
                return self(a, b, values, alpha, out)
        if values is not None and not values.is_contiguous():
            values = values.contiguous()
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
    name = "cuda"

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        if not _can_compile():
            return "cuda.core, which compiles the kernels, is not installed"
        return None

    def refuses(self, problem: Problem) -> str | None:
        if problem.device.type != "cuda":
            return f"the pattern is on {problem.device}"
        return KERNELS[choose.GATHER].refuses(problem, device_of(_index(problem)))

    def prepare(
        self,
        pattern: SparsePattern,
        problem: Problem,
        kernel: str | None = None,
        reuse: bool = True,
    ) -> Execute:
        index = _index(problem)
        if index != torch.cuda.current_device():
            with torch.cuda.device(index):
                return self.prepare(pattern, problem, kernel, reuse)
        try:
            return prepared_for(pattern, problem, device_of(index), kernel, reuse)
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
        self.terms = _terms(problem, device)
        self._known: Analysis | None = None

    def make(self, kernel: str | None, reuse: bool) -> GpuExecute:
        if kernel is not None:
            demanded = f"kernel   {kernel}, as demanded"
            return self._execute(self._demanded(kernel), lambda: [demanded])
        if not reuse or self.problem.nnz == 0:
            least = f"kernel   {choose.GATHER}, which prepares least"
            return self._execute((self._gathered(grouped=False),), lambda: [least])
        return self._choose()

    def _choose(self) -> GpuExecute:
        terms, spec = self.terms, self.terms.counted_spec
        ranked = list(terms.without_tiles)
        if spec is None and ranked[0].name == choose.GATHER:
            return self._execute((self._gathered(grouped=True),), lambda: _told(ranked))
        profile = self._analysed(spec).profile
        if spec is not None and profile is not None:
            ranked += choose.with_tiles(self.problem, spec, profile, terms.rates, self.device)
        ranked.sort(key=_time)
        if ranked[0].name == choose.HYBRID and spec is not None:
            launches = self._hybrid(spec)
        else:
            launches = self._single(KERNELS[ranked[0].name])
        return self._execute(launches, lambda: _told(ranked))

    def _gathered(self, grouped: bool) -> Launch:
        """row_gather, made while the GPU looks at the pattern. grouped: by row, if it is not so."""
        spec, pending = KERNELS[choose.GATHER], self._begun()
        stored = Nonzeros(pending.rows, pending.cols, None)
        try:
            launch = gather.prepare(spec, stored, self.problem, self.device)
        finally:
            known = self._known = self._kept(pending)
        if grouped and not known.rows_ascend:
            launch = gather.prepare(spec, self.grouped, self.problem, self.device)
        return launch

    def _demanded(self, kernel: str) -> tuple[Launch, ...]:
        if kernel == choose.HYBRID:
            spec = self.terms.tile_spec
            if spec is None:
                raise ValueError(f"kernel {kernel!r}: no tile kernel computes {self.problem.dtype}")
            return self._hybrid(spec)
        if kernel not in KERNELS:
            names = ", ".join([*KERNELS, choose.HYBRID])
            raise ValueError(f"kernel must be one of {names}, got {kernel!r}")
        if kernel in self.terms.refusals:
            raise ValueError(f"kernel {kernel!r} {self.terms.refusals[kernel]}")
        return self._single(KERNELS[kernel])

    def _single(self, spec: KernelSpec) -> tuple[Launch, ...]:
        problem, device = self.problem, self.device
        if spec.family == "gather":
            return (gather.prepare(spec, self.grouped, problem, device),)
        if spec.family == "windows":
            width = windows.width_of(spec, problem)
            if width == 0:
                raise ValueError(f"kernel {spec.name!r} holds no row of k = {problem.k}")
            work = window_list(self.grouped, problem.n, width)
            return (windows.prepare(spec, work, problem, device),)
        profile = self._analysed(spec).profile
        return (self._tiled(spec, 1, 0 if profile is None else profile.tiles),)

    def _hybrid(self, spec: KernelSpec) -> tuple[Launch, ...]:
        known, least = self._analysed(spec), self._least(spec)
        assert known.counts is not None
        assert known.profile is not None
        ids = tile_ids(self.grouped, self.problem.n, spec.tile[:2])
        rest = outside(self.grouped, ids, known.counts, least)
        gathered = gather.prepare(KERNELS[choose.GATHER], rest, self.problem, self.device)
        return (self._tiled(spec, least, known.profile.worth_tiles), gathered)

    def _tiled(self, spec: KernelSpec, least: int, chosen: int) -> Launch:
        counts = self._analysed(spec).counts
        assert counts is not None
        tiles = tile_list(counts, self.pattern.shape, spec.tile[:2], least, chosen)
        prepare = tile_tma.prepare if spec.family == "tile_tma" else tile.prepare
        return prepare(spec, self.sorted, tiles, self.problem, self.device)

    @property
    def grouped(self) -> Nonzeros:
        """The nonzeros by row."""
        known = self._analysed(None)
        stored = Nonzeros(known.rows, known.cols, None)
        if known.rows_ascend:
            return stored
        return self.pattern.derive(
            "gpu_by_row", lambda: by_row_and_column(stored, self.pattern.shape)
        )

    @property
    def sorted(self) -> SortedRows:
        """The nonzeros by row, and by column within a row."""
        known, grouped = self._analysed(None), self.grouped
        if not (known.rows_ascend and known.columns_ascend) and grouped.order is None:
            grouped = self.pattern.derive(
                "gpu_sorted", lambda: by_row_and_column(grouped, self.pattern.shape)
            )
        crow = crow_of(self.pattern, grouped.rows)
        return SortedRows(crow, grouped.cols, grouped.order)

    def _analysed(self, spec: KernelSpec | None) -> Analysis:
        """What is known of the pattern; with its tiles' counts if `spec` has tiles."""
        counted = None if spec is None else (spec.tile[:2], self._least(spec))
        if self._known is None or counted not in (None, self._known.counted):
            self._known = self._kept(self._begun(counted))
        return self._known

    def _begun(
        self, counted: tuple[tuple[int, int], int] | None = None
    ) -> Analysis | analysis.Pending:
        """The pattern's own analysis, if its tiles were counted so, else a new one."""
        for known in self._newest:
            if counted in (None, known.counted):
                return known
        block, least = counted or (None, 1)
        return analysis.begin(self.pattern, self.device, block, least)

    def _kept(self, pending: Analysis | analysis.Pending) -> Analysis:
        known = pending if isinstance(pending, Analysis) else pending.finish()
        self._newest[:] = [known]
        return known

    @property
    def _newest(self) -> list[Analysis]:
        """The last analysis of this pattern, if any."""
        newest: list[Analysis] = self.pattern.derive("gpu_analysis", list)
        return newest

    def _least(self, spec: KernelSpec) -> int:
        rates = self.terms.rates
        if spec.name not in rates.tiles:
            return 1
        return choose.least_nonzeros(self.problem, spec, rates)

    def _execute(self, launches: tuple[Launch, ...], reason: Callable[[], list[str]]) -> GpuExecute:
        return GpuExecute(launches, reason, self.terms.refusals, self.device.index)


def _time(prediction: choose.Prediction) -> float:
    return prediction.us


def _told(ranked: list[choose.Prediction]) -> list[str]:
    best, *others = (f"{p.name}: {p.us:.3g} us predicted" for p in ranked)
    return [f"kernel   {best}", *(f"  not    {other}" for other in others)]


@functools.cache
def _can_compile() -> bool:
    return bool(importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core"))


@dataclass(frozen=True)
class _Terms:
    """What a choice depends on beside the pattern.

    tile_spec: the tile kernel that may serve, and counted_spec the same if it is worth to count a
    pattern's tiles. without_tiles: the ways that need no count.
    """

    rates: choose.Rates
    refusals: dict[str, str]
    tile_spec: KernelSpec | None
    counted_spec: KernelSpec | None
    without_tiles: list[choose.Prediction]


@functools.lru_cache(maxsize=1024)
def _terms(problem: Problem, device: Device) -> _Terms:
    rates = rates_of(device)
    refusals = {
        name: reason
        for name, spec in KERNELS.items()
        if (reason := spec.refuses(problem, device)) is not None
    }
    spec = choose.tile_kernel(problem, KERNELS, device, rates)
    may_pay = spec is not None and choose.tiles_may_pay(problem, spec, rates, device)
    serves = choose.WINDOWS not in refusals
    width = windows.width_of(KERNELS[choose.WINDOWS], problem) if serves else 0
    ways = sorted(choose.without_tiles(problem, width, rates, device), key=_time)
    return _Terms(rates, refusals, spec, spec if may_pay else None, ways)


def _index(problem: Problem) -> int:
    index = problem.device.index
    return torch.cuda.current_device() if index is None else index
