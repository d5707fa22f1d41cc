"""The numba loops over index arrays on the CPU; importing this module needs numba."""

from __future__ import annotations

from sddmm.backends.cpu.jit import jit


@jit
def are_below(indices, bound):  # type: ignore[no-untyped-def]
    """Whether every index is in 0..bound - 1."""
    is_outside = False
    for i in range(indices.size):
        is_outside |= (indices[i] < 0) | (indices[i] >= bound)
    return not is_outside


@jit
def is_sorted(indices):  # type: ignore[no-untyped-def]
    """Whether no index is less than the one before it."""
    falls = False
    for i in range(indices.size - 1):
        falls |= indices[i + 1] < indices[i]
    return not falls


@jit
def crow_is_valid(crow, nnz):  # type: ignore[no-untyped-def]
    """Whether crow_indices start with 0, never fall and end with nnz."""
    return crow[0] == 0 and crow[-1] == nnz and is_sorted(crow)


@jit
def count_rows(rows, indptr):  # type: ignore[no-untyped-def]
    """The start of each row, of rows that are valid, and the end of the last; indptr is zeros."""
    for i in range(rows.size):
        indptr[rows[i] + 1] += 1
    for row in range(indptr.size - 1):
        indptr[row + 1] += indptr[row]


@jit
def group_by_row(rows, cols, indptr, indices, perm):  # type: ignore[no-untyped-def]
    """Counting sort by row; indptr is zeros at first. Nonzeros keep their order within a row."""
    count_rows(rows, indptr)
    for i in range(rows.size):
        at = indptr[rows[i]]
        indptr[rows[i]] = at + 1
        indices[at] = cols[i]
        perm[at] = i
    for row in range(indptr.size - 1, 0, -1):
        indptr[row] = indptr[row - 1]
    indptr[0] = 0
