"""The numba kernel of the CPU backend; importing this module needs numba.

A chunk of nonzeros is walked in runs of one row. Within a run eight dot products are formed
together, so that the row of A is loaded once for eight columns and the loads of B overlap. Where
B exceeds the cache and runs are long, a chunk is walked in column tiles whose rows of B stay in
the L2 cache (the column tiles of Nisa et al., HiPC 2018, on the CPU's cache).
"""

from __future__ import annotations

import numpy as np

from sddmm.backends.cpu.jit import inlined, jit


@jit
def dot_product(a, b, row, column):  # type: ignore[no-untyped-def]
    """The dot product of a row of A and a column."""
    total = a.dtype.type(0)
    for t in range(a.shape[1]):
        total += a[row, t] * b[column, t]
    return total


@inlined
def sample_run(cols, a, b, alpha, out, row, begin, end):  # type: ignore[no-untyped-def]
    """Dot products of one row of A with the columns cols[begin:end]."""
    k = a.shape[1]
    zero = a.dtype.type(0)
    i = begin
    while i + 8 <= end:
        c0, c1, c2, c3 = cols[i], cols[i + 1], cols[i + 2], cols[i + 3]
        c4, c5, c6, c7 = cols[i + 4], cols[i + 5], cols[i + 6], cols[i + 7]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
        for t in range(k):
            x = a[row, t]
            s0 += x * b[c0, t]
            s1 += x * b[c1, t]
            s2 += x * b[c2, t]
            s3 += x * b[c3, t]
            s4 += x * b[c4, t]
            s5 += x * b[c5, t]
            s6 += x * b[c6, t]
            s7 += x * b[c7, t]
        out[i], out[i + 1], out[i + 2], out[i + 3] = alpha * s0, alpha * s1, alpha * s2, alpha * s3
        i += 4
        out[i], out[i + 1], out[i + 2], out[i + 3] = alpha * s4, alpha * s5, alpha * s6, alpha * s7
        i += 4
    while i + 4 <= end:
        c0, c1, c2, c3 = cols[i], cols[i + 1], cols[i + 2], cols[i + 3]
        s0 = s1 = s2 = s3 = zero
        for t in range(k):
            x = a[row, t]
            s0 += x * b[c0, t]
            s1 += x * b[c1, t]
            s2 += x * b[c2, t]
            s3 += x * b[c3, t]
        out[i], out[i + 1], out[i + 2], out[i + 3] = alpha * s0, alpha * s1, alpha * s2, alpha * s3
        i += 4
    for j in range(i, end):
        out[j] = alpha * dot_product(a, b, row, cols[j])


@jit
def row_of(crow, position):  # type: ignore[no-untyped-def]
    """The row that holds nonzero `position`: the last that starts at or before it."""
    return np.searchsorted(crow, position, side="right") - 1


@jit
def sample(crow, cols, a, b, alpha, out, width, begin, end):  # type: ignore[no-untyped-def]
    """Nonzeros begin..end-1 of a CSR pattern: row by row (width 0), or tile by tile."""
    first = row_of(crow, begin)
    if width == 0:
        row = first
        while begin < end:
            run_end = min(end, crow[row + 1])
            if run_end > begin:
                sample_run(cols, a, b, alpha, out, row, begin, run_end)
                begin = run_end
            row += 1
        return
    rows = row_of(crow, end - 1) + 1 - first
    cursor = np.empty(rows, np.int64)
    for r in range(rows):
        cursor[r] = max(begin, crow[first + r])
    limit = 0
    while limit < b.shape[0]:
        # An unsorted column may wait for a later tile; the last limit admits every column.
        limit = min(b.shape[0], limit + width)
        for r in range(rows):
            row_end = min(end, crow[first + r + 1])
            run_begin = run_end = cursor[r]
            while run_end < row_end and cols[run_end] < limit:
                run_end += 1
            if run_end > run_begin:
                sample_run(cols, a, b, alpha, out, first + r, run_begin, run_end)
                cursor[r] = run_end


@jit
def sample_scaled(  # type: ignore[no-untyped-def]
    crow, cols, a, b, alpha, factors, out, width, begin, end
):
    """`sample`, times the factor of each nonzero; there may be none."""
    sample(crow, cols, a, b, alpha, out, width, begin, end)
    if factors.size:
        for i in range(begin, end):
            out[i] *= factors[i]


@jit
def sample_if_valid(  # type: ignore[no-untyped-def]
    crow, cols, a, b, alpha, factors, out, width, invalid, begin, end
):
    """`sample_scaled`, unless a column of these nonzeros is outside: then invalid[0] is set.

    The columns are checked chunk by chunk, so that the products find them in cache.
    """
    n = b.shape[0]
    is_outside = False
    for i in range(begin, end):
        is_outside |= (cols[i] < 0) | (cols[i] >= n)
    if is_outside:
        invalid[0] = True
    else:
        sample_scaled(crow, cols, a, b, alpha, factors, out, width, begin, end)


@jit
def crow_is_valid(crow, nnz):  # type: ignore[no-untyped-def]
    """Whether crow_indices start with 0, never fall and end with nnz."""
    falls = (crow[0] != 0) | (crow[-1] != nnz)
    for i in range(crow.size - 1):
        falls |= crow[i + 1] < crow[i]
    return not falls
