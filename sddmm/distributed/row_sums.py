"""Sums of two terms in some rows of a result, each rounded once."""

from __future__ import annotations

from torch import Tensor

from sddmm.dtypes import DTYPES


def add_to_rows(own: Tensor, arrived: Tensor, rows: Tensor, totals: Tensor) -> None:
    """totals[rows[i]] = own[rows[i]] + arrived[i]; all are (.., k), and no two rows the same."""
    if own.is_cuda:
        _add_rows(own, arrived, rows, totals, is_compact=False)
    else:
        _set(own[rows], arrived, rows, totals)


def set_sums_of_rows(own: Tensor, other: Tensor, rows: Tensor, totals: Tensor) -> None:
    """totals[rows[i]] = own[i] + other[i]; all are (.., k), and no two rows the same."""
    if own.is_cuda:
        _add_rows(own, other, rows, totals, is_compact=True)
    else:
        _set(own, other, rows, totals)


def _set(own: Tensor, other: Tensor, rows: Tensor, totals: Tensor) -> None:
    totals[rows] = (own.to(DTYPES[own.dtype].accumulator) + other).to(totals.dtype)


def _add_rows(
    own: Tensor, other: Tensor, rows: Tensor, totals: Tensor, *, is_compact: bool
) -> None:
    from sddmm.backends.cuda.kernels.add_rows.host import add_rows

    add_rows(own, other, rows, totals, is_compact)
