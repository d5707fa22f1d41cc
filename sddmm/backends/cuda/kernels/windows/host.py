"""windows: a block keeps the rows of B of a window of columns in shared memory.

Long rows are cut into slices of k: a window then holds more columns, and a block computes its
nonzeros once per slice and adds the sums.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div, loads_of_16_bytes
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.device_model import H200_SHARED_BYTES
from sddmm.backends.cuda.executor import (
    PER_CALL,
    KernelPlan,
    LaunchFn,
    make_launch,
    operand_args,
    rows_are_contiguous,
)
from sddmm.backends.cuda.facts import Block, PatternFacts, UniformFacts, expected_row_parts
from sddmm.backends.cuda.kernels.row_gather.costs import L2_FRACTION
from sddmm.backends.cuda.layouts import WindowList
from sddmm.backends.cuda.spec import KernelSpec, RowLayouts, macros, type_macros
from sddmm.dtypes import DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The largest slice of a row in bytes: larger ones need more registers than a thread has. Rows in
# shared memory start at multiples of its 128 bytes of banks.
_SLICE_BYTES, _ALIGNMENT = 512, 128
# The shared memory of a block.
_SHARED_BYTES = 227 * 1024
# About the fraction of L2 that the rows of A of a band fill, or slices of them: they stay there
# while all windows of these rows are computed. The windows of a row, and the mean nonzeros of one,
# from which on its reuse pays for loading windows once per band.
_BAND_FRACTION, _LEAST_WINDOWS, _LEAST_MEAN = 0.22, 8, 30
# Small matrices have more windows than must be: a block loads the fewest rows of both operands
# where its share is a square, and nearly so where it is so many times as wide as high. The pairs of
# a window, over those that are computed while one is loaded, that are worth it.
_ASPECT, _LEAST_LOADS = 1.4, 4
# The bytes per nonzero by which partial sums, which are read again but once, count as rows of A.
_SUMS_BYTES = 1
# The time in which a block loads a full window, in pairs of _SLICE_BYTES that it computes in that
# time.
_WINDOW_PAIRS = 400
# The least pairs that are worth a block.
_MIN_PAIRS = 128

# Fitted to measurements on an H200: microseconds that all multiprocessors together take for a batch
# of eight pairs, per 64 bytes of their rows, of half types and of others, and besides; for a run of
# nonzeros of a row; and that all of them take to begin a window each, and to load one that fills
# shared memory.
_HALF_STEP_US, _STEP_US, _BATCH_US, _HALF_RUN_US, _RUN_US = 54.5e-6, 49e-6, 48e-6, 10e-6, 25e-6
_WINDOW_US, _LOAD_US = 1.6, 2.2
# The same for a batch and a run where warps wait for memory, as L2 has no room for all that is read
# and written: from this part on of what it can be expected to hold, in full from the whole. And for
# loading the values of S of a run there.
_WAITING_BATCH_US, _WAITING_RUN_US, _FITS_L2 = 296e-6, 11e-6, 0.5
_LOAD_RUN_US = 22e-6
# The part by which S's values, which are read but once, count among what L2 is to hold.
_VALUES_PART = 0.5
# The power of the loads of 16 bytes of a row by which they lengthen all that; and by how much the
# guards of such loads do where rows are not whole slices.
_MORE_LOADS, _GUARDS = 0.15, 1.08
# The part of the time of loading rows from memory that nothing hides: the first time, and rows of A
# for a further window; and the fraction of L2 in which they are found instead.
_MEMORY_PART, _MEMORY_PART_AGAIN, _FOUND_FRACTION = 0.7, 0.9, 0.37
# The bytes of a batch of pairs and of its positions.
_BATCH_BYTES = 128
# Microseconds of preparing a pattern, and each of its nonzeros.
_PREPARE_US, _PREPARE_NONZERO_US = 800.0, 0.16e-3


class Arguments(ctypes.Structure):
    """The parameters of windows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "pairs", "positions")),
        *((name, POINTER) for name in ("window_pairs", "window_columns", "band_windows")),
        ("partial_sums", POINTER),
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        ("work_per_head", LONG),
        *((name, INT) for name in ("heads", "heads_per_turn", "bands", "turns", "slices")),
        *((name, INT) for name in ("window_count", "window_width", "n", "k")),
        ("alpha", DOUBLE),
    ]


class Geometry(NamedTuple):
    """How the problem is cut: bytes of a slice of a row, slices of a row; and rows of A and columns
    of a window."""

    slice_bytes: int
    slices: int
    window: Block

    @property
    def window_pairs(self) -> int:
        """The pairs that a block computes in the time in which it loads a full window."""
        return _window_pairs(self.slice_bytes)


class Windows(KernelSpec):
    """Pays where a row has several nonzeros in a window."""

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        facts = facts or UniformFacts((problem.m, problem.n), problem.nnz)
        run_us = _run_us(problem, self.geometry(problem, model.device), facts, model)
        return Cost(run_us, _PREPARE_US + _PREPARE_NONZERO_US * problem.nnz)

    def prepare(
        self, layouts: RowLayouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        geometry = self.geometry(problem, model.device)
        work = layouts.windows(geometry.window)
        return (self.plan(work, geometry, problem, model.device),)

    def geometry(self, problem: SddmmProblem, device: Device) -> Geometry:
        """As few slices as may be, of about the same size; and windows of the same size, of all
        rows unless these are read so often that they should stay in L2."""
        row_bytes = max(1, problem.k * problem.dtype.itemsize)
        slices = ceil_div(row_bytes, _SLICE_BYTES)
        slice_bytes = ceil_div(ceil_div(row_bytes, slices), _ALIGNMENT) * _ALIGNMENT
        across = self._windows_across(problem, slice_bytes, device)
        down = 1
        if across >= _LEAST_WINDOWS and problem.nnz >= _LEAST_MEAN * problem.m:
            kept = problem.m * min(slice_bytes, row_bytes)
            if slices > 1:
                kept += _SUMS_BYTES * problem.nnz
            down = max(1, round(kept / (_BAND_FRACTION * device.l2_bytes)))
        window = max(1, ceil_div(problem.m, down)), max(1, ceil_div(problem.n, across))
        return Geometry(slice_bytes, slices, window)

    def _windows_across(self, problem: SddmmProblem, slice_bytes: int, device: Device) -> int:
        """As many as shared memory asks for, or as make shares of blocks narrow enough."""
        fewest = ceil_div(problem.n, self.shared_bytes // slice_bytes)
        heads, pairs = problem.heads or 1, problem.nnz // 2
        share = heads * problem.m * problem.n // _blocks(heads * pairs, device)
        of_share = ceil_div(problem.n, math.isqrt(int(_ASPECT * share)) + 1)
        most = pairs // (_LEAST_LOADS * _window_pairs(slice_bytes))
        return max(1, fewest, min(of_share, most))

    def plan(
        self, work: WindowList, geometry: Geometry, problem: SddmmProblem, device: Device
    ) -> KernelPlan:
        """The launch that computes the pairs of these windows."""
        heads, pairs = problem.heads or 1, work.pairs.shape[0]
        window_count = work.window_pairs.numel() - 1
        work_per_head = pairs + window_count * geometry.window_pairs
        blocks = _blocks(heads * pairs, device)
        bands = work.band_windows.numel() - 1
        turns = _turns(heads, bands)
        kernels: dict[int, Kernel] = {}

        def bind(a: Tensor, b_t: Tensor) -> LaunchFn:
            args, alignment = operand_args(a, b_t)
            step = math.gcd(alignment, problem.k * problem.dtype.itemsize)
            if step not in kernels:
                kernels[step] = self._specialise(problem, geometry, step, device)
            arguments = {
                **args, "pairs": work.pairs.data_ptr(), "positions": work.positions.data_ptr(),
                "window_pairs": work.window_pairs.data_ptr(),
                "window_columns": work.window_columns.data_ptr(),
                "band_windows": work.band_windows.data_ptr(), "head_out": problem.nnz,
                "work_per_head": work_per_head, "heads": heads,
                "heads_per_turn": heads if turns == 1 else 1, "bands": bands, "turns": turns,
                "slices": geometry.slices,
                "window_count": window_count, "window_width": geometry.window[1],
                "n": problem.n, "k": problem.k,
            }  # fmt: skip
            if geometry.slices == 1:
                return make_launch(kernels[step], blocks, arguments)
            launch = make_launch(kernels[step], blocks, arguments, (*PER_CALL, "partial_sums"))
            sums = functools.partial(
                _partial_sums, 2 * heads * work_per_head, problem.dtype, work.pairs.device
            )
            return functools.partial(_launch_slices, launch, sums)

        return KernelPlan(bind, rows_are_contiguous)

    def _specialise(
        self, problem: SddmmProblem, geometry: Geometry, step: int, device: Device
    ) -> Kernel:
        row_bytes = problem.k * problem.dtype.itemsize
        values: dict[str, str | int | bool] = {
            **type_macros(problem.dtype, problem.out_dtype),
            "LOAD_BYTES": step,
            "NO_TAIL": step == 16 and row_bytes % geometry.slice_bytes == 0,
            "SLICE_BYTES": geometry.slice_bytes,
            "SLICED": geometry.slices > 1,
            "WINDOW_PAIRS": geometry.window_pairs,
        }
        return loader.runtime.load_kernel(self, macros(values), Arguments, device.index)


def _window_pairs(slice_bytes: int) -> int:
    return _WINDOW_PAIRS * _SLICE_BYTES // slice_bytes


def _blocks(pairs: int, device: Device) -> int:
    """The blocks that share so many pairs."""
    return max(1, min(device.sm_count, ceil_div(pairs, _MIN_PAIRS)))


def _turns(heads: int, bands: int) -> int:
    """The turns in which all blocks compute: of all heads at once, or of one band of one head."""
    return 1 if bands == 1 else bands * heads


def _run_us(
    problem: SddmmProblem, geometry: Geometry, facts: PatternFacts, model: DeviceModel
) -> float:
    """All pairs and windows."""
    heads, slices, (rows, columns) = problem.heads or 1, geometry.slices, geometry.window
    bands = ceil_div(problem.m, rows)
    turns = _turns(heads, bands)
    windows_per_block = bands * ceil_div(problem.n, columns) / model.device.sm_count
    filled = columns * geometry.slice_bytes / _SHARED_BYTES
    window_us = slices * (turns + heads * windows_per_block) * (_WINDOW_US + _LOAD_US * filled)
    run_us = _pairs_us(problem, geometry, _work(problem, geometry, facts), model) + window_us
    run_us *= H200_SHARED_BYTES / model.shared_bytes
    row_bytes = problem.k * problem.dtype.itemsize
    loads = loads_of_16_bytes(row_bytes)
    is_guarded = loads == 1 and row_bytes % geometry.slice_bytes > 0
    run_us *= _GUARDS if is_guarded else math.pow(loads, _MORE_LOADS)
    return model.launch_us + run_us


class _Work(NamedTuple):
    """What a head and a slice have: runs (nonzeros of a row in a window), and batches of pairs.
    spread: the runs over those that chance leaves."""

    runs: float
    batches: float
    spread: float


def _work(problem: SddmmProblem, geometry: Geometry, facts: PatternFacts) -> _Work:
    """There are the most runs where nonzeros are spread by chance, and the fewest where each row
    has one. They are taken to be as long as chance makes them around their mean length."""
    by_chance = expected_row_parts((problem.m, problem.n), problem.nnz, geometry.window[1])
    runs = max(1.0, min(by_chance, max(problem.m, facts.row_parts(geometry.window[1]))))
    mean = max(1.0, problem.nnz / runs)
    odd_runs = runs * (1 + math.exp(1 / mean - mean)) / 2
    return _Work(runs, (problem.nnz + odd_runs) / 2 / 8, runs / max(1.0, by_chance))


def _pairs_us(problem: SddmmProblem, geometry: Geometry, work: _Work, model: DeviceModel) -> float:
    """Batches and runs, and rows of A; or what warps wait for memory, if that is longer."""
    heads, itemsize = problem.heads or 1, problem.dtype.itemsize
    passes, runs = geometry.slices * heads, work.runs
    is_half = DTYPES[problem.dtype].is_half
    step_us, run_us = (_HALF_STEP_US, _HALF_RUN_US) if is_half else (_STEP_US, _RUN_US)
    batch_us = step_us * geometry.slice_bytes / 64 + _BATCH_US
    pairs_us = passes * (work.batches * batch_us + runs * run_us)

    l2_bytes = L2_FRACTION * model.device.l2_bytes
    rows = min(problem.m, problem.nnz) + problem.n
    row_bytes = min(geometry.slice_bytes, problem.k * itemsize)
    row_us = 1e6 * passes * row_bytes / model.memory_bytes
    first = min(problem.m, runs)
    from_memory = 1 - min(1.0, l2_bytes / max(1, rows * row_bytes))
    pairs_us += _MEMORY_PART * row_us * from_memory * (first + problem.n)

    used_bytes = work.batches * _BATCH_BYTES
    used_bytes += _VALUES_PART * problem.scaled * problem.nnz * itemsize
    used_bytes += heads * (rows * row_bytes + problem.nnz * problem.out_dtype.itemsize)
    waiting = min(1.0, max(0.0, (used_bytes / l2_bytes - _FITS_L2) / (1 - _FITS_L2)))
    waiting_us = passes * (work.batches * _WAITING_BATCH_US + runs * _WAITING_RUN_US)
    pairs_us += waiting * max(0.0, waiting_us - pairs_us)
    if ceil_div(problem.n, geometry.window[1]) >= _LEAST_WINDOWS:  # else they are read together
        # Bands gained nothing where nonzeros are clustered, as in R-MAT.
        kept_rows = problem.m - (problem.m - geometry.window[0]) * min(1.0, work.spread)
        kept_bytes = min(kept_rows, problem.nnz) * row_bytes
        found = min(1.0, _FOUND_FRACTION * model.device.l2_bytes / max(1.0, kept_bytes))
        pairs_us += _MEMORY_PART_AGAIN * row_us * (1 - found) * (runs - first)
    if problem.scaled:
        pairs_us += waiting * heads * runs * _LOAD_RUN_US
    return pairs_us


def _launch_slices(
    launch: Callable[..., None], sums: Callable[[], Tensor], values: int, out: int, alpha: float
) -> None:
    partial_sums = sums()  # lives until the kernel is launched
    launch(values, out, alpha, partial_sums.data_ptr())


def _partial_sums(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for the sums of one run alone: other threads may run the same plan."""
    accumulator = DTYPES[dtype].accumulator
    return new_memory("partial sums of slices of k", (count,), accumulator, device)


WINDOWS = Windows(
    "windows", "windows", tuple(DTYPES), threads=512, shared_bytes=_SHARED_BYTES, min_k=1
)
