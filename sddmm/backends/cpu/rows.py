"""A pattern's nonzeros by row on the CPU, checked and counted by compiled loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sddmm.backends.cpu.openmp import for_chunks
from sddmm.sparse.index_tensors import CHECK, DerivedKey
from sddmm.sparse.indices import as_array
from sddmm.sparse.views import CompressedView

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern

# Indices that a thread checks at a time: some 60 us.
CHUNK = 2**18

_GROUPED = DerivedKey[CompressedView]("nonzeros by row, in any order within a row")
_STORED = DerivedKey["CompressedView | None"]("nonzeros by row, as they are stored")


def by_row(pattern: SparsePattern) -> CompressedView:
    """The nonzeros by row: `pattern.by_row`, in less time where they are stored so."""
    return stored_by_row(pattern) or pattern.by_row


def stored_by_row(pattern: SparsePattern) -> CompressedView | None:
    """The nonzeros by row in the pattern's own order; None if that is another one, or blocks'.

    Kept with the pattern. ValueError if an index is outside the shape.
    """
    return pattern.derive(_STORED, lambda: _stored_by_row(pattern))


def _stored_by_row(pattern: SparsePattern) -> CompressedView | None:
    if pattern.blocksize is not None:
        return None
    # Imported here: numba is optional, and slow to import.
    from sddmm.backends.cpu.rows_kernel import count_rows, crow_is_valid, is_sorted

    (m, n), major = pattern.shape, pattern.major_indices.contiguous()
    cols = pattern.col_indices.contiguous()
    major_array, cols_array = as_array(major), as_array(cols)
    if pattern.is_csr:
        _check(pattern, crow_is_valid(major_array, cols.numel()) and _are_below(cols_array, n))
        return CompressedView(major, cols, None)
    _check(pattern, _are_below(major_array, m) and _are_below(cols_array, n))
    if not is_sorted(major_array):
        return None
    offset_dtype = major.dtype if cols.numel() < 2**31 else torch.int64
    indptr = torch.zeros(m + 1, dtype=offset_dtype, device="cpu")
    count_rows(major_array, as_array(indptr))
    return CompressedView(indptr, cols, None)


def grouped_arrays(pattern: SparsePattern) -> tuple[Any, Any, Any]:
    """The start of each row, and the columns and the positions in the pattern of its nonzeros, row
    by row. The positions are empty where the pattern is in that order. Kept with the pattern."""
    view = pattern.derive(_GROUPED, lambda: _grouped(pattern))
    perm = np.empty(0, np.uint64) if view.perm is None else _unsigned(view.perm)
    return as_array(view.indptr), _unsigned(view.indices), perm


def _unsigned(indices: Tensor) -> Any:
    """The array of indices, which are checked, in a type whose numbers numba need not test for
    being negative."""
    return as_array(indices).view(f"u{indices.itemsize}")


def _grouped(pattern: SparsePattern) -> CompressedView:
    """The nonzeros by row, in any order within a row."""
    view = stored_by_row(pattern)
    if view is not None:
        return view
    if pattern.blocksize is not None:
        return pattern.by_row
    from sddmm.backends.cpu.rows_kernel import group_by_row  # numba is optional

    rows, cols = pattern.row_ids, pattern.col_ids
    indptr = torch.zeros(pattern.shape[0] + 1, dtype=torch.int64, device="cpu")
    indices = torch.empty_like(cols)
    perm = torch.empty(cols.shape, dtype=torch.int64, device="cpu")
    group_by_row(*(as_array(x.contiguous()) for x in (rows, cols, indptr, indices, perm)))
    return CompressedView(indptr, indices, perm)


def _are_below(indices: Any, bound: int) -> bool:
    """Whether every index of the array is in 0..bound - 1; found by torch's number of threads."""
    from sddmm.backends.cpu.rows_kernel import are_below

    outside: list[int] = []  # where chunks begin; a list changes atomically

    def work(begin: int, end: int) -> None:
        if not are_below(indices[begin:end], bound):
            outside.append(begin)

    for_chunks(work, indices.size, CHUNK)
    return not outside


def _check(pattern: SparsePattern, is_valid: bool) -> None:
    """`pattern.check()`, where it is known of its indices whether they are valid."""
    if is_valid:
        pattern.derive(CHECK, lambda: None)
        return
    pattern.check()  # which says what is wrong
    raise ValueError(f"{pattern!r} has indices that are not valid")
