"""row_gather: equally many nonzeros a warp, whatever the pattern. No preparation but row ids.

Where rows are long and the operands larger than L2, a slice of k at a time, so that the slices of
all rows stay there (choose.gather_slice).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import gather_slice
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.loader import (
    OPEN,
    Bound,
    Launch,
    address,
    alignment,
    bound,
    placed,
    rows_are_contiguous,
    types,
)
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES
from sddmm.errors import out_of_memory
from sddmm.problem import Problem


class Arguments(ctypes.Structure):
    """Of row_gather.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "partial_sums", "out")),
        *((name, POINTER) for name in ("rows", "cols", "perm")),
        *((name, LONG) for name in ("nnz", "pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        ("warps_per_head", LONG),
        *((name, INT) for name in ("nnz_per_warp", "heads", "k")),
        ("alpha", DOUBLE),
    ]


# Bytes of a row that one pass of a warp takes at most, and of one segment of it.
_PASS_BYTES, _SEGMENT_BYTES = 512, 64

# Warps that a multiprocessor holds at the registers this kernel takes.
_WARPS_PER_SM = 16
_MOST_CHUNK = 512
# Where operands come from memory rather than from L2, warps that run together should read rows that
# lie together.
_CHUNK_IN_MEMORY = 16


def pass_bytes(row_bytes: int) -> int:
    """Of a row of so many bytes, what one pass takes: the whole, rounded up, of a short one."""
    taken = _SEGMENT_BYTES
    while taken < _PASS_BYTES and taken < row_bytes:
        taken *= 2
    return taken


def shape_of(problem: Problem, step: int) -> dict[str, int | bool]:
    """How a row of k elements is cut up (gather.cuh), rows starting at multiples of `step`."""
    row_bytes = problem.k * problem.dtype.itemsize
    per_pass = pass_bytes(row_bytes)
    segments = per_pass // _SEGMENT_BYTES
    # Nonzeros at a time, by eights: as many as registers hold.
    four = step == 16 and segments <= (4 if DTYPES[problem.dtype].is_half else 2)
    return {
        "LOAD_BYTES": step,
        "PASS_BYTES": per_pass,
        "BATCHES": 4 if four else 2,
        "ONE_PASS": row_bytes <= per_pass,
        "NO_TAIL": step == 16 and row_bytes > 0 and row_bytes % per_pass == 0,
    }


def chunk_of(problem: Problem, nnz: int, device: Device, group: int) -> int:
    """Nonzeros a warp: one wave of warps for small problems, a multiple of `group`."""
    heads = problem.heads or 1
    operand_bytes = (problem.m + problem.n) * problem.k * problem.dtype.itemsize
    if operand_bytes > 2 * device.l2_bytes and nnz < 4 * (problem.m + problem.n):
        return max(group, _CHUNK_IN_MEMORY)
    warps = device.sm_count * _WARPS_PER_SM
    even = -(-nnz * heads // warps)
    return max(group, min(_MOST_CHUNK, -(-even // group) * group))


def prepare(spec: KernelSpec, nonzeros: Nonzeros, problem: Problem, device: Device) -> Launch:
    rows, cols, order = nonzeros.rows, nonzeros.cols, nonzeros.order
    count, heads = cols.numel(), problem.heads or 1
    kernels: dict[tuple[int, torch.dtype, int], tuple[Kernel, int, int, int]] = {}

    def specialised(part: Problem, step: int) -> tuple[Kernel, int, int, int]:
        shape = shape_of(part, step)
        # Pieces of few bytes want more registers.
        blocks_per_sm = spec.min_blocks if step >= 8 else spec.min_blocks // 2
        made = macros({**types(part), **shape, "MIN_BLOCKS": blocks_per_sm})
        kernel = loader.runtime.load_kernel(spec, made, Arguments, device.index)
        chunk = chunk_of(part, count, device, 8 * int(shape["BATCHES"]))
        chunks = -(-count // chunk)
        return kernel, -(-chunks * heads // (spec.threads // 32)), chunk, chunks

    def bind_part(
        a: Tensor, b_t: Tensor, part: Problem, still_open: tuple[str, ...] = OPEN
    ) -> Callable[..., None]:
        step = alignment(a, b_t, part.k * part.dtype.itemsize)
        kind = (part.k, part.out_dtype, step)
        if kind not in kernels:
            kernels[kind] = specialised(part, step)
        kernel, blocks, chunk, chunks = kernels[kind]
        return bound(kernel, blocks, {
            **placed(a, b_t), "rows": rows.data_ptr(), "cols": cols.data_ptr(),
            "perm": address(order), "nnz": count, "head_out": problem.nnz,
            "warps_per_head": chunks, "nnz_per_warp": chunk, "heads": heads, "k": part.k,
            "alpha": 1.0,
        }, still_open)  # fmt: skip

    def bind(a: Tensor, b_t: Tensor) -> Bound:
        width = gather_slice(problem, count, device)
        if width == problem.k:
            return bind_part(a, b_t, problem)
        sums = problem._replace(k=width, out_dtype=DTYPES[problem.dtype].accumulator)
        last = (problem.k - 1) // width * width
        early = [
            bind_part(
                a[..., at : at + width], b_t[..., at : at + width], sums, ("partial_sums", "out")
            )
            for at in range(0, last, width)
        ]
        rest = problem._replace(k=problem.k - last)
        final = bind_part(a[..., last:], b_t[..., last:], rest, ("partial_sums", *OPEN))

        def launch(values: int, out: int, alpha: float) -> None:
            partial = _partial_sums(problem)  # of this run alone: others may be under way
            before = 0
            for each in early:
                each(before, partial.data_ptr())
                before = partial.data_ptr()
            final(before, values, out, alpha)

        return launch

    return Launch(bind, rows_are_contiguous)


def _partial_sums(problem: Problem) -> Tensor:
    count, dtype = (problem.heads or 1) * problem.nnz, DTYPES[problem.dtype].accumulator
    try:
        return torch.empty(count, dtype=dtype, device=problem.device)
    except torch.OutOfMemoryError as error:
        wanted = count * dtype.itemsize
        raise out_of_memory("partial sums of slices of k", wanted, problem.device) from error
