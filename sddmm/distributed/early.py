"""What a rank can multiply before any row of another one has come: its densest rows.

A product by slices needs all rows of a slice. But the part of a few rows that lies in the columns
whose operands this rank holds can be computed while the first slice travels. Its sums are stored
apart, which pays for rows with many nonzeros: in most graphs a few have a large share of all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.distributed.places import Places
from sddmm.sparse.indices import compress
from sddmm.sparse.pattern import SparsePattern

# Own nonzeros of a row at least: it is stored and added once more, in the dtype of sums.
LEAST = 24
# Nonzeros that a kernel multiplies while a row arrives, and before the first one does. On two H200,
# in rows of 512 bytes, 50 million take 3.9 ms and 334 GB/s arrive: 20 while a row arrives, and more
# beside kernels. Half a millisecond, 6 million, was chosen for the time before rows set off, which
# is up to twice that in a single call, and nothing where calls follow each other.
_WHILE_A_ROW_ARRIVES, _BEFORE_ROWS_ARRIVE = 25, 6_000_000


class Part(NamedTuple):
    """Some nonzeros of a block, as a pattern. places: where they stand among the block's."""

    pattern: SparsePattern
    places: Places


class Early(NamedTuple):
    """A block's nonzeros in three patterns, so that a part of its densest rows can be computed
    before other ranks' rows arrive. rows: those rows, (r,), ascending.

    own: these rows and the own columns, (r, n_r). others: these rows and all other columns, (r, n),
    n of all that lie side by side. rest: all other rows, (m, n); these are empty in it.
    lasts_while_rows_arrive: whether `own` takes at least half of the time in which rows arrive.
    """

    rows: Tensor
    own: Part
    others: Part
    rest: Part
    lasts_while_rows_arrive: bool


def most_early(arriving: int) -> int:
    """The nonzeros that can be multiplied before so many rows have come."""
    return arriving * _WHILE_A_ROW_ARRIVES + _BEFORE_ROWS_ARRIVE


def find_early(whole: SparsePattern, own: int, arriving: int) -> Early | None:
    """The rows that are worth it; None if there are none.

    whole: the block's pattern, CSR, its columns those of all panels side by side. own: how many of
    them, the first ones, are those whose operands this rank holds. arriving: how many rows come
    from others.
    """
    if not arriving:
        return None
    rows, cols = whole.row_ids.long(), whole.col_indices
    is_own = cols < own
    degrees = torch.bincount(rows[is_own], minlength=whole.shape[0])
    sorted_degrees, order = degrees.sort(descending=True, stable=True)
    before = sorted_degrees.cumsum(0) - sorted_degrees
    is_worth_it = (sorted_degrees >= LEAST) & (before < most_early(arriving))
    chosen = order[is_worth_it].sort().values
    if chosen.numel() == 0:
        return None
    number = torch.full_like(degrees, -1)
    number[chosen] = torch.arange(chosen.numel(), device=chosen.device)
    is_chosen = number[rows] >= 0
    row_numbers, count = number[rows], chosen.numel()
    m, n = whole.shape
    return Early(
        chosen,
        _part(row_numbers, cols, is_chosen & is_own, (count, own)),
        _part(row_numbers, cols, is_chosen & ~is_own, (count, n)),
        _part(rows, cols, ~is_chosen, (m, n)),
        2 * int((is_chosen & is_own).sum()) >= arriving * _WHILE_A_ROW_ARRIVES,
    )


def _part(rows: Tensor, cols: Tensor, at: Tensor, shape: tuple[int, int]) -> Part:
    places = Places.of(at)
    rows, cols = (torch.index_select(x, 0, places.at) for x in (rows, cols))
    crow = compress(rows, shape[0]).to(cols.dtype)
    return Part(SparsePattern.from_csr(crow, cols, shape), places)
