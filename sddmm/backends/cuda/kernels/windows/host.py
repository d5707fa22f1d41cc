"""windows: the rows of B of a window of columns stay in shared memory."""

from __future__ import annotations

import ctypes

from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.row_gather.host import pass_bytes, shape_of
from sddmm.backends.cuda.layouts import WindowList
from sddmm.backends.cuda.loader import (
    Bound,
    Launch,
    alignment,
    bound,
    placed,
    rows_are_contiguous,
    types,
)
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.problem import Problem


class Arguments(ctypes.Structure):
    """Of windows.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "rows", "slots", "perm")),
        ("window_offsets", POINTER),
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("nnz", "blocks_per_head", "nnz_per_block")),
        *((name, INT) for name in ("window_count", "window_width", "n", "k")),
        ("alpha", DOUBLE),
    ]


def width_of(spec: KernelSpec, problem: Problem) -> int:
    """Columns whose rows of B a block's shared memory holds; 0 if not even one."""
    row_bytes = problem.k * problem.dtype.itemsize
    per_pass = pass_bytes(row_bytes)
    return spec.shared_bytes // (max(1, -(-row_bytes // per_pass)) * per_pass)


def prepare(spec: KernelSpec, work: WindowList, problem: Problem, device: Device) -> Launch:
    heads, count = problem.heads or 1, work.rows.numel()
    row_bytes = problem.k * problem.dtype.itemsize
    chunk = -(-count // device.sm_count) + 16
    chunks = -(-count // chunk)
    kernels: dict[int, Kernel] = {}

    def bind(a: Tensor, b_t: Tensor) -> Bound:
        step = alignment(a, b_t, row_bytes)
        kernel = kernels.get(step)
        if kernel is None:
            made = macros({**types(problem), **shape_of(problem, step)})
            kernel = kernels[step] = loader.runtime.load_kernel(spec, made, Arguments, device.index)
        return bound(kernel, chunks * heads, {
            **placed(a, b_t), "rows": work.rows.data_ptr(), "slots": work.slots.data_ptr(),
            "perm": work.order.data_ptr(), "window_offsets": work.starts.data_ptr(),
            "head_out": problem.nnz, "nnz": count, "blocks_per_head": chunks,
            "nnz_per_block": chunk, "window_count": work.starts.numel() - 1,
            "window_width": work.width, "n": problem.n, "k": problem.k,
        })  # fmt: skip

    return Launch(bind, rows_are_contiguous)
