"""The reference: every sum accumulated in float64, straight from the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.backends.base import (
    MANY_CALLS,
    FirstRun,
    PreparedAttention,
    by_head,
    head_weights,
    joined,
    product_heads,
)
from sddmm.problem import product_shape

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem
    from sddmm.sparse.pattern import SparsePattern

# Elements of the rows that are gathered at a time; two float64 arrays of this size are alive then.
_CHUNK_ELEMENTS = 2**22


class ReferenceBackend:
    """Serves every problem, slowly."""

    name = "reference"
    plans_by_calls = False
    kernels = ()

    def available(self) -> str | None:
        return None

    def refuses(self, problem: SddmmProblem) -> str | None:
        return None

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        first_run: FirstRun | None = None,
    ) -> ReferenceExecutor:
        pattern.check()
        return ReferenceExecutor(pattern, problem)

    def single_runs(self, problem: SddmmProblem, is_csr: bool, is_kept: bool) -> None:
        return None

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        return None

    def prepare_product(
        self, pattern: SparsePattern, problem: SpmmProblem, transpose: bool = False
    ) -> ReferenceProduct:
        pattern.check()
        indices = pattern.row_ids, pattern.col_ids
        return ReferenceProduct(*(reversed(indices) if transpose else indices))

    def refuses_attention(self, problem: AttentionProblem) -> str | None:
        return "the reference has no fused attention"

    def prepare_attention(
        self, pattern: SparsePattern, problem: AttentionProblem
    ) -> PreparedAttention:
        raise ValueError(self.refuses_attention(problem))


class ReferenceExecutor:
    """Gathers the rows of both operands for a chunk of nonzeros at a time."""

    notes = ()

    def __init__(self, pattern: SparsePattern, problem: SddmmProblem) -> None:
        self._rows, self._cols = pattern.row_ids, pattern.col_ids
        self._chunk = max(1, _CHUNK_ELEMENTS // max(1, problem.k))

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        for head_a, head_b, target in by_head(a, b.mT, out):
            for begin in range(0, target.numel(), self._chunk):
                part = slice(begin, begin + self._chunk)
                left = head_a.index_select(0, self._rows[part]).double()
                right = head_b.index_select(0, self._cols[part]).double()
                dots = torch.linalg.vecdot(left, right).mul_(alpha)
                target[part] = dots if values is None else dots * values[part]


class ReferenceProduct:
    """The product from the definition, nonzero by nonzero, every sum accumulated in float64.

    rows, cols: the indices of each nonzero.
    """

    notes = ()

    def __init__(self, rows: Tensor, cols: Tensor) -> None:
        self._rows, self._cols = rows, cols

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        dense = joined(dense, beyond)
        sums = torch.zeros_like(out, dtype=torch.float64)
        chunk = max(1, _CHUNK_ELEMENTS // max(1, dense.shape[-1]))
        for target, head_values, head in product_heads(sums, values, dense):
            for begin in range(0, self._rows.numel(), chunk):
                part = slice(begin, begin + chunk)
                some = None if factors is None else factors[part]
                weights = head_weights(head_values[part], some, torch.float64)
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
