"""The reference: every sampled dot product accumulated in float64, straight from the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS, FirstRun, PreparedAttention, by_head
from sddmm.backends.csr_product import ReferenceProduct

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem
    from sddmm.sparse.pattern import SparsePattern

# Elements of one gathered operand; two float64 arrays of this size are alive at a time.
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

    def run_once(self, pattern: SparsePattern, problem: SddmmProblem, run: FirstRun) -> bool:
        return False

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        return None

    def prepare_product(self, pattern: SparsePattern, problem: SpmmProblem) -> ReferenceProduct:
        pattern.check()
        return ReferenceProduct(pattern.row_ids, pattern.col_ids)

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
