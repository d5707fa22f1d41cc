"""spmm_gather: every warp has the same number of nonzeros and rows, whatever the pattern.

It needs nothing but the nonzeros sorted by row. It computes a slice of at most 512 bytes of X's
rows at a time, slice by slice, so that the slices of all rows stay in L2 where whole rows do not.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel, ceil_div
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.spmm_merge import host as spmm_merge
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.products import ProductPlan
from sddmm.backends.cuda.spec import AnalysisRequest, KernelSpec, Layouts, macros, type_macros
from sddmm.dtypes import DTYPES
from sddmm.errors import out_of_memory

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# The bytes that a lane loads of a row, and the most lanes that share a row.
_LANE_BYTES, _MAX_LANES = 16, 32
# The time of a nonzero that does not depend on the bytes of its row, in bytes of the row.
_NONZERO_BYTES = 24

# The most nonzeros and rows of a warp.
_MAX_SHARE = 512
# The most bytes from row to row of X that the kernel can step over.
_MAX_PITCH_BYTES = 2**31 - 1


class Arguments(ctypes.Structure):
    """The parameters of spmm_gather/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("dense", "values", "factors", "out")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "pieces", "records")),
        *((name, LONG) for name in ("nnz", "head_dense", "head_values", "head_out", "share")),
        *((name, INT) for name in ("pitch_bytes", "blocks", "slices", "m", "k")),
        ("alpha", DOUBLE),
    ]


class Variant(NamedTuple):
    """One specialisation of both passes, and the sizes of their launches.

    blocks: those of each slice of each head. piece_bytes, record_bytes: the sizes of the arrays
    by which the first pass passes pieces of rows to the second.
    """

    kernel: Kernel
    merge: Kernel
    lanes: int
    slices: int
    share: int
    blocks: int
    piece_bytes: int
    record_bytes: int


class SpmmGather(KernelSpec):
    """Serves every pattern."""

    def needs_ahead(self, problem: SpmmProblem, model: DeviceModel) -> AnalysisRequest | None:
        return None

    def cost_us(self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel) -> Cost:
        return Cost(gather_us(problem, model))

    def prepare(
        self, layouts: Layouts, problem: SpmmProblem, model: DeviceModel
    ) -> tuple[ProductPlan, ...]:
        launcher = _Launcher(self, layouts.by_row(), problem, model.device)
        return (ProductPlan(launcher.run, _is_readable),)


def _is_readable(dense: Tensor) -> bool:
    """Whether rows are contiguous, and near enough to each other."""
    if dense.shape[-1] > 1 and dense.stride(-1) != 1:
        return False
    return 0 <= dense.stride(-2) * dense.element_size() <= _MAX_PITCH_BYTES


class _Launcher:
    """Launches both passes over fixed nonzeros."""

    def __init__(
        self, spec: SpmmGather, nonzeros: Nonzeros, problem: SpmmProblem, device: Device
    ) -> None:
        self._spec, self._nonzeros, self._problem, self._device = spec, nonzeros, problem, device

    def run(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        """Launch on torch's current stream."""
        problem, nonzeros = self._problem, self._nonzeros
        nnz, k, heads = nonzeros.cols.numel(), problem.k, problem.heads or 1
        if problem.m == 0 or k == 0 or heads == 0:
            return
        size = dense.element_size()
        pitch_bytes = dense.stride(-2) * size
        head_dense = dense.stride(0) if problem.heads is not None else 0
        address_dense, address_out = dense.data_ptr(), out.data_ptr()
        step = _common_step(address_dense, pitch_bytes | head_dense * size | k * size)
        step_out = _common_step(address_out, k * out.element_size())
        variant = specialise(loader.runtime, self._spec, problem, nnz, self._device, step, step_out)
        head_values = values.stride(0) if values.dim() == 2 else 0
        work, records = 0, 0
        if variant.blocks > 1:
            memory = _work_memory(variant.piece_bytes + variant.record_bytes, problem.device)
            work = memory.data_ptr()
            records = work + variant.piece_bytes
        blocks = variant.blocks * variant.slices * heads
        variant.kernel(  # in the order of Arguments
            blocks, address_dense, values.data_ptr(), address(factors), address_out,
            nonzeros.rows.data_ptr(), nonzeros.cols.data_ptr(), address(nonzeros.perm), work,
            records, nnz, head_dense, head_values, problem.m * k, variant.share, pitch_bytes,
            variant.blocks, variant.slices, problem.m, k, alpha,
        )  # fmt: skip
        if variant.blocks > 1:
            variant.merge(
                blocks, work, records, address_out, problem.m * k, variant.blocks, variant.slices,
                k, alpha,
            )  # fmt: skip


def _common_step(first: int, sizes: int) -> int:
    """The largest power of two, up to 16, that divides an address and several sizes, which are
    given as one number with the bits of all."""
    bits = first | sizes | _LANE_BYTES
    return bits & -bits


def _work_memory(size: int, device: torch.device) -> Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise out_of_memory("pieces of rows", size, device) from error


def lanes_of_row(k: int, itemsize: int) -> int:
    """The lanes that load a slice of a row together: those that cost the fewest bytes."""

    def cost(lanes: int) -> tuple[int, int]:
        slices = ceil_div(k * itemsize, lanes * _LANE_BYTES)
        return slices * (lanes * _LANE_BYTES + _NONZERO_BYTES), lanes

    return min((1, 2, 4, 8, 16, 32), key=cost)


def batch_of_group(spec: SpmmGather, lanes: int, lane_sums: int, step: int) -> tuple[int, int]:
    """The nonzeros of a group whose loads are in flight together, and the blocks that share a
    multiprocessor. lane_sums: the bytes of the sums of a lane."""
    if step < 16 or lane_sums > 32:  # loads of few bytes need more registers
        return 4, 2
    return min(8, max(4, lanes)), spec.min_blocks


@functools.lru_cache(maxsize=64)
def _spec_with_memory(spec: SpmmGather, shared_bytes: int, min_blocks: int) -> SpmmGather:
    return replace(spec, shared_bytes=shared_bytes, min_blocks=min_blocks)


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    spec: SpmmGather,
    problem: SpmmProblem,
    nnz: int,
    device: Device,
    step: int,
    step_out: int,
) -> Variant:
    """The kernels for operands whose rows start at multiples of `step` bytes, and results whose
    rows start at multiples of `step_out`; cached, as every pattern with so many nonzeros has the
    same."""
    heads, itemsize = problem.heads or 1, problem.dtype.itemsize
    lanes = lanes_of_row(problem.k, itemsize)
    columns = lanes * _LANE_BYTES // itemsize
    slices = ceil_div(problem.k, columns)
    accumulator = torch.promote_types(
        DTYPES[problem.dtype].accumulator, DTYPES[problem.values_dtype].accumulator
    )
    lane_sums = _LANE_BYTES // itemsize * accumulator.itemsize
    batch, min_blocks = batch_of_group(spec, lanes, lane_sums, step)
    groups = spec.threads // lanes
    spec = _spec_with_memory(spec, 2 * spec.threads * lane_sums + 4 * groups, min_blocks)
    defines: dict[str, str | int | bool] = {
        **type_macros(problem.dtype, problem.out_dtype),
        "VALUE": DTYPES[problem.values_dtype].cpp_name,
        "LOAD_BYTES": step, "STORE_BYTES": step_out,
        "NO_TAIL": step == 16 and problem.k % columns == 0,
        "LANES": lanes, "BATCH": batch, "MIN_BLOCKS": min_blocks,
    }  # fmt: skip
    kernel = runtime.load_kernel(spec, macros(defines), Arguments, device.index)
    merge = spmm_merge.load(runtime, accumulator, problem.out_dtype, columns, device.index)
    total = nnz + problem.m
    warps = spec.threads // 32
    share = _share_of_warp(total * slices * heads, device.sm_count * min_blocks * warps, lanes)
    blocks = ceil_div(ceil_div(total, share), warps)
    pieces = blocks * slices * heads * 2 * columns * accumulator.itemsize
    return Variant(kernel, merge, lanes, slices, share, blocks, pieces, 8 * blocks)


def _share_of_warp(total: int, warps: int, lanes: int) -> int:
    """Nonzeros and rows of a warp: one wave of warps for small problems."""
    least = 4 * _MAX_LANES // lanes
    return max(least, min(_MAX_SHARE, ceil_div(total, warps)))


def gather_us(problem: SpmmProblem, model: DeviceModel) -> float:
    """Gathering all nonzeros of the problem."""
    itemsize, heads = problem.dtype.itemsize, problem.heads or 1
    lanes = lanes_of_row(problem.k, itemsize)
    slices = ceil_div(problem.k * itemsize, lanes * _LANE_BYTES)
    l2_us = 1e6 * problem.nnz * slices * (lanes * _LANE_BYTES + _NONZERO_BYTES) / model.l2_bytes
    columns, rows = min(problem.n, problem.nnz), problem.m
    from_memory = (columns * itemsize + rows * problem.out_dtype.itemsize) * problem.k
    return 2 * model.launch_us + heads * (l2_us + 1e6 * from_memory / model.memory_bytes)


SPMM_GATHER = SpmmGather(
    "spmm_gather", "spmm_gather", tuple(DTYPES), threads=128, min_blocks=5, max_nnz=2**63 - 1
)
