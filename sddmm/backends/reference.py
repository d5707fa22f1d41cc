"""The truth: every sampled dot product accumulated in float64, straight from the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.pattern import SparsePattern
from sddmm.problem import Problem

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

        def execute(
            a: Tensor, b_t: Tensor, values: Tensor | None, alpha: float, out: Tensor
        ) -> None:
            a, b_t = a.reshape(-1, *a.shape[-2:]), b_t.reshape(-1, *b_t.shape[-2:])
            for head, target in enumerate(out.view(-1, problem.nnz)):
                for begin in range(0, problem.nnz, chunk):
                    part = slice(begin, begin + chunk)
                    left = a[head].index_select(0, rows[part]).double()
                    right = b_t[head].index_select(0, cols[part]).double()
                    dots = torch.linalg.vecdot(left, right).mul_(alpha)
                    target[part] = dots if values is None else dots * values[part]

        return execute
