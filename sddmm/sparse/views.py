"""Compressed views of a pattern: its nonzeros grouped by row or by column."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.sparse.indices import compress, row_major


class RowLengths(NamedTuple):
    """Nonzeros per row: the shortest, the mean and the longest row, and how many are empty."""

    shortest: int
    mean: float
    longest: int
    empty_rows: int


class CompressedView(NamedTuple):
    """A pattern's nonzeros grouped by row or by column, as compressed sparse storage.

    indptr: the start of each group and the end of the last, (groups + 1,). indices: the other index
    of each nonzero, (nnz,). perm: the position in the pattern of each grouped nonzero, or None
    where the pattern is stored in that order already. All are contiguous: cuSPARSE reads no
    strides.
    """

    indptr: Tensor
    indices: Tensor
    perm: Tensor | None


def group(major: Tensor, minor: Tensor, shape: tuple[int, int]) -> CompressedView:
    """The nonzeros grouped by `major`, ascending in `minor` within a group, duplicates in order.

    shape: the number of values that a major and a minor index may have.
    """
    perm = row_major(major, minor, shape)
    view = CompressedView(compress(major[perm], shape[0]), minor[perm], perm)
    if perm.device.type == "cuda":  # the next reader may be on another stream
        torch.cuda.current_stream(perm.device).synchronize()
    return view


def row_lengths(by_row: CompressedView) -> RowLengths:
    """Statistics of the nonzeros per row."""
    lengths = by_row.indptr.diff()
    if lengths.numel() == 0:
        return RowLengths(0, 0.0, 0, 0)
    shortest, longest = (int(x) for x in lengths.aminmax())
    mean = by_row.indices.numel() / lengths.numel()
    return RowLengths(shortest, mean, longest, int((lengths == 0).sum()))
