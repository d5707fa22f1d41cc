"""How many nonzeros a warp of spmm_gather has, and how many rows of X it loads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.product_rows import LANE_BYTES, MAX_LANES, Slices

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# The most nonzeros and rows of an equal share.
_MAX_SHARE = 1024
# The mean lengths of long and of short rows; and the nonzeros of all heads from which on shorter
# rows are read in long batches, too.
LONG_ROW, _SHORT_ROW, _MANY_NONZEROS = 64, 12, 2**22

# A warp takes one row where an equal share would be this part of a row ..
_LEAST_ROWS, _MOST_ROWS = 0.8, 1.6
# .. or less, where columns are so full that warps side by side often read the same rows of X; and
# where so many of the warps have a row then.
_FULL_COLUMNS, _LEAST_BUSY = 0.05, 0.75
# The part of the mean row that it gets at least: with a whole one some warps had two rows, and all
# others waited for them.
_PART_OF_ROW = 0.98
# By how much more of the warps have a row where smaller batches pay for the sake of that.
_BUSIER = 1.2


class Batch(NamedTuple):
    """The nonzeros of a group of lanes whose loads are in flight together, and the blocks that
    share a multiprocessor."""

    nonzeros: int
    min_blocks: int


_LONG_BATCH = Batch(8, 3)
"""That of long rows on Hopper."""


class Sharing(NamedTuple):
    """share: the nonzeros and rows of a warp. aligns_warps: whether shares end where a row ends
    nearby. batch: that of rows of X which are adjacent, from a multiple of 16 bytes on."""

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
    at_once = device.sm_count * batch.min_blocks
    waves = ceil_div(total * parts, at_once * warps * _MAX_SHARE)
    even = _even_share(total, parts, waves * at_once, warps)
    share = max(4 * MAX_LANES // slices.lanes, even)
    together = columns_together(problem, slices.lanes, has_perm)
    if together and _is_about_a_row(problem, share):
        return _by_rows(problem, parts, warps, device, batch) or Sharing(share, True, batch)
    return Sharing(share, together, batch)


def _is_about_a_row(problem: SpmmProblem, share: int) -> bool:
    """Whether an equal share is so near to a mean row that warps had better take one each."""
    rows, total = share * problem.m, problem.nnz + problem.m
    is_full = problem.nnz >= _FULL_COLUMNS * problem.m * problem.n
    return rows < _MOST_ROWS * total and (is_full or rows >= _LEAST_ROWS * total)


def _by_rows(
    problem: SpmmProblem, parts: int, warps: int, device: Device, batch: Batch
) -> Sharing | None:
    """Shares of a row each, in the batches with which most warps have one; None if too few have."""
    rows, total = problem.m * parts, problem.nnz + problem.m
    smaller = Batch(4, 4)

    def busy(batch: Batch) -> float:
        """The part of the warps that have a row, in the mean, while others do."""
        at_once = device.sm_count * batch.min_blocks * warps
        return rows / (ceil_div(rows, at_once) * at_once)

    if batch == _LONG_BATCH and busy(smaller) > _BUSIER * busy(batch):
        batch = smaller
    if busy(batch) < _LEAST_BUSY:
        return None
    # No smaller than would need another wave of blocks.
    at_once = device.sm_count * batch.min_blocks
    even = _even_share(total, parts, at_once * ceil_div(rows, at_once * warps), warps)
    return Sharing(max(int(_PART_OF_ROW * total / problem.m), even), True, batch)


def _even_share(total: int, parts: int, blocks: int, warps: int) -> int:
    """The share of each warp where so many blocks divide so many parts of `total` each."""
    return ceil_div(total, max(1, blocks // parts) * warps)


def columns_together(problem: SpmmProblem, lanes: int, has_perm: bool) -> bool:
    """Whether the warps of a multiprocessor do better to begin where rows begin: they go through
    the columns side by side, and find rows of X in L1 that others have loaded. On an H200 that is
    worth uneven shares where rows of the result are long, and few groups cut them."""
    loads_much = lanes == MAX_LANES or (2 * lanes == MAX_LANES and problem.dtype == torch.float32)
    return loads_much and problem.nnz >= LONG_ROW * problem.m and not has_perm


def _batch(problem: SpmmProblem, lanes: int, has_perm: bool, device: Device) -> Batch:
    if problem.k * problem.dtype.itemsize % LANE_BYTES:
        return unaligned_batch(problem, lanes, device)
    lane_sums = LANE_BYTES // problem.dtype.itemsize * problem.accumulator.itemsize
    if lane_sums > 32:
        return Batch(4, 2)
    is_hopper = device.capability >= (9, 0)  # older GPUs' code needs more registers
    if problem.accumulator == torch.float64:
        return Batch(4, 3 if is_hopper else 2)
    # Short rows are stored often, which many warps hide better than many loads of a warp.
    if lanes >= 8 and problem.nnz >= LONG_ROW * problem.m and not has_perm:
        return _LONG_BATCH if is_hopper else Batch(8, 2)
    if lanes <= 4 and is_hopper and _fills_batches(problem):
        needs_few_registers = lanes == 4 and not has_perm and not problem.has_factors
        return Batch(8, 3 if needs_few_registers else 2)
    # Where lanes are fewer than a batch, each holds several nonzeros.
    return Batch(4, 4 if is_hopper and lanes >= 4 else 3)


def unaligned_batch(problem: SpmmProblem, lanes: int, device: Device) -> Batch:
    """That of rows of X which do not start at multiples of 16 bytes: the smaller loads of a chunk
    need more registers."""
    is_hopper = device.capability >= (9, 0)  # older GPUs' code needs more registers
    has_few_sums = problem.accumulator == torch.float32
    if not (is_hopper and has_few_sums) or (lanes == 1 and problem.dtype != torch.float32):
        return Batch(4, 2)
    if lanes < 8:
        return Batch(8, 2)
    return Batch(4, 3) if problem.nnz >= LONG_ROW * problem.m else Batch(2, 4)


def _fills_batches(problem: SpmmProblem) -> bool:
    """Whether the many groups of few lanes find longer batches without the end of a row, or have so
    many that they wait for memory."""
    is_short = problem.nnz < _SHORT_ROW * problem.m
    return not is_short or problem.nnz * (problem.heads or 1) >= _MANY_NONZEROS
