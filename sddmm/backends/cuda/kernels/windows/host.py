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
from sddmm.backends.cuda.facts import PatternFacts, UniformFacts, expected_row_parts
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
# The time in which a block loads a window, in pairs of _SLICE_BYTES that it computes in that time.
_WINDOW_PAIRS = 400
# The least pairs that are worth a block.
_MIN_PAIRS = 128

# Fitted to measurements on an H200: microseconds that all multiprocessors together take for a batch
# of eight pairs, per 64 bytes of their rows, of half types and of others, and besides; for a run of
# nonzeros of a row; and that all of them take to begin a window each, and to load one that fills
# shared memory.
_HALF_STEP_US, _STEP_US, _BATCH_US, _RUN_US = 54.5e-6, 49e-6, 48e-6, 17e-6
_WINDOW_US, _LOAD_US = 1.15, 2.2
# The same for a batch and a run where warps wait for memory, as L2 has no room for all that is read
# and written: from this part on of what it can be expected to hold, in full from the whole. And for
# loading the values of S of a run there.
_WAITING_BATCH_US, _WAITING_RUN_US, _FITS_L2 = 302e-6, 7e-6, 0.5
_LOAD_RUN_US = 22e-6
# The power of the loads of 16 bytes of a row by which they lengthen all that.
_MORE_LOADS = 0.15
# The part of the time of loading rows of A from memory that nothing hides.
_MEMORY_PART = 0.7
# The bytes of a batch of pairs and of its positions.
_BATCH_BYTES = 128
# The fraction of L2 that operands can be expected to fill.
_L2_FRACTION = 0.8
# Microseconds of preparing a pattern, and each of its nonzeros.
_PREPARE_US, _PREPARE_NONZERO_US = 800.0, 0.16e-3


class Arguments(ctypes.Structure):
    """The parameters of windows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "pairs", "positions")),
        *((name, POINTER) for name in ("window_pairs", "partial_sums")),
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, LONG) for name in ("work_per_head", "share")),
        *((name, INT) for name in ("heads", "window_count", "window_width", "n", "k")),
        ("alpha", DOUBLE),
    ]


class Geometry(NamedTuple):
    """How the rows of B are cut: bytes of a slice, slices of a row, columns of a window."""

    slice_bytes: int
    slices: int
    width: int

    @property
    def window_pairs(self) -> int:
        """The pairs that a block computes in the time in which it loads a window."""
        return _WINDOW_PAIRS * _SLICE_BYTES // self.slice_bytes


class Windows(KernelSpec):
    """Pays where a row has several nonzeros in a window."""

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        facts = facts or UniformFacts((problem.m, problem.n), problem.nnz)
        run_us = _run_us(problem, self.geometry(problem), facts, model)
        return Cost(run_us, _PREPARE_US + _PREPARE_NONZERO_US * problem.nnz)

    def prepare(
        self, layouts: RowLayouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        geometry = self.geometry(problem)
        work = layouts.windows(geometry.width)
        return (self.plan(work, geometry, problem, model.device),)

    def geometry(self, problem: SddmmProblem) -> Geometry:
        """As few slices as may be, of about the same size; and windows of the same size."""
        row_bytes = max(1, problem.k * problem.dtype.itemsize)
        slices = ceil_div(row_bytes, _SLICE_BYTES)
        slice_bytes = ceil_div(ceil_div(row_bytes, slices), _ALIGNMENT) * _ALIGNMENT
        windows = max(1, ceil_div(problem.n, self.shared_bytes // slice_bytes))
        return Geometry(slice_bytes, slices, max(1, ceil_div(problem.n, windows)))

    def plan(
        self, work: WindowList, geometry: Geometry, problem: SddmmProblem, device: Device
    ) -> KernelPlan:
        """The launch that computes the pairs of these windows."""
        heads, pairs = problem.heads or 1, work.pairs.shape[0]
        window_count = work.window_pairs.numel() - 1
        work_per_head = pairs + window_count * geometry.window_pairs
        blocks = min(device.sm_count, ceil_div(heads * pairs, _MIN_PAIRS))
        share = ceil_div(heads * work_per_head, max(1, blocks))
        kernels: dict[int, Kernel] = {}

        def bind(a: Tensor, b_t: Tensor) -> LaunchFn:
            args, alignment = operand_args(a, b_t)
            step = math.gcd(alignment, problem.k * problem.dtype.itemsize)
            if step not in kernels:
                kernels[step] = self._specialise(problem, geometry, step, device)
            arguments = {
                **args, "pairs": work.pairs.data_ptr(), "positions": work.positions.data_ptr(),
                "window_pairs": work.window_pairs.data_ptr(), "head_out": problem.nnz,
                "work_per_head": work_per_head, "share": share, "heads": heads,
                "window_count": window_count, "window_width": work.width,
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


def _run_us(
    problem: SddmmProblem, geometry: Geometry, facts: PatternFacts, model: DeviceModel
) -> float:
    """All pairs and windows."""
    passes = geometry.slices * (problem.heads or 1)
    windows_per_block = ceil_div(problem.n, geometry.width) / model.device.sm_count
    filled = geometry.width * geometry.slice_bytes / _SHARED_BYTES
    window_us = geometry.slices + passes * windows_per_block
    window_us *= _WINDOW_US + _LOAD_US * filled
    run_us = _pairs_us(problem, geometry, _work(problem, geometry, facts), model) + window_us
    run_us *= H200_SHARED_BYTES / model.shared_bytes
    run_us *= math.pow(loads_of_16_bytes(problem.k * problem.dtype.itemsize), _MORE_LOADS)
    return model.launch_us + run_us


class _Work(NamedTuple):
    """What a head and a slice have: runs (nonzeros of a row in a window), and batches of pairs."""

    runs: float
    batches: float


def _work(problem: SddmmProblem, geometry: Geometry, facts: PatternFacts) -> _Work:
    """There are the most runs where nonzeros are spread by chance, and the fewest where each row
    has one. They are taken to be as long as chance makes them around their mean length."""
    by_chance = expected_row_parts((problem.m, problem.n), problem.nnz, geometry.width)
    runs = max(1.0, min(by_chance, max(problem.m, facts.row_parts(geometry.width))))
    mean = max(1.0, problem.nnz / runs)
    odd_runs = runs * (1 + math.exp(1 / mean - mean)) / 2
    return _Work(runs, (problem.nnz + odd_runs) / 2 / 8)


def _pairs_us(problem: SddmmProblem, geometry: Geometry, work: _Work, model: DeviceModel) -> float:
    """Batches and runs, and rows of A; or what warps wait for memory, if that is longer."""
    heads, itemsize = problem.heads or 1, problem.dtype.itemsize
    passes, runs = geometry.slices * heads, work.runs
    step_us = _HALF_STEP_US if DTYPES[problem.dtype].is_half else _STEP_US
    batch_us = step_us * geometry.slice_bytes / 64 + _BATCH_US
    pairs_us = passes * (work.batches * batch_us + runs * _RUN_US)

    l2_bytes = _L2_FRACTION * model.device.l2_bytes
    rows = min(problem.m, problem.nnz) + problem.n
    row_bytes = min(geometry.slice_bytes, problem.k * itemsize)
    from_memory = 1 - min(1.0, l2_bytes / max(1, rows * row_bytes))
    memory_bytes = passes * row_bytes * from_memory * (runs + problem.n)
    pairs_us += 1e6 * _MEMORY_PART * memory_bytes / model.memory_bytes

    used_bytes = work.batches * _BATCH_BYTES + problem.scaled * problem.nnz * itemsize
    used_bytes += heads * (rows * row_bytes + problem.nnz * problem.out_dtype.itemsize)
    waiting = min(1.0, max(0.0, (used_bytes / l2_bytes - _FITS_L2) / (1 - _FITS_L2)))
    waiting_us = passes * (work.batches * _WAITING_BATCH_US + runs * _WAITING_RUN_US)
    pairs_us += waiting * max(0.0, waiting_us - pairs_us)
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
