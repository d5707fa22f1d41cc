"""SpMM, the product of a sparse and a dense matrix: torch's CSR product, and the definition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.views import CompressedView

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

# Elements of one chunk of scaled rows of the dense operand in the reference.
_CHUNK_ELEMENTS = 2**22


class CsrProduct:
    """torch's CSR product (cuSPARSE on a GPU, where it adds with atomics), one head at a time.

    Products and sums have the wider dtype of the operands, float32 at least: torch's CPU product
    has no half types, and cuSPARSE adds partial sums of halves as halves. The result is rounded
    once. view: the nonzeros by row.
    """

    notes = ("torch's CSR product, head by head",)

    def __init__(self, view: CompressedView, problem: SpmmProblem) -> None:
        self._problem = problem
        self._size = padded_size((problem.m, problem.n), problem.nnz)
        indptr = view.indptr
        empty_rows = self._size[0] - problem.m
        if empty_rows:
            indptr = torch.cat([indptr, indptr[-1:].expand(empty_rows)])
        self._indptr, self._indices = indptr, view.indices.to(indptr.dtype)
        self._perm = view.perm

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        problem, dtype = self._problem, self._problem.accumulator
        for target, head_values, head in _heads(out, values, dense):
            head = head.to(dtype)
            if self._size[1] > problem.n:  # pad copies, even where it adds nothing
                head = torch.nn.functional.pad(head, (0, 0, 0, self._size[1] - problem.n))
            product = self._matrix(_weights(head_values, factors, dtype)) @ head
            target.copy_((product if alpha == 1 else product.mul_(alpha))[: problem.m])

    def _matrix(self, weights: Tensor) -> Tensor:
        if self._perm is not None:
            weights = weights[self._perm]
        return torch.sparse_csr_tensor(  # cuSPARSE reads no strides, and torch does not ask
            self._indptr, self._indices, weights.contiguous(), self._size,
            device=weights.device, check_invariants=False,
        )  # fmt: skip


class ReferenceProduct:
    """The product from the definition, nonzero by nonzero, every sum accumulated in float64.

    rows, cols: the indices of each nonzero.
    """

    notes = ()

    def __init__(self, rows: Tensor, cols: Tensor) -> None:
        self._rows, self._cols = rows, cols

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        sums = torch.zeros_like(out, dtype=torch.float64)
        chunk = max(1, _CHUNK_ELEMENTS // max(1, dense.shape[-1]))
        for target, head_values, head in _heads(sums, values, dense):
            for begin in range(0, self._rows.numel(), chunk):
                part = slice(begin, begin + chunk)
                some = None if factors is None else factors[part]
                weights = _weights(head_values[part], some, torch.float64)
                gathered = head.index_select(0, self._cols[part]).double()
                target.index_add_(0, self._rows[part], gathered * weights[:, None])
        out.copy_(sums.mul_(alpha))


def reference_product(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    transpose: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """The product accumulated in float64 from the definition; float64, ([heads,] m, d).

    values: (nnz,) for all heads or (heads, nnz); factors: (nnz,), which multiply them, or None.
    dense: ([heads,] n, d), or ([heads,] m, d) for the transpose, whose result is ([heads,] n, d).
    """
    pattern.check()
    rows, _ = product_shape(pattern.shape, transpose)
    indices = (pattern.row_ids, pattern.col_ids)
    execute = ReferenceProduct(*(reversed(indices) if transpose else indices))
    out = dense.new_empty((*dense.shape[:-2], rows, dense.shape[-1]), dtype=torch.float64)
    execute(values, factors, dense, alpha, out)
    return out


def product_shape(shape: tuple[int, int], transpose: bool) -> tuple[int, int]:
    """Rows and columns of the matrix that multiplies the dense operand."""
    return (shape[1], shape[0]) if transpose else shape


def padded_size(size: tuple[int, int], nnz: int) -> tuple[int, int]:
    """The size, or a larger one of at least `nnz` positions: cuSPARSE takes no more nonzeros.

    Duplicates may be more than positions. To merge them is wrong where the dense operand holds an
    infinity: two weights of opposite signs make NaN of it, their sum does not.
    """
    if nnz <= size[0] * size[1]:
        return size
    side = math.isqrt(nnz - 1) + 1
    return max(size[0], side), max(size[1], side)


def _heads(out: Tensor, values: Tensor, dense: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The result, the values and the dense operand of each head; one head where there are none."""
    if dense.dim() == 2:
        return iter([(out, values, dense)])
    return zip(out, values.expand(dense.shape[0], -1), dense, strict=True)


def _weights(values: Tensor, factors: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weights of one head's nonzeros."""
    weights = values.to(dtype)
    return weights if factors is None else weights * factors.to(dtype)
