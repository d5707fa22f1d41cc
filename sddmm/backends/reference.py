"""The truth: every sampled dot product accumulated in float64, straight from the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.operands import by_head
from sddmm.problem import Problem
from sddmm.sparse.pattern import SparsePattern

if TYPE_CHECKING:
    from sddmm.backends import Execute

# Elements of one gathered operand: two float64 arrays of this size are alive at a time.
_CHUNK_ELEMENTS = 2**22


class ReferenceBackend:
    name = "reference"

    def available(self) -> str | None:
        return None

    def refuses(self, problem: Problem) -> str | None:
        return None

    def prepare(self, pattern: SparsePattern, problem: Problem) -> Execute:
        rows, cols = pattern.row_ids, pattern.col_indices
        chunk = max(1, _CHUNK_ELEMENTS // max(1, problem.k))

        def execute(a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor) -> None:
            for head_a, head_b, target in by_head(a, b.mT, out):
                for begin in range(0, problem.nnz, chunk):
                    part = slice(begin, begin + chunk)
                    left = head_a.index_select(0, rows[part]).double()
                    right = head_b.index_select(0, cols[part]).double()
                    dots = torch.linalg.vecdot(left, right).mul_(alpha)
                    target[part] = dots if values is None else dots * values[part]

        return execute
