"""The numba kernels of products W X on the CPU; importing this module needs numba.

The work of a head is one sequence of units: the nonzeros of each row, and then its end, at which
the row is stored. Unit u of row r is nonzero u - r. A chunk is a part of that sequence, so that
long rows, short rows and empty ones are shared out alike. A chunk leaves partial sums of the rows
that it cuts: parts[0] of the row that began before it, and parts[1] of one that ends after it.
"""

from __future__ import annotations

import numpy as np
from numpy import uint64

from sddmm.backends.cpu.jit import inlined, jit, side_by_side

FEW_COLUMNS, LEAST_SIDE_BY_SIDE = 23, 4
"""The most columns that are added in registers, and the least that are added by SIMD."""


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


@inlined
def add_few_columns(  # type: ignore[no-untyped-def]
    indices, weights, x, total, begin, end, offset
):
    """`add_rows` of few columns: their sums are in registers, eight, four or one at a time. A loop
    over so few costs more than its additions, as it begins with checks of what its arrays share."""
    zero, k, t = x.dtype.type(0), total.size, 0
    own, w = indices[begin:end], weights[begin - offset : end - offset]
    while t + 8 <= k:
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
        for j in range(own.size):
            y, v = x[uint64(own[uint64(j)])][t : t + 8], w[uint64(j)]
            s0 += v * y[0]
            s1 += v * y[1]
            s2 += v * y[2]
            s3 += v * y[3]
            s4 += v * y[4]
            s5 += v * y[5]
            s6 += v * y[6]
            s7 += v * y[7]
        o = total[t : t + 8]
        o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7] = s0, s1, s2, s3, s4, s5, s6, s7
        t += 8
    while t + 4 <= k:
        s0 = s1 = s2 = s3 = zero
        for j in range(own.size):
            y, v = x[uint64(own[uint64(j)])][t : t + 4], w[uint64(j)]
            s0 += v * y[0]
            s1 += v * y[1]
            s2 += v * y[2]
            s3 += v * y[3]
        o = total[t : t + 4]
        o[0], o[1], o[2], o[3] = s0, s1, s2, s3
        t += 4
    while t < k:
        s0 = zero
        for j in range(own.size):
            s0 += w[uint64(j)] * x[uint64(own[uint64(j)])][uint64(t)]
        total[t] = s0
        t += 1


@inlined
def add_many_columns(  # type: ignore[no-untyped-def]
    indices, weights, x, total, begin, end, offset
):
    """`add_rows` of many columns: eight rows of x are added together, so that the sums are loaded
    and stored once for all of them. (kernel.py: sample_run says why rows are taken out first.)"""
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


@inlined
def add_rows(indices, weights, x, sums, row, begin, end, offset):  # type: ignore[no-untyped-def]
    """sums[row]: the rows of x at indices[begin:end], times weights[begin - offset : end - offset].

    Rows of x may be longer than those of the sums; what is beyond is not read.
    """
    total = sums[row]
    if total.size <= FEW_COLUMNS:
        add_few_columns(indices, weights, x, total, begin, end, offset)
    else:
        add_many_columns(indices, weights, x, total, begin, end, offset)


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
    if LEAST_SIDE_BY_SIDE <= out.shape[1] <= FEW_COLUMNS:
        multiply_few_columns(indptr, indices, weights, x, alpha, out, parts, begin, end)
    else:
        multiply_columns(indptr, indices, weights, x, alpha, out, parts, begin, end)


@jit
def multiply_columns(  # type: ignore[no-untyped-def]
    indptr, indices, weights, x, alpha, out, parts, begin, end
):
    """`multiply_chunk` of any number of columns."""
    row = row_of_unit(indptr, begin)
    i = begin - row
    offset = i
    sums = np.empty((1, out.shape[1]), x.dtype)  # stays in cache, as a row of out would not
    unit = begin
    while unit < end:
        row_end = indptr[row + 1]
        stop = min(row_end, i + end - unit)
        is_begun, is_ended = i == indptr[row], row_end + row < end
        if is_begun and is_ended:
            add_rows(indices, weights, x, sums, 0, i, stop, offset)
            for t in range(out.shape[1]):
                out[row, t] = alpha * sums[0, t]
        else:
            add_rows(indices, weights, x, parts, 1 if is_begun else 0, i, stop, offset)
        row += 1
        i = row_end
        unit = row_end + row


multiply_few_columns = side_by_side(multiply_columns)
"""`multiply_columns` of so few that their sums are in registers, of SIMD."""


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
