"""Reductions over the rows of a pattern in float64, for references and error bounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sddmm.sparse.pattern import SparsePattern


class Rows:
    """Sums and largest values over the rows of a pattern, in float64, each nonzero its row's."""

    def __init__(self, pattern: SparsePattern) -> None:
        pattern.check()
        distinct, self._ids = torch.unique(pattern.row_ids, return_inverse=True)
        self._count = distinct.numel()
        self._row_lengths = torch.bincount(self._ids, minlength=self._count)

    @property
    def lengths(self) -> Tensor:
        """The number of nonzeros in the row of each nonzero."""
        return self._row_lengths[self._ids]

    def of_lengths(self, function: Callable[[int], float]) -> Tensor:
        """function(nonzeros in the row) of each nonzero."""
        distinct, which = torch.unique(self._row_lengths, return_inverse=True)
        results = [function(length) for length in distinct.tolist()]
        table = torch.tensor(results, dtype=torch.float64, device=which.device)
        return table[which][self._ids]

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        """reduction: "sum" or "amax"."""
        start = 0.0 if reduction == "sum" else -torch.inf
        ids = self._ids.expand_as(x)
        rows = x.new_full((*x.shape[:-1], self._count), start).scatter_reduce(-1, ids, x, reduction)
        return rows[..., self._ids]
