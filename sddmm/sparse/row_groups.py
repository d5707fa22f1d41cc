"""The nonempty rows of a pattern as ranges of its nonzeros, for operators on each row's values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.pattern import SparsePattern

# The indices of as many rows, most of them empty, are never written one by one.
_MANY_ROWS = 2**20


class RowGroups(NamedTuple):
    """The nonzeros of a pattern, numbered row by row.

    starts: the first nonzero of each row that has any, and the number of nonzeros; int64. perm: the
    position in the pattern of each nonzero, or None where that is its number.
    """

    starts: Tensor
    perm: Tensor | None

    def shares(self, length: int) -> Tensor:
        """The first row that begins at each multiple of `length` nonzeros or later, and the number
        of rows: equal shares of the nonzeros that cut no row."""
        starts = self.starts
        edges = torch.arange(0, int(starts[-1]), length, device=starts.device)
        rows = torch.tensor([starts.numel() - 1], device=starts.device)
        return torch.cat([torch.searchsorted(starts, edges), rows])


_ROW_GROUPS = DerivedKey[RowGroups]("row groups")


def row_groups(pattern: SparsePattern) -> RowGroups:
    """The groups of a pattern, whose indices are checked; kept with it."""
    return pattern.derive(_ROW_GROUPS, lambda: _row_groups(pattern))


def _row_groups(pattern: SparsePattern) -> RowGroups:
    pattern.check()
    if pattern.is_csr or pattern.shape[0] <= max(_MANY_ROWS, 4 * pattern.nnz):
        view = pattern.by_row
        is_nonempty = view.indptr.diff() > 0
        starts = view.indptr[:-1][is_nonempty].to(torch.int64)
        return RowGroups(torch.cat([starts, starts.new_tensor([pattern.nnz])]), view.perm)
    rows, perm = pattern.row_ids, None
    if bool((rows[1:] < rows[:-1]).any()):
        perm = rows.argsort(stable=True)
        rows = rows[perm]
    return groups_of_sorted(rows, perm)


def groups_of_sorted(rows: Tensor, perm: Tensor | None) -> RowGroups:
    """The groups of nonzeros with these ascending row indices."""
    begins = torch.ones(rows.numel() + 1, dtype=torch.bool, device=rows.device)  # and the end
    torch.ne(rows[1:], rows[:-1], out=begins[1:-1])
    return RowGroups(begins.nonzero().squeeze(1), perm)
