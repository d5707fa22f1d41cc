"""How many nonzeros a warp of spmm_gather has, and how many rows of X it loads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.product_rows import LANE_BYTES, MAX_LANES, Slices

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# The most nonzeros and rows of a warp; the mean lengths of long and of short rows; and the nonzeros
# of all heads from which on shorter rows are read in long batches, too.
_MAX_SHARE, LONG_ROW, _SHORT_ROW, _MANY_NONZEROS = 1024, 64, 12, 2**22
# A warp takes a row, of rows that fill so much of all warps, where equal shares would be a row or a
# little more; and, where columns are so full that warps often find the same rows of X, a part of
# one. It gets a little less than the mean row: with more some warps have two, and all others wait.
_FILLED, _LEAST_ROWS, _MOST_ROWS, _FULL_COLUMNS, _PART_OF_ROW = 0.8, 0.8, 1.6, 0.05, 0.98
# By how much more of the warps have a row where smaller batches pay for the sake of that.
_BUSIER = 1.2


class Batch(NamedTuple):
    """The nonzeros of a group of lanes whose loads are in flight together, and the blocks that
    share a multiprocessor."""

    nonzeros: int
    min_blocks: int


class Sharing(NamedTuple):
    """share: the nonzeros and rows of a warp. aligns_warps: whether shares end where a row ends
    nearby. batch: that of rows of X which start at multiples of 16 bytes."""

    share: int
    aligns_warps: bool
    batch: Batch


def sharing_of(
    problem: SpmmProblem, slices: Slices, has_perm: bool, warps: int, device: Device
) -> Sharing:
    """How blocks of so many warps share a product. has_perm: whether its weights are read through a
    permutation."""
    batch = _batch(problem, slices.lanes, has_perm, device)
    parts = max(1, slices.number * (problem.heads or 1))
    total = problem.nnz + problem.m
    at_once = device.sm_count * batch.min_blocks  # blocks that run at the same time
    waves = ceil_div(total * parts, at_once * warps * _MAX_SHARE)
    blocks = max(1, at_once * waves // parts)
    share = max(4 * MAX_LANES // slices.lanes, ceil_div(total, blocks * warps))
    if not columns_together(problem, slices.lanes, has_perm):
        return Sharing(share, False, batch)
    rows, warps_at_once = problem.m * parts, device.sm_count * warps
    is_row = share * problem.m < _MOST_ROWS * total
    is_row &= rows >= _FILLED * warps_at_once * batch.min_blocks
    if share * problem.m < _LEAST_ROWS * total:
        is_row &= problem.nnz >= _FULL_COLUMNS * problem.m * problem.n
    if is_row:
        share = int(_PART_OF_ROW * total / problem.m)
        smaller = Batch(4, 4)
        busy, busier = (_busy(rows, warps_at_once * b.min_blocks) for b in (batch, smaller))
        if device.capability >= (9, 0) and busier > _BUSIER * busy:
            batch = smaller
    return Sharing(share, True, batch)


def columns_together(problem: SpmmProblem, lanes: int, has_perm: bool) -> bool:
    """Whether the warps of a multiprocessor do better to begin where rows begin: they go through
    the columns side by side, and find rows of X in L1 that others have loaded. On an H200 that is
    worth uneven shares where rows of the result are long, and few groups cut them."""
    loads_much = lanes == MAX_LANES or (2 * lanes == MAX_LANES and problem.dtype == torch.float32)
    return loads_much and problem.nnz >= LONG_ROW * problem.m and not has_perm


def _busy(rows: int, at_once: int) -> float:
    """The part of the warps that have a row, in the mean, where so many run at once."""
    return rows / (ceil_div(rows, at_once) * at_once)


def _batch(problem: SpmmProblem, lanes: int, has_perm: bool, device: Device) -> Batch:
    lane_sums = LANE_BYTES // problem.dtype.itemsize * problem.accumulator.itemsize
    if lane_sums > 32:
        return Batch(4, 2)
    is_hopper = device.capability >= (9, 0)  # older GPUs' code needs more registers
    if problem.accumulator == torch.float64:
        return Batch(4, 3 if is_hopper else 2)
    # Short rows are stored often, which many warps hide better than many loads of a warp.
    if lanes >= 8 and problem.nnz >= LONG_ROW * problem.m and not has_perm:
        return Batch(8, 3 if is_hopper else 2)
    if lanes <= 4 and is_hopper and _fills_batches(problem):
        needs_few_registers = lanes == 4 and not has_perm and not problem.has_factors
        return Batch(8, 3 if needs_few_registers else 2)
    # Of fewer lanes, each holds several nonzeros.
    return Batch(4, 4 if is_hopper and lanes >= 4 else 3)


def unaligned_batch(problem: SpmmProblem, lanes: int) -> Batch:
    """That of rows of X which do not start at multiples of 16 bytes: the smaller loads of a chunk
    need more registers."""
    if problem.accumulator == torch.float64 or (lanes == 1 and problem.dtype != torch.float32):
        return Batch(4, 2)
    if lanes < 8:
        return Batch(8, 2)
    return Batch(4, 3) if problem.nnz >= LONG_ROW * problem.m else Batch(2, 4)


def _fills_batches(problem: SpmmProblem) -> bool:
    """Whether the many groups of few lanes find longer batches without the end of a row, or have so
    many that they wait for memory."""
    is_short = problem.nnz < _SHORT_ROW * problem.m
    return not is_short or problem.nnz * (problem.heads or 1) >= _MANY_NONZEROS
