"""spmm_windows: a block keeps a slice of the rows of X of a window of columns in shared memory.

Rows of X are read from there, at several times the rate of L2, and the sums that windows leave of a
row are added in a second pass (spmm_tile_sums), in the order of the windows. The weights are put in
the order of the windows first (spmm_weights). In half types, whose elements must be converted for
every nonzero, it took as long as spmm_gather; it serves float32.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.device_model import H200_SHARED_BYTES
from sddmm.backends.cuda.executor import row_pitch, rows_are_contiguous
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.spmm_tile_sums import host as spmm_tile_sums
from sddmm.backends.cuda.kernels.spmm_tile_sums.host import FloatSums
from sddmm.backends.cuda.kernels.spmm_weights import host as spmm_weights
from sddmm.backends.cuda.kernels.spmm_windows.entries import Segments, entries_of, segments_of
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.products import ProductPlan
from sddmm.backends.cuda.spec import Layouts, macros
from sddmm.dtypes import DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

_CHUNK_BYTES = 16
# The bytes of a slice of a row of X: all banks of shared memory. Fewer make more slices, and two
# rows that are read at once then often meet in a bank.
_SLICE_BYTES = 128
# The entries that a block adds in the time in which it loads a window.
_WINDOW_ENTRIES = 4000
# The least nonzeros per row and window, in the mean: with fewer, most of the sums are of nothing.
_MIN_MEAN = 0.25
_MAX_ENTRIES = 2**31 - 2**12

# Fitted to measurements on an H200: microseconds that all multiprocessors together take to put a
# weight in order, and one that comes by column; to add an entry of a slice, times this power of the
# mean entries of a row of a window, as groups with longer rows end less evenly; to leave a sum of
# one and add it to the others; and to load a window each.
_ORDER_US, _ORDER_BY_COLUMN_US = 5.3e-6, 8e-6
_ENTRY_US, _LONGER_ROWS, _SUM_US, _WINDOW_US = 4.5e-6, 0.09, 74e-6, 3.5
# Microseconds of preparing a pattern, and each of its nonzeros.
_PREPARE_US, _PREPARE_NONZERO_US = 800.0, 0.1e-3


class Arguments(ctypes.Structure):
    """The parameters of spmm_windows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("dense", "weights", "partial", "entries")),
        *((name, POINTER) for name in ("bounds", "segments", "first_segments")),
        *((name, LONG) for name in ("pitch", "head_dense", "head_weights")),
        *((name, INT) for name in ("slices", "windows", "width", "row_pitch", "n", "k")),
    ]


class Geometry(NamedTuple):
    """How X is cut: columns of a slice, slices of a row, rows of a window, windows."""

    columns: int
    slices: int
    width: int
    windows: int


@dataclass(frozen=True, eq=False)
class SpmmWindows(FloatSums):
    """Pays where nonzeros are spread evenly, and a row has several of them in a window.

    A row of a window is added by a few threads alone, so that it serves uneven patterns on request.
    """

    @property
    def needs_uniform(self) -> bool:
        return True

    @property
    def _groups(self) -> int:
        """The groups of threads of a block, each of which loads a slice of a row."""
        return self.threads * _CHUNK_BYTES // _SLICE_BYTES

    def geometry(self, problem: SpmmProblem) -> Geometry:
        columns = _SLICE_BYTES // problem.dtype.itemsize
        windows = max(1, ceil_div(problem.n, self.shared_bytes // _SLICE_BYTES))
        width = max(1, ceil_div(problem.n, windows))
        return Geometry(columns, ceil_div(problem.k, columns), width, windows)

    def refuses(self, problem: SpmmProblem, device: Device) -> str | None:
        reason = super().refuses(problem, device)
        if reason is not None:
            return reason
        geometry = self.geometry(problem)
        rows = geometry.windows * problem.m
        if _MIN_MEAN * rows >= problem.nnz:
            return f"has {rows} sums of rows of windows, for {problem.nnz} nonzeros"
        if problem.nnz + rows > _MAX_ENTRIES:
            return f"counts at most {_MAX_ENTRIES} nonzeros and rows, got {problem.nnz + rows}"
        return None

    def cost_us(
        self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        if facts is None or not facts.is_uniform:
            return None
        run_us = _run_us(problem, self.geometry(problem), self._groups, facts.ascends, model)
        return Cost(run_us, _PREPARE_US + _PREPARE_NONZERO_US * problem.nnz)

    def prepare(
        self, layouts: Layouts, problem: SpmmProblem, model: DeviceModel
    ) -> tuple[ProductPlan, ...]:
        geometry = self.geometry(problem)
        entries = entries_of(layouts.by_row(), (problem.m, problem.n), geometry.width)
        parts = geometry.slices * (problem.heads or 1)
        blocks = model.device.sm_count
        segments = segments_of(entries, parts, blocks, self._groups, _WINDOW_ENTRIES)
        run = _Runner(
            self, problem, geometry, entries.entries, entries.positions, segments, model.device
        )
        return (ProductPlan(run, rows_are_contiguous),)

    def load(self, problem: SpmmProblem, geometry: Geometry, step: int, device: Device) -> Kernel:
        """The kernel for operands whose rows start at multiples of `step` bytes."""
        weights = weights_dtype(problem)
        defines: dict[str, str | int | bool] = {
            "ELEMENT": DTYPES[problem.dtype].cpp_name, "WEIGHT": DTYPES[weights].cpp_name,
            "LOAD_BYTES": step,
            "NO_TAIL": step == _CHUNK_BYTES and problem.k % geometry.columns == 0,
            "SLICE_BYTES": _SLICE_BYTES,
        }  # fmt: skip
        return loader.runtime.load_kernel(self, macros(defines), Arguments, device.index)


class _Runner:
    """Runs the three passes on operands at any address."""

    def __init__(
        self, spec: SpmmWindows, problem: SpmmProblem, geometry: Geometry, entries: Tensor,
        positions: Tensor, segments: Segments, device: Device,
    ) -> None:  # fmt: skip
        self._problem, self._geometry, self._device = problem, geometry, device
        self._entries, self._positions, self._segments = entries, positions, segments
        load = functools.partial(spec.load, problem, geometry, device=device)
        self._kernel = functools.lru_cache(maxsize=5)(load)
        self._row_tiles = ceil_div(problem.m, SIDE)
        self._shared_rows = _rows_and_slots(self._row_tiles, geometry.windows, entries.device)
        self._sums = spmm_tile_sums.load(problem.out_dtype, geometry.columns, device.index)

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        problem, segments = self._problem, self._segments
        columns, slices, width, windows = self._geometry
        weights = self._ordered(values, factors)
        slots = self._row_tiles * windows
        count = (problem.heads or 1) * slices * slots * SIDE * columns
        partial = new_memory("sums of windows", (count,), torch.float32, dense.device)
        head_dense = dense.stride(0) if dense.dim() == 3 else 0
        pitch, size = row_pitch(dense), dense.element_size()
        step = math.gcd(
            dense.data_ptr(), pitch * size, head_dense * size, problem.k * size, _CHUNK_BYTES
        )
        self._kernel(step)(  # in the order of Arguments
            segments.blocks, dense.data_ptr(), weights.data_ptr(), partial.data_ptr(),
            self._entries.data_ptr(), segments.bounds.data_ptr(),
            segments.windows_and_parts.data_ptr(), segments.first_of_blocks.data_ptr(),
            pitch, head_dense, weights.stride(0) if weights.shape[0] > 1 else 0,
            slices, windows, width, self._row_tiles * SIDE, problem.n, problem.k,
        )  # fmt: skip
        self._sums.add(partial, self._shared_rows, slices, slots, alpha, out)

    def _ordered(self, values: Tensor, factors: Tensor | None) -> Tensor:
        """The weights in the order of the entries: (heads, entries), or (1, entries) for all."""
        by_head = values.unsqueeze(0) if values.dim() == 1 else values
        shape = by_head.shape[0], self._positions.numel()
        dtype = weights_dtype(self._problem)
        weights = new_memory("weights in order", shape, dtype, values.device)
        spmm_weights.order_weights(
            by_head, factors, self._problem.dtype, self._positions, weights, self._device.index
        )
        return weights


def weights_dtype(problem: SpmmProblem) -> torch.dtype:
    return spmm_weights.dtype_of(problem.values_dtype, problem.dtype, problem.has_factors)


def _rows_and_slots(row_tiles: int, windows: int, device: torch.device) -> Tensor:
    """The first row of each row of tiles, and the slots that hold its sums of all windows."""
    tile = torch.arange(row_tiles, dtype=torch.int32, device=device)
    return torch.stack([tile * SIDE, tile, tile * 0 + windows, tile * 0 + row_tiles], dim=1)


def _run_us(
    problem: SpmmProblem, geometry: Geometry, groups: int, ascends: bool, model: DeviceModel
) -> float:
    """Ordering the weights, loading windows, adding entries, and adding the sums of windows.
    groups: of threads that each add a row of a window, in a block."""
    parts = (problem.heads or 1) * geometry.slices
    rows = geometry.windows * problem.m
    entries = problem.nnz + rows * math.exp(-problem.nnz / rows)  # with those of empty rows
    weights_heads = (problem.heads or 1) if problem.values_have_heads else 1
    order_us = weights_heads * entries * (_ORDER_US if ascends else _ORDER_BY_COLUMN_US)
    busy = min(1.0, parts * rows / (model.device.sm_count * groups))
    entry_us = _ENTRY_US * math.pow(entries / rows, _LONGER_ROWS)
    adding_us = parts * entries * entry_us / busy
    sums_us = parts * rows * _SUM_US
    sums_bytes = parts * rows * geometry.columns * 4
    if sums_bytes > model.device.l2_bytes:  # stored in memory, and read from there
        out_bytes = parts * problem.m * geometry.columns * problem.out_dtype.itemsize
        sums_us = max(sums_us, 1e6 * (2 * sums_bytes + out_bytes) / model.memory_bytes)
    loads = parts * geometry.windows / model.device.sm_count
    x_bytes = (problem.heads or 1) * problem.n * problem.k * problem.dtype.itemsize
    load_us = max(loads * _WINDOW_US, 1e6 * x_bytes / model.memory_bytes)
    slower = H200_SHARED_BYTES / model.shared_bytes
    return 2 * model.launch_us + slower * (order_us + adding_us + sums_us + _WINDOW_US + load_us)


SPMM_WINDOWS = SpmmWindows(
    "spmm_windows", "spmm_windows", (torch.float32,), threads=512, shared_bytes=227 * 1024, min_k=1
)
