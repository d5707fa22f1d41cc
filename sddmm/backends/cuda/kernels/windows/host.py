"""windows: a block keeps the rows of B of a window of columns in shared memory."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel, ceil_div
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel, sort_us
from sddmm.backends.cuda.executor import (
    KernelPlan,
    LaunchFn,
    make_launch,
    operand_args,
    rows_are_contiguous,
)
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.row_gather.host import gather_us, pass_bytes, row_loads
from sddmm.backends.cuda.layouts import WindowList, window_list
from sddmm.backends.cuda.spec import (
    KernelSpec,
    Layouts,
    macros,
    type_macros,
)
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The part of their rates that the kernel reaches: of L2, and of shared memory with half types,
# which it converts.
_L2_PART, _HALF_PART = 0.7, 0.7


class Arguments(ctypes.Structure):
    """The parameters of windows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "rows", "slots", "perm")),
        ("window_offsets", POINTER),
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("nnz", "blocks_per_head", "nnz_per_block")),
        *((name, INT) for name in ("window_count", "window_width", "n", "k")),
        ("alpha", DOUBLE),
    ]


class Windows(KernelSpec):
    """Pays where a row has many nonzeros in a window."""

    def refuses(self, problem: SddmmProblem, device: Device) -> str | None:
        reason = super().refuses(problem, device)
        if reason is None and self.width(problem) == 0:
            return f"holds no row of k = {problem.k}"
        return reason

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> None:
        return None  # nonzeros are sorted by window

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        """Each nonzero is read from shared memory, each row of A once per window that it is in."""
        row_bytes = problem.k * problem.dtype.itemsize
        heads, width = problem.heads or 1, self.width(problem)
        windows = ceil_div(problem.n, width)
        pairs = min(problem.nnz, problem.m * windows)  # of a row and a window, where S is uniform
        from_l2 = heads * (pairs + problem.n + model.device.sm_count * width) * row_bytes
        both_rows = heads * 2 * problem.nnz * row_bytes  # through registers
        rate = model.shared_bytes * (_HALF_PART if DTYPES[problem.dtype].is_half else 1.0)
        seconds = max(both_rows / rate, from_l2 / model.l2_bytes / _L2_PART)
        run_us = max(gather_us(problem, pairs, model), model.launch_us + 1e6 * seconds)
        return Cost(run_us, sort_us(problem.nnz, model))

    def prepare(
        self, layouts: Layouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        work = window_list(layouts.by_row(), problem.n, self.width(problem))
        return (self.plan(work, problem, model.device),)

    def plan(self, work: WindowList, problem: SddmmProblem, device: Device) -> KernelPlan:
        """The launch that computes the nonzeros of these windows."""
        heads, count = problem.heads or 1, work.rows.numel()
        row_bytes = problem.k * problem.dtype.itemsize
        nnz_per_block = ceil_div(count, device.sm_count) + 16
        blocks_per_head = ceil_div(count, nnz_per_block)
        kernels: dict[int, Kernel] = {}

        def specialise(step: int) -> Kernel:
            loads = row_loads(problem.k, problem.dtype, step)
            types = type_macros(problem.dtype, problem.out_dtype)
            return loader.runtime.load_kernel(
                self, macros({**types, **loads}), Arguments, device.index
            )

        def bind(a: Tensor, b_t: Tensor) -> LaunchFn:
            args, alignment = operand_args(a, b_t)
            step = math.gcd(alignment, row_bytes)
            if step not in kernels:
                kernels[step] = specialise(step)
            return make_launch(kernels[step], blocks_per_head * heads, {
                **args, "rows": work.rows.data_ptr(),
                "slots": work.slots.data_ptr(), "perm": work.perm.data_ptr(),
                "window_offsets": work.offsets.data_ptr(), "head_out": problem.nnz, "nnz": count,
                "blocks_per_head": blocks_per_head, "nnz_per_block": nnz_per_block,
                "window_count": work.offsets.numel() - 1, "window_width": work.width,
                "n": problem.n, "k": problem.k,
            })  # fmt: skip

        return KernelPlan(bind, rows_are_contiguous)

    def width(self, problem: SddmmProblem) -> int:
        """Columns whose rows of B a block's shared memory holds; 0 if not even one."""
        row_bytes = problem.k * problem.dtype.itemsize
        per_pass = pass_bytes(row_bytes)
        return self.shared_bytes // (max(1, ceil_div(row_bytes, per_pass)) * per_pass)


WINDOWS = Windows("windows", "windows", tuple(DTYPES), threads=480, shared_bytes=200 * 1024)
