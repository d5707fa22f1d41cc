"""The launches of a product whose weights are put in the order of its nonzeros first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.spmm_shares.host import RowShares
from sddmm.backends.cuda.kernels.spmm_weights import host as spmm_weights
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# A permutation costs the more per nonzero the longer the rows of X are, and the more weights there
# are, which L2 cannot hold. From this product of the bytes of a head's weights and of the square of
# those of a row of X on, putting them in order costs less, on an H200.
ORDER_FROM = 2**40
# So does it where the weights of all heads and the rows of X of all heads leave L2 no room for each
# other, from this product of their bytes on; unless a head's X is so large that L2 holds few of its
# rows anyway.
_CROWDED_FROM, _LARGE_X = 6e14, 2**27
# However long X's rows are, weights of several heads cost less in order, on an H200, where one load
# reads those of _LEAST_TOGETHER heads of a nonzero, which are stored side by side for it, and where
# the product of nonzeros, heads and heads of a load is at least _TOGETHER_FROM. Both where rows of
# W have _LONG_ENOUGH nonzeros in the mean, as weights of shorter rows are mostly near each other.
_LEAST_TOGETHER = 4
_TOGETHER_FROM = 24_000_000
_LONG_ENOUGH = 4
# The most bytes of weights in order at a time. Fewer would be cut into more launches, each of which
# ends with idle multiprocessors: of 32 MB they take a fifth longer.
PART_BYTES = 2**27


class Part(NamedTuple):
    """What a launch computes: blocks, whose nonzeros are begin .. end - 1, of some heads."""

    first_block: int
    blocks: int
    begin: int
    end: int
    first_head: int
    heads: int


class Weights(NamedTuple):
    """Weights as a launch reads them: the addresses of that of nonzero 0 of its first head and of
    the factors, the elements from head to head, and the permutation through which both are read."""

    address: int
    head_stride: int
    factors: int
    perm: int


def is_worth_ordering(
    problem: SpmmProblem, order_from: int = ORDER_FROM, part_bytes: int = PART_BYTES
) -> bool:
    """Whether putting the weights in order costs less than reading them through a permutation."""
    weight_bytes = problem.nnz * problem.values_dtype.itemsize
    row_bytes = problem.k * problem.dtype.itemsize
    if weight_bytes * row_bytes**2 >= max(1, order_from):
        return True
    if problem.nnz < _LONG_ENOUGH * problem.m:
        return False
    heads, x_bytes = problem.heads or 1, problem.n * row_bytes
    weights_bytes = weight_bytes * (heads if problem.values_have_heads else 1)
    if x_bytes < _LARGE_X and weights_bytes * x_bytes * heads >= _CROWDED_FROM:
        return True
    if problem.is_lean:
        return False
    together = _heads_side_by_side(problem, part_bytes)
    return together >= _LEAST_TOGETHER and problem.nnz * heads * together >= _TOGETHER_FROM


def _heads_side_by_side(problem: SpmmProblem, part_bytes: int) -> int:
    """How many heads one read of a nonzero finds, if the weights are put in order."""
    dtype = ordered_problem(problem).values_dtype
    heads = min(problem.heads or 1, part_bytes // (dtype.itemsize * max(1, problem.nnz)))
    return (
        spmm_weights.heads_together(heads, dtype) if problem.values_have_heads and heads > 1 else 1
    )


def ordered_problem(problem: SpmmProblem) -> SpmmProblem:
    """The problem of the product with the weights in order, factors multiplied in."""
    dtype = spmm_weights.dtype_of(problem.values_dtype, problem.dtype, problem.has_factors)
    return problem._replace(values_dtype=dtype, has_factors=False)


def whole(problem: SpmmProblem, shares: RowShares) -> Part:
    """One launch for all."""
    return Part(0, shares.blocks, 0, problem.nnz, 0, problem.heads or 1)


def parts(problem: SpmmProblem, shares: RowShares, block_size: int, part_bytes: int) -> list[Part]:
    """Launches whose weights take about `part_bytes`: all blocks of several heads, or as many
    blocks of one as have so many nonzeros; of a lean problem one head's at most. block_size: the
    nonzeros and rows of a block."""
    most = max(1, part_bytes // problem.values_dtype.itemsize)
    heads = problem.heads or 1
    together = heads
    if problem.values_have_heads:
        together = 1 if problem.is_lean else min(heads, max(1, most // problem.nnz))
    blocks = max(1, most // block_size)
    firsts = list(range(0, shares.blocks, blocks))
    begins = [*shares.begins(firsts), problem.nnz]
    return [
        Part(
            first, min(blocks, shares.blocks - first), begins[i], begins[i + 1],
            head, min(together, heads - head),
        )
        for head in range(0, heads, together)
        for i, first in enumerate(firsts)
    ]  # fmt: skip


def weights_as_stored(values: Tensor, factors: Tensor | None, perm: Tensor | None) -> Weights:
    """The weights of all heads, ([heads,] nnz) values and (nnz,) factors, where they lie."""
    stride = values.stride(0) if values.dim() == 2 else 0
    return Weights(values.data_ptr(), stride, address(factors), address(perm))


def weights_in_order(
    problem: SpmmProblem,
    parts: list[Part],
    values: Tensor,
    factors: Tensor | None,
    perm: Tensor,
    device_index: int,
) -> Callable[[Part], Weights]:
    """The same in the order of perm: each call puts those of a part there, on torch's current
    stream, over those of the part before. problem: that of `ordered_problem`."""
    shared = values.dim() == 1
    by_head = values.unsqueeze(0) if shared else values
    most = max((p.end - p.begin) * (1 if shared else p.heads) for p in parts)
    memory = new_memory("weights in order", (most,), problem.values_dtype, values.device)

    def of(part: Part) -> Weights:
        own = by_head if shared else by_head[part.first_head : part.first_head + part.heads]
        count = part.end - part.begin
        weights = memory[: own.shape[0] * count].view(own.shape[0], count)
        if count > 0:
            positions = perm[part.begin : part.end]
            has_all = count == perm.numel() and own.shape[0] > 1
            order = spmm_weights.order_weights_of_heads if has_all else spmm_weights.order_weights
            order(own, factors, problem.dtype, positions, weights, device_index)
        first = weights.data_ptr() - part.begin * weights.element_size()
        return Weights(first, 0 if shared else count, 0, 0)

    return of
