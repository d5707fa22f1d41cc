"""spmm_gather: every warp has the same number of nonzeros and rows, whatever the pattern. Products
of short rows are launched as spmm_rows.

It needs the nonzeros sorted by row, and how warps share them (spmm_shares). It computes a slice of
at most 512 bytes of X's rows at a time, slice by slice, so that the slices of all rows stay in L2
where whole rows do not. Weights in another order are read through a permutation, or put in order
first (spmm_weights), a part at a time, where they are so many that L2 does not hold them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.base import Addend
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.product_rows import (
    LANE_BYTES,
    MAX_LANES,
    NONZERO_BYTES,
    Access,
    RowAddresses,
    Slices,
    is_readable,
    lanes_of_row,
    row_macros,
    slices_of,
)
from sddmm.backends.cuda.kernels.spmm_gather import ordering
from sddmm.backends.cuda.kernels.spmm_merge import host as spmm_merge
from sddmm.backends.cuda.kernels.spmm_rows.host import launcher_of_short_rows
from sddmm.backends.cuda.kernels.spmm_shares.host import share_rows
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.products import ProductPlan
from sddmm.backends.cuda.spec import (
    ROW_IDS,
    AnalysisRequest,
    KernelSpec,
    Layouts,
    macros,
)
from sddmm.dtypes import DTYPES
from sddmm.memory import new_memory
from sddmm.problem import without_sizes

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# The time of a weight read through a permutation, in bytes of a row of X (on an H200).
_WEIGHT_BYTES = 48

# The most nonzeros and rows of a warp; the mean lengths of long and of short rows; and the nonzeros
# of all heads from which on shorter rows are read in long batches, too.
_MAX_SHARE, _LONG_ROW, _SHORT_ROW, _MANY_NONZEROS = 1024, 64, 12, 2**22
# The bytes of shared memory of a group beside its sums, and of a block.
_GROUP_BYTES, _BLOCK_BYTES = 28, 16
# The most nonzeros that the kernel counts by int: it counts a little further.
_MOST_BY_INT = 2**31 - 2**12


class Arguments(ctypes.Structure):
    """The parameters of spmm_gather/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("dense", "beyond", "values", "factors", "out")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "pieces", "records")),
        *((name, LONG) for name in ("head_dense", "head_values", "head_out")),
        *((name, INT) for name in ("pitch_bytes", "pitch_beyond", "first_beyond")),
        *((name, INT) for name in ("blocks", "slices")),
        *((name, INT) for name in ("first_block", "own_blocks", "k")),
        ("alpha", DOUBLE),
        *((name, POINTER) for name in ("addend", "out_rows")),
    ]


class Variant(NamedTuple):
    """One specialisation of both passes."""

    kernel: Kernel
    merge: Kernel


class Work(NamedTuple):
    """What follows from a problem and from whether its nonzeros have a permutation.

    problem: that of the launches. orders: whether they put the weights in order first. has_perm:
    whether they read weights through the permutation. share: the nonzeros and rows of a warp.
    aligns_warps: whether shares end where a row ends nearby.
    """

    problem: SpmmProblem
    slices: Slices
    orders: bool
    has_perm: bool
    share: int
    aligns_warps: bool


@dataclass(frozen=True, eq=False)
class SpmmGather(KernelSpec):
    """Serves every pattern.

    order_from, part_bytes: from what size on weights are put in order, and how many at a time
    (ordering.py). longest_short: the most nonzeros of a row that is short; where all are, and in
    the mean few, rows are not shared (spmm_rows).
    """

    order_from: int = ordering.ORDER_FROM
    part_bytes: int = ordering.PART_BYTES
    longest_short: int = 64

    def needs_ahead(self, problem: SpmmProblem, model: DeviceModel) -> AnalysisRequest:
        return ROW_IDS

    def cost_us(self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel) -> Cost:
        return Cost(gather_us(problem, model, facts is None or facts.ascends))

    def prepare(
        self, layouts: Layouts, problem: SpmmProblem, model: DeviceModel
    ) -> tuple[ProductPlan, ...]:
        nonzeros, device = layouts.by_row(), model.device
        work = work_of(self, problem, device, nonzeros.perm is not None)
        run = None
        if not work.orders:
            run = launcher_of_short_rows(problem, nonzeros, self.longest_short, device)
        if run is None:
            run = _Launcher(self, work, nonzeros, device).run
        return (
            ProductPlan(run, is_readable, reads_beyond=True, takes_addend=problem.heads is None),
        )


class _Launcher:
    """Launches both passes over fixed nonzeros."""

    def __init__(self, spec: SpmmGather, work: Work, nonzeros: Nonzeros, device: Device) -> None:
        self._spec, self._work, self._nonzeros, self._device = spec, work, nonzeros, device
        problem, warps = work.problem, spec.threads // 32
        # Found again by the steps at once: a problem takes long to hash.
        self._variants: dict[Access, Variant] = {}
        self._shares = shares = share_rows(
            nonzeros, problem.m, warps, work.share, device, aligns_warps=work.aligns_warps
        )
        if work.orders:
            self._parts = ordering.parts(problem, shares, work.share * warps, spec.part_bytes)
        else:
            self._parts = [ordering.whole(problem, shares)]

    def run(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None, addend: Addend | None = None,
    ) -> None:  # fmt: skip
        """Launch on torch's current stream."""
        shares, work = self._shares, self._work
        problem, slices = work.problem, work.slices
        k, size = problem.k, dense.element_size()
        at = RowAddresses.of(problem, dense, out, beyond, addend)
        variant = self._variants.get(at.access) or self._new_variant(at.access)
        piece_bytes, pieces, records = 0, 0, 0
        if shares.cuts:
            piece_bytes = 2 * shares.blocks * slices.number * slices.columns
            piece_bytes *= problem.accumulator.itemsize  # of a head
            heads_bytes = piece_bytes * (problem.heads or 1)
            count = heads_bytes + 8 * shares.blocks
            memory = new_memory("pieces of rows", (count,), torch.uint8, problem.device)
            pieces = memory.data_ptr()
            records = pieces + heads_bytes
        nonzeros = self._nonzeros
        as_stored = ordering.weights_as_stored(values, factors, nonzeros.perm)
        in_order = self._weights_in_order(values, factors) if work.orders else None
        for part in self._parts:
            head, weights = part.first_head, as_stored if in_order is None else in_order(part)
            variant.kernel(  # in the order of Arguments
                part.blocks * slices.number * part.heads,
                at.dense + head * at.head_dense * size, at.beyond, weights.address,
                weights.factors, at.out + head * problem.m * k * out.element_size(),
                nonzeros.rows.data_ptr(), nonzeros.cols.data_ptr(), weights.perm,
                shares.address, pieces and pieces + head * piece_bytes, records,
                at.head_dense, weights.head_stride, problem.m * k, at.pitch_bytes,
                at.pitch_beyond,
                dense.shape[-2], shares.blocks, slices.number, part.first_block, part.blocks, k,
                alpha, at.addend, at.out_rows,
            )  # fmt: skip
        if shares.cuts:
            variant.merge(
                shares.blocks * slices.number * (problem.heads or 1), pieces, records, at.out,
                at.addend, at.out_rows, problem.m * k, shares.blocks, slices.number, k, alpha,
            )  # fmt: skip

    def _new_variant(self, access: Access) -> Variant:
        work = self._work
        variant = specialise(
            loader.runtime, self._spec, work.problem, self._device, work.has_perm, access
        )
        self._variants[access] = variant
        return variant

    def _weights_in_order(
        self, values: Tensor, factors: Tensor | None
    ) -> Callable[[ordering.Part], ordering.Weights]:
        perm = self._nonzeros.perm
        assert perm is not None, "weights are stored in the order of the nonzeros"
        return ordering.weights_in_order(
            self._work.problem, self._parts, values, factors, perm, self._device.index
        )


def batch_of_group(
    problem: SpmmProblem, lanes: int, has_perm: bool, step: int, device: Device
) -> tuple[int, int]:
    """The nonzeros of a group whose loads are in flight together, and the blocks that share a
    multiprocessor."""
    lane_sums = LANE_BYTES // problem.dtype.itemsize * problem.accumulator.itemsize
    if step < LANE_BYTES or lane_sums > 32:  # loads of few bytes need more registers
        return 4, 2
    is_hopper = device.capability >= (9, 0)  # older GPUs' code needs more registers
    if problem.accumulator == torch.float64:
        return 4, 3 if is_hopper else 2
    # Short rows are stored often, which many warps hide better than many loads of a warp.
    if lanes >= 8 and problem.nnz >= _LONG_ROW * problem.m and not has_perm:
        return 8, 3 if is_hopper else 2
    if lanes <= 4 and is_hopper and _fills_batches(problem):
        needs_few_registers = lanes == 4 and not has_perm and not problem.has_factors
        return 8, 3 if needs_few_registers else 2
    return 4, 4 if is_hopper and lanes >= 4 else 3  # of fewer, a lane holds several nonzeros


def _fills_batches(problem: SpmmProblem) -> bool:
    """Whether the many groups of few lanes find longer batches without the end of a row, or have so
    many that they wait for memory."""
    is_short = problem.nnz < _SHORT_ROW * problem.m
    return not is_short or problem.nnz * (problem.heads or 1) >= _MANY_NONZEROS


@functools.lru_cache(maxsize=64)
def _spec_with_memory(spec: SpmmGather, shared_bytes: int, min_blocks: int) -> SpmmGather:
    return replace(spec, shared_bytes=shared_bytes, min_blocks=min_blocks)


def specialise(
    runtime: loader.CudaRuntime,
    spec: SpmmGather,
    problem: SpmmProblem,
    device: Device,
    has_perm: bool,
    access: Access,
) -> Variant:
    """The kernels for operands and results that are read and stored in this way."""
    lanes = lanes_of_row(problem.k, problem.dtype.itemsize)
    batch, min_blocks = batch_of_group(problem, lanes, has_perm, access.step, device)
    # The addresses of either take registers: so many blocks, and nothing spills.
    if batch == 8 and (access.has_addend or (access.has_beyond and lanes < MAX_LANES)):
        min_blocks = 2 if lanes > 1 else 1
    elif access.has_addend:
        min_blocks = min(min_blocks, 3)
    own = (
        ("POSITION", "int" if problem.nnz <= _MOST_BY_INT else "long long"),
        ("BATCH", batch), ("MIN_BLOCKS", min_blocks),
    )  # fmt: skip
    return _load(runtime, spec, without_sizes(problem), device, has_perm, access, min_blocks, own)


@functools.lru_cache(maxsize=1024)
def _load(
    runtime: loader.CudaRuntime,
    spec: SpmmGather,
    problem: SpmmProblem,
    device: Device,
    has_perm: bool,
    access: Access,
    min_blocks: int,
    own: tuple[tuple[str, str | int | bool], ...],
) -> Variant:
    """The kernels with the macros `own`, and with those that follow from the problem. Cached by
    what the compiler is told: patterns of many sizes have the same kernels."""
    accumulator = problem.accumulator
    lanes, columns, _ = slices_of(problem)
    lane_sums = LANE_BYTES // problem.dtype.itemsize * accumulator.itemsize
    shared_bytes = 2 * spec.threads * lane_sums + _GROUP_BYTES * spec.threads // lanes
    shared_bytes += _BLOCK_BYTES
    spec = _spec_with_memory(spec, shared_bytes, min_blocks)
    defines = row_macros(problem, access, has_perm) | dict(own)
    kernel = runtime.load_kernel(spec, macros(defines), Arguments, device.index)
    merge = spmm_merge.load(runtime, accumulator, problem.out_dtype, columns, device.index)
    return Variant(kernel, merge)


@functools.lru_cache(maxsize=1024)
def work_of(spec: SpmmGather, problem: SpmmProblem, device: Device, has_perm: bool) -> Work:
    """The work of a problem. has_perm: whether nonzeros are read through a permutation."""
    slices = slices_of(problem)
    orders = has_perm and ordering.is_worth_ordering(problem, spec.order_from, spec.part_bytes)
    reads_perm = has_perm and not orders
    share = _share_of_warp(spec, problem, slices, device, reads_perm)
    problem = ordering.ordered_problem(problem) if orders else problem
    aligns_warps = _aligns_warps(problem, slices.lanes, reads_perm)
    return Work(problem, slices, orders, reads_perm, share, aligns_warps)


def _aligns_warps(problem: SpmmProblem, lanes: int, has_perm: bool) -> bool:
    """Whether the warps of a multiprocessor do better to begin where rows begin: they go through
    the columns side by side, and find rows of X in L1 that others have loaded. On an H200 that is
    worth uneven shares where rows of the result are long, and few groups cut them."""
    loads_much = lanes == MAX_LANES or (2 * lanes == MAX_LANES and problem.dtype == torch.float32)
    return loads_much and problem.nnz >= _LONG_ROW * problem.m and not has_perm


def _share_of_warp(
    spec: SpmmGather, problem: SpmmProblem, slices: Slices, device: Device, has_perm: bool
) -> int:
    """Nonzeros and rows of a warp: as many as fill all multiprocessors evenly, once or several
    times."""
    parts = max(1, slices.number * (problem.heads or 1))
    total = problem.nnz + problem.m
    warps = spec.threads // 32
    per_sm = batch_of_group(problem, slices.lanes, has_perm, LANE_BYTES, device)[1]
    at_once = device.sm_count * per_sm  # blocks that run at the same time
    waves = ceil_div(total * parts, at_once * warps * _MAX_SHARE)
    blocks = max(1, at_once * waves // parts)
    return max(4 * MAX_LANES // slices.lanes, ceil_div(total, blocks * warps))


def gather_us(problem: SpmmProblem, model: DeviceModel, is_sorted: bool = True) -> float:
    """Gathering all nonzeros of the problem; unless they are sorted, weights come from anywhere."""
    itemsize = problem.dtype.itemsize
    lanes, _, slices = slices_of(problem)
    per_nonzero = lanes * LANE_BYTES + NONZERO_BYTES + (0 if is_sorted else _WEIGHT_BYTES)
    l2_us = 1e6 * problem.nnz * slices * per_nonzero / model.l2_bytes
    columns = min(problem.n, problem.nnz)
    from_memory = (columns * itemsize + problem.m * problem.out_dtype.itemsize) * problem.k
    heads_us = l2_us + 1e6 * from_memory / model.memory_bytes
    return model.launch_us + (problem.heads or 1) * heads_us


SPMM_GATHER = SpmmGather(
    "spmm_gather", "spmm_gather", tuple(DTYPES), threads=256, max_nnz=2**63 - 1, prefers_l1=True
)
