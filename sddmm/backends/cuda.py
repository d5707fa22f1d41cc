"""The GPU kernels of this package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.device import Device
from gemm_core.device import device as device_of
from sddmm import choose
from sddmm.families import Launch, gather, rows_of, tile, tile_tma, windows
from sddmm.partition import (
    Nonzeros,
    SortedRows,
    as_stored,
    by_row,
    outside,
    sorted_rows,
    tile_counts,
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

# Tile rows that are walked together (partition.tile_list).
_BAND = 8
# Above this, counting a pattern's nonzeros by tile takes too much memory.
_MOST_TILES = 2**28


@dataclass(frozen=True)
class GpuExecute:
    """The launches that compute a problem, one after the other, on the current stream."""

    launches: tuple[Launch, ...]
    notes: tuple[str, ...]
    index: int

    def __call__(
        self, a: Tensor, b_t: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        if self.index != torch.cuda.current_device():
            with torch.cuda.device(self.index):  # the driver launches in the current context
                return self(a, b_t, values, alpha, out)
        a, b_t = rows_of(a), rows_of(b_t)
        if values is not None and not values.is_contiguous():
            values = values.contiguous()
        for launch in self.launches:
            launch(a, b_t, values, alpha, out)
        return None


class CudaBackend:
    name = "cuda"

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        if (
            importlib.util.find_spec("cuda") is None
            or importlib.util.find_spec("cuda.core") is None
        ):
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
        with torch.cuda.device(_index(problem)):
            return prepared_for(pattern, problem, device_of(_index(problem)), kernel, reuse)


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
    """Making one plan. Work arrays are made when they are first asked for."""

    def __init__(self, pattern: SparsePattern, problem: Problem, device: Device) -> None:
        self.pattern, self.problem, self.device = pattern, problem, device
        self.refusals = {
            name: reason
            for name, spec in KERNELS.items()
            if (reason := spec.refuses(problem, device)) is not None
        }

    def make(self, kernel: str | None, reuse: bool) -> GpuExecute:
        if kernel is not None:
            return self._execute(self._demanded(kernel), (f"kernel   {kernel}, as demanded",))
        if not reuse or self.problem.nnz == 0:
            launch = gather.prepare(
                KERNELS[choose.GATHER], as_stored(self.pattern), self.problem, self.device
            )
            return self._execute((launch,), (f"kernel   {choose.GATHER}, which prepares least",))
        return self._choose()

    def _choose(self) -> GpuExecute:
        problem, device = self.problem, self.device
        rates = rates_of(device)
        spec = choose.tile_kernel(problem, KERNELS, device, rates)
        profile = None
        if spec is not None and self._tiles(spec) <= _MOST_TILES:
            least = choose.least_nonzeros(problem, spec, rates)
            _, counts = self._counted(spec)
            worth = counts >= least
            found = torch.stack([(counts > 0).sum(), worth.sum(), (counts * worth).sum()]).tolist()
            profile = choose.TileProfile(*found)
        width = 0
        if choose.WINDOWS not in self.refusals:
            width = windows.width_of(KERNELS[choose.WINDOWS], problem)
        ranked = choose.predictions(problem, spec, profile, width, rates, device)
        notes = [f"kernel   {ranked[0].name}: {ranked[0].us:.3g} us predicted"]
        notes += [f"  not    {p.name}: {p.us:.3g} us predicted" for p in ranked[1:]]
        best = ranked[0].name
        if best == choose.HYBRID:
            assert spec is not None
            return self._execute(self._hybrid(spec, least), tuple(notes))
        return self._execute(self._single(KERNELS[best]), tuple(notes))

    @property
    def grouped(self) -> Nonzeros:
        return self.pattern.derive("gpu_by_row", lambda: by_row(self.pattern))

    @property
    def sorted(self) -> SortedRows:
        return self.pattern.derive(
            "gpu_sorted_rows", lambda: sorted_rows(self.pattern, self.grouped)
        )

    def _demanded(self, kernel: str) -> tuple[Launch, ...]:
        if kernel == choose.HYBRID:
            rates = rates_of(self.device)
            spec = choose.tile_kernel(self.problem, KERNELS, self.device, rates)
            if spec is None:
                raise ValueError(f"kernel {kernel!r}: no tile kernel computes {self.problem.dtype}")
            return self._hybrid(spec, choose.least_nonzeros(self.problem, spec, rates))
        if kernel not in KERNELS:
            names = ", ".join([*KERNELS, choose.HYBRID])
            raise ValueError(f"kernel must be one of {names}, got {kernel!r}")
        if kernel in self.refusals:
            raise ValueError(f"kernel {kernel!r} {self.refusals[kernel]}")
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
        return (self._tiled(spec, 1),)

    def _hybrid(self, spec: KernelSpec, least: int) -> tuple[Launch, ...]:
        ids, counts = self._counted(spec)
        rest = outside(self.grouped, ids, counts, least)
        gathered = gather.prepare(KERNELS[choose.GATHER], rest, self.problem, self.device)
        return (self._tiled(spec, least), gathered)

    def _tiled(self, spec: KernelSpec, least: int) -> Launch:
        _, counts = self._counted(spec)
        block, shape = spec.tile[:2], self.pattern.shape
        tiles = tile_list(counts, shape, block, least, _BAND)
        prepare = tile_tma.prepare if spec.family == "tile_tma" else tile.prepare
        return prepare(spec, self.sorted, tiles, self.problem, self.device)

    def _tiles(self, spec: KernelSpec) -> int:
        m, n = self.pattern.shape
        return -(-m // spec.tile[0]) * -(-n // spec.tile[1])

    def _counted(self, spec: KernelSpec) -> tuple[Tensor, Tensor]:
        """The tile of each nonzero, in grouped order, and the nonzeros of each tile."""
        block, (_, n) = spec.tile[:2], self.pattern.shape

        def count() -> tuple[Tensor, Tensor]:
            ids = tile_ids(self.grouped.rows, self.grouped.cols, n, block)
            return ids, tile_counts(ids, self.pattern.shape, block)

        return self.pattern.derive(f"gpu_tiles {block}", count)

    def _execute(self, launches: tuple[Launch, ...], notes: tuple[str, ...]) -> GpuExecute:
        told = tuple(f"  not    {name}: {reason}" for name, reason in self.refusals.items())
        return GpuExecute(launches, notes + told, self.device.index)


def _index(problem: Problem) -> int:
    index = problem.device.index
    return torch.cuda.current_device() if index is None else index
