"""row_gather: equally many nonzeros a warp, whatever the pattern. No preparation but row ids."""

from __future__ import annotations

import ctypes

from torch import Tensor

from gemm_core.device import Device
from gemm_core.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.families import (
    Bound,
    Launch,
    address,
    alignment,
    bound,
    loaded,
    placed,
    rows_are_contiguous,
    types,
)
from sddmm.partition import Nonzeros
from sddmm.problem import Problem
from sddmm.spec import KernelSpec, macros


class Arguments(ctypes.Structure):
    """Of row_gather.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "rows", "cols", "order")),
        *((name, LONG) for name in ("count", "pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        ("chunks", LONG),
        *((name, INT) for name in ("chunk", "heads", "k")),
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
    four = step == 16 and segments <= (4 if problem.dtype.itemsize == 2 else 2)
    return {
        "BYTES": step,
        "SEGMENTS": segments,
        "BATCHES": 4 if four else 2,
        "SINGLE": row_bytes <= per_pass,
        "WHOLE": step == 16 and row_bytes > 0 and row_bytes % per_pass == 0,
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
    row_bytes = problem.k * problem.dtype.itemsize
    kernels: dict[int, tuple[Kernel, int, int, int]] = {}

    def specialised(step: int) -> tuple[Kernel, int, int, int]:
        shape = shape_of(problem, step)
        # Pieces of few bytes want more registers.
        blocks_per_sm = spec.min_blocks if step >= 8 else spec.min_blocks // 2
        kernel = loaded(
            spec,
            macros(
                {**types(problem), **shape, "THREADS": spec.threads, "MIN_BLOCKS": blocks_per_sm}
            ),
            Arguments,
            device.index,
        )
        chunk = chunk_of(problem, count, device, 8 * int(shape["BATCHES"]))
        chunks = -(-count // chunk)
        return kernel, -(-chunks * heads // (spec.threads // 32)), chunk, chunks

    def bind(a: Tensor, b_t: Tensor) -> Bound:
        step = alignment(a, b_t, row_bytes)
        found = kernels.get(step)
        if found is None:
            found = kernels[step] = specialised(step)
        kernel, blocks, chunk, chunks = found
        return bound(
            kernel, blocks, **placed(a, b_t), rows=rows.data_ptr(), cols=cols.data_ptr(),
            order=address(order), count=count, head_out=problem.nnz, chunks=chunks,
            chunk=chunk, heads=heads, k=problem.k,
        )  # fmt: skip

    return Launch(bind, rows_are_contiguous)
