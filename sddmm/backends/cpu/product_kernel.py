"""The numba kernels of products W X on the CPU; importing this module needs numba.

The work of a head is one sequence of units: the nonzeros of each row, and then its end, at which
the row is stored. Unit u of row r is nonzero u - r. A chunk is a part of that sequence, so that
long rows, short rows and empty ones are shared out alike. A chunk leaves partial sums of the rows
that it cuts: parts[0] of the row that began before it, and parts[1] of one that ends after it.
"""

from __future__ import annotations

import numpy as np
from numpy import uint64

from sddmm.backends.cpu.jit import inlined, jit
from sddmm.backends.cpu.vectors import vector_sums

SHORT_ROW_BYTES = 768
"""The most bytes of a row that is read by some columns at a time."""

add_1_column = vector_sums(1, 1, chains=4)
add_4_columns, add_8_columns = vector_sums(2, 2, chains=2), vector_sums(4, 2, chains=2)
add_16_columns, add_32_columns = vector_sums(8, 2, chains=2), vector_sums(8, 4, chains=1)


@jit
def row_of_unit(indptr, unit):  # type: ignore[no-untyped-def]
    """The row that a unit belongs to: the last that begins at or before it."""
    low, high = 0, indptr.size - 2
    while low < high:
        middle = (low + high + 1) // 2
        if indptr[middle] + middle <= unit:
            low = middle
        else:
            high = middle - 1
    return low


@jit
def load_weights(perm, values, factors, weights, begin, end):  # type: ignore[no-untyped-def]
    """The weights of nonzeros begin..end-1; perm and factors may be empty."""
    if perm.size == 0:
        own, own_factors = values[begin:end], factors[begin:end]
        for i in range(own.size):
            weights[i] = own[i] * own_factors[i]
        return
    order = perm[begin:end]
    for i in range(order.size):
        weights[i] = values[uint64(order[i])]
    if factors.size:
        for i in range(order.size):
            weights[i] *= factors[uint64(order[i])]


@jit
def add_short_rows(  # type: ignore[no-untyped-def]
    starts, first, count, indices, weights, offset, x, alpha, out, to
):
    """`add_rows` of rows of few bytes: some columns at a time, whose sums are in registers."""
    k = out.shape[1]
    if k == 0:  # narrower than any vector
        return
    if k == 1:
        add_1_column(starts, first, count, indices, weights, offset, x, alpha, out, to, 0)
    elif k <= 4:
        add_4_columns(starts, first, count, indices, weights, offset, x, alpha, out, to, 0)
    elif k <= 8:
        add_8_columns(starts, first, count, indices, weights, offset, x, alpha, out, to, 0)
    else:
        at = 0
        while at + 16 < k:
            add_32_columns(starts, first, count, indices, weights, offset, x, alpha, out, to, at)
            at += 32
        if at < k:
            add_16_columns(starts, first, count, indices, weights, offset, x, alpha, out, to, at)


@inlined
def add_long_row(  # type: ignore[no-untyped-def]
    indices, weights, x, total, begin, end, offset
):
    """total: the sum of the rows of x at indices[begin:end], times their weights. Eight are added
    together, so that the sums are loaded and stored once for all of them. (kernel.py: sample_run
    says why rows are taken out first.)"""
    k = total.size
    for t in range(k):
        total[t] = 0
    i = begin
    while i + 8 <= end:
        c, w = indices[i : i + 8], weights[i - offset : i - offset + 8]
        x0, x1, x2, x3 = x[uint64(c[0])], x[uint64(c[1])], x[uint64(c[2])], x[uint64(c[3])]
        x4, x5, x6, x7 = x[uint64(c[4])], x[uint64(c[5])], x[uint64(c[6])], x[uint64(c[7])]
        w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
        for t in range(k):
            first = w0 * x0[t] + w1 * x1[t] + w2 * x2[t] + w3 * x3[t]
            second = w4 * x4[t] + w5 * x5[t] + w6 * x6[t] + w7 * x7[t]
            total[t] += first + second
        i += 8
    while i + 3 <= end:
        c, w = indices[i : i + 3], weights[i - offset : i - offset + 3]
        x0, x1, x2 = x[uint64(c[0])], x[uint64(c[1])], x[uint64(c[2])]
        w0, w1, w2 = w[0], w[1], w[2]
        for t in range(k):
            total[t] += w0 * x0[t] + w1 * x1[t] + w2 * x2[t]
        i += 3
    while i < end:
        x0, w0 = x[uint64(indices[i])], weights[i - offset]
        for t in range(k):
            total[t] += w0 * x0[t]
        i += 1


@jit
def add_rows(  # type: ignore[no-untyped-def]
    starts, first, count, indices, weights, offset, x, alpha, out, to
):
    """Rows of the product: out[to + r], for r below count, is alpha times the sum of the rows of x
    at indices[i], each times weights[i - offset], for i from starts[first + r] to the next start.

    Rows of x may be longer than those of out; what is beyond is not read.
    """
    k = out.shape[1]
    if k <= SHORT_ROW_BYTES // out.itemsize:
        add_short_rows(starts, first, count, indices, weights, offset, x, alpha, out, to)
        return
    total = np.empty(k, x.dtype)  # stays in cache, as a row of out would not
    for row in range(count):
        begin, end = starts[first + row], starts[first + row + 1]
        add_long_row(indices, weights, x, total, begin, end, offset)
        for t in range(k):
            out[to + row, t] = alpha * total[t]


@jit
def multiply(  # type: ignore[no-untyped-def]
    indptr, indices, perm, values, factors, x, alpha, out, parts, begin, end
):
    """The rows of out that lie within units begin..end-1, and partial sums of those that do not."""
    i = begin - row_of_unit(indptr, begin)
    last_nonzero = min(indices.size, i + end - begin)
    if perm.size or factors.size:
        weights = np.empty(last_nonzero - i, x.dtype)
        load_weights(perm, values, factors, weights, i, last_nonzero)
    else:
        weights = values[i:last_nonzero]
    multiply_chunk(indptr, indices, weights, x, alpha, out, parts, begin, end)


@jit
def multiply_chunk(  # type: ignore[no-untyped-def]
    indptr, indices, weights, x, alpha, out, parts, begin, end
):
    """`multiply` with the weights of the chunk's own nonzeros, in the order of indices."""
    row, last = row_of_unit(indptr, begin), indptr.size - 1
    offset = begin - row
    if end < indptr[last] + last:
        last = row_of_unit(indptr, end)
    first = row + 1 if offset > indptr[row] else row  # of the rows that begin here
    piece = np.empty(2, indptr.dtype)
    # What is left of a row that began before, rows that end here, and the beginning of another: by
    # one call, as the compiler makes a copy of the function for each.
    for part in range(3):
        starts, source, count, sums, to, factor = indptr, first, last - first, out, first, alpha
        if part != 1:
            starts, source, count, sums, to, factor = piece, 0, 0, parts, part // 2, x.dtype.type(1)
        if part == 0 and first > row:
            piece[0], piece[1], count = offset, min(indptr[first], end - row), 1
        if part == 2 and last >= first and end - last > indptr[last]:
            piece[0], piece[1], count = indptr[last], end - last, 1
        if count > 0:
            add_rows(starts, source, count, indices, weights, offset, x, factor, sums, to)


@jit
def merge(indptr, parts, alpha, out, chunk):  # type: ignore[no-untyped-def]
    """Store the rows that chunks cut: their parts added in the order of the chunks."""
    for last in range(1, parts.shape[0]):
        row = row_of_unit(indptr, last * chunk)
        first_unit = indptr[row] + row
        if first_unit < last * chunk and (indptr[row + 1] + row) // chunk == last:
            first = first_unit // chunk
            for t in range(out.shape[1]):
                total = parts[first, 1, t]
                for c in range(first + 1, last + 1):
                    total += parts[c, 0, t]
                out[row, t] = alpha * total
