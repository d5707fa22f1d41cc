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
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import loads_of_16_bytes
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.base import Addend
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.facts import PatternFacts, expected_row_parts
from sddmm.backends.cuda.kernels.product_rows import (
    LANE_BYTES,
    MAX_LANES,
    Access,
    RowAddresses,
    Slices,
    is_readable,
    row_macros,
    slices_of,
)
from sddmm.backends.cuda.kernels.row_gather.costs import loads_from_l2, parts_per_nonzero
from sddmm.backends.cuda.kernels.row_gather.loads import LINE_BYTES
from sddmm.backends.cuda.kernels.spmm_gather import ordering
from sddmm.backends.cuda.kernels.spmm_gather.sharing import (
    Sharing,
    columns_together,
    sharing_of,
    unaligned_batch,
)
from sddmm.backends.cuda.kernels.spmm_merge import host as spmm_merge
from sddmm.backends.cuda.kernels.spmm_rows.host import MEAN_OF_SHORT, launcher_of_short_rows
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

# Fitted to measurements on an H200. The time that any nonzero adds, and a weight that is read
# through a permutation, now or before the launch, in bytes of a row of X; that of the instructions
# for a nonzero, in picoseconds, and for each of its lanes, of half types and of others, times this
# power of the loads of a lane.
_NONZERO_BYTES, _WEIGHT_BYTES = 16, 48
_HALF_PS, _FLOAT_PS, _MORE_LOADS = (3.0, 1.2), (8.0, 0.75), 0.45
# The bytes of X that L1 holds, and which part of the loads of these finds them there; and how often
# rows that are summed side by side, of full columns, find each other's rows of X there.
_L1_BYTES, _L1_PART, _SIDE_BY_SIDE = 190e3, 0.9, 2.0
# By how much faster reading rows of X from memory again seems beside L2's loads.
_MEMORY_OVERLAP = 2.0
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
    whether they read weights through the permutation.
    """

    problem: SpmmProblem
    slices: Slices
    orders: bool
    has_perm: bool
    sharing: Sharing


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
        return Cost(gather_us(problem, model, facts))

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
        share, aligns_warps = work.sharing.share, work.sharing.aligns_warps
        self._shares = shares = share_rows(
            nonzeros, problem.m, warps, share, device, aligns_warps=aligns_warps
        )
        if work.orders:
            self._parts = ordering.parts(problem, shares, share * warps, spec.part_bytes)
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
        variant = specialise(loader.runtime, self._spec, self._work, self._device, access)
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


@functools.lru_cache(maxsize=64)
def _spec_with_memory(spec: SpmmGather, shared_bytes: int, min_blocks: int) -> SpmmGather:
    return replace(spec, shared_bytes=shared_bytes, min_blocks=min_blocks)


def specialise(
    runtime: loader.CudaRuntime, spec: SpmmGather, work: Work, device: Device, access: Access
) -> Variant:
    """The kernels for operands and results that are read and stored in this way."""
    problem, lanes = work.problem, work.slices.lanes
    batch, min_blocks = work.sharing.batch
    if access.step < LANE_BYTES:
        batch, min_blocks = unaligned_batch(problem, lanes, device)
    # The addresses of either take registers: so many blocks, and nothing spills.
    if batch == 8 and (access.has_addend or (access.has_beyond and lanes < MAX_LANES)):
        min_blocks = 2 if lanes > 1 else 1
    elif access.has_addend:
        min_blocks = min(min_blocks, 3)
    own = (
        ("POSITION", "int" if problem.nnz <= _MOST_BY_INT else "long long"),
        ("BATCH", batch), ("MIN_BLOCKS", min_blocks),
    )  # fmt: skip
    return _load(
        runtime, spec, without_sizes(problem), device, work.has_perm, access, min_blocks, own
    )


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
    sharing = sharing_of(problem, slices, reads_perm, spec.threads // 32, device)
    problem = ordering.ordered_problem(problem) if orders else problem
    return Work(problem, slices, orders, reads_perm, sharing)


def gather_us(problem: SpmmProblem, model: DeviceModel, facts: PatternFacts | None) -> float:
    """Gathering all nonzeros of the problem; of a uniform pattern if its facts are None."""
    if problem.k == 0:
        return model.launch_us
    is_sorted = facts is None or facts.ascends  # else weights come from anywhere
    orders = not is_sorted and ordering.is_worth_ordering(problem)
    parts = None if facts is None else parts_per_nonzero(facts, problem.nnz)
    lanes, _, slices = slices_of(problem)
    row_bytes = problem.k * problem.dtype.itemsize
    slice_bytes = row_bytes / slices
    rows: float = min(problem.n, problem.nnz)  # of X, that are read
    if parts is None:
        rows = expected_row_parts((1, problem.n), problem.nnz, 1)
        goes_together = columns_together(problem, lanes, has_perm=not (is_sorted or orders))
        from_l2 = _from_l2_if_uniform(problem, rows * slice_bytes, lanes if goes_together else 0)
    else:
        from_l2 = loads_from_l2(parts)
    nonzero_us = 1e6 * (slice_bytes * from_l2 + _NONZERO_BYTES) / model.l2_bytes
    fixed_ps, lane_ps = _HALF_PS if DTYPES[problem.dtype].is_half else _FLOAT_PS
    row_ps = (fixed_ps + lane_ps * lanes) * math.pow(loads_of_16_bytes(row_bytes), _MORE_LOADS)
    instructions_us = 1e-6 * row_ps / model.stores
    weight_us = 0.0 if is_sorted else 1e6 * _WEIGHT_BYTES / model.l2_bytes
    nonzeros_us = problem.nnz * slices * (max(nonzero_us, instructions_us) + weight_us)
    from_memory = rows * row_bytes + problem.k * problem.m * problem.out_dtype.itemsize
    if parts is None:  # nonzeros of other patterns often read the same rows of X
        missed = 1 - min(1.0, model.device.l2_bytes / max(1.0, rows * slice_bytes))
        again = missed * (problem.nnz - rows) * slices * max(slice_bytes, LINE_BYTES)
        from_memory += again / _MEMORY_OVERLAP
    heads_us = nonzeros_us + 1e6 * from_memory / model.memory_bytes
    launches = 1 if problem.nnz <= MEAN_OF_SHORT * problem.m else 2
    return launches * model.launch_us + (problem.heads or 1) * heads_us


def _from_l2_if_uniform(problem: SpmmProblem, x_bytes: float, lanes_together: int) -> float:
    """The part of the loads of rows of X that reach L2. x_bytes: those of a slice of all rows.
    lanes_together: those of a row, where warps go through the columns side by side; else 0."""
    from_l2 = 1 - _L1_PART * min(1.0, _L1_BYTES / max(1.0, x_bytes))
    density = problem.nnz / max(1, problem.m * problem.n)
    return from_l2 / (1 + _SIDE_BY_SIDE * lanes_together / MAX_LANES * math.sqrt(density))


SPMM_GATHER = SpmmGather(
    "spmm_gather", "spmm_gather", tuple(DTYPES), threads=256, max_nnz=2**63 - 1, prefers_l1=True
)
