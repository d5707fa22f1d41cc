"""The launches of a product whose weights are put in the order of its nonzeros first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from sddmm.backends.cuda.kernels.spmm_shares.host import RowShares
from sddmm.backends.cuda.kernels.spmm_weights import host as spmm_weights
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.errors import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# A permutation costs the more per nonzero the longer the rows of X are, and the more weights there
# are, which L2 cannot hold. From this product of the bytes of a head's weights and of a row of X
# on, putting them in order costs less, on an H200.
ORDER_FROM = 2**31
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
    """Weights as a launch reads them: the address of that of nonzero 0 of its first head, the
    elements from head to head, and the permutation through which they are read, if any."""

    address: int
    head_stride: int
    perm: Tensor | None


def is_worth_ordering(problem: SpmmProblem, nonzeros: Nonzeros, order_from: int) -> bool:
    weight_bytes = problem.nnz * problem.values_dtype.itemsize
    row_bytes = problem.k * problem.dtype.itemsize
    return nonzeros.perm is not None and weight_bytes * row_bytes >= max(1, order_from)


def ordered_problem(problem: SpmmProblem) -> SpmmProblem:
    """The problem of the product with the weights in order, factors multiplied in."""
    dtype = spmm_weights.dtype_of(problem.values_dtype, problem.dtype, problem.has_factors)
    return problem._replace(values_dtype=dtype, has_factors=False)


def whole(problem: SpmmProblem, shares: RowShares) -> list[Part]:
    """One launch for all."""
    return [Part(0, shares.blocks, 0, problem.nnz, 0, problem.heads or 1)]


def parts(problem: SpmmProblem, shares: RowShares, block_size: int, part_bytes: int) -> list[Part]:
    """Launches whose weights take about `part_bytes`: all blocks of several heads, or as many
    blocks of one as have so many nonzeros; block_size: the nonzeros and rows of a block."""
    most = max(1, part_bytes // problem.values_dtype.itemsize)
    heads = problem.heads or 1
    together = min(heads, max(1, most // problem.nnz)) if problem.values_have_heads else heads
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


def unordered(part: Part, values: Tensor, perm: Tensor | None) -> Weights:
    """The values of a part, ([heads,] nnz), as they are."""
    stride = values.stride(0) if values.dim() == 2 else 0
    address = values.data_ptr() + part.first_head * stride * values.element_size()
    return Weights(address, stride, perm)


class OrderedWeights:
    """The weights of one product, (heads, nnz) values and (nnz,) factors, in the order of perm.

    problem: that of `ordered_problem`. The memory is that of the largest part.
    """

    def __init__(
        self, problem: SpmmProblem, parts: list[Part], values: Tensor, factors: Tensor | None
    ) -> None:
        self._problem, self._factors = problem, factors
        self._shared = values.dim() == 1
        self._values = values.unsqueeze(0) if self._shared else values
        count = max((p.end - p.begin) * (1 if self._shared else p.heads) for p in parts)
        dtype = problem.values_dtype
        self._memory = new_memory("weights in order", count, dtype, values.device)

    def of(self, part: Part, perm: Tensor, device_index: int) -> Weights:
        """Put those of a part in order on torch's current stream, over those of the last part."""
        first = 0 if self._shared else part.first_head
        values = self._values[first : first + (1 if self._shared else part.heads)]
        count = part.end - part.begin
        weights = self._memory[: values.shape[0] * count].view(values.shape[0], count)
        if count > 0:
            own = perm[part.begin : part.end]
            spmm_weights.order_weights(
                values, self._factors, self._problem.dtype, own, weights, device_index
            )
        address = weights.data_ptr() - part.begin * weights.element_size()
        return Weights(address, 0 if self._shared else count, None)
