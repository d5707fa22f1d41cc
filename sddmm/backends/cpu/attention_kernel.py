"""The numba kernels of sparse attention on the CPU; importing this module needs numba.

Work is cut into chunks of units as for products (`product_kernel.py`): begin and end are units, and
the arrays of a chunk hold its nonzeros in the order of indices. Slot 0 of a chunk's parts is the
row that began before it, slot 1 the row that ends after it. The same kernels compute the rows of a
pattern and, over its nonzeros by column, its columns.
"""

from __future__ import annotations

import numpy as np

from sddmm.backends.cpu.jit import jit
from sddmm.backends.cpu.kernel import sample_run
from sddmm.backends.cpu.product_kernel import row_of_unit
from sddmm.dropout import KEY_STEPS, MULTIPLIERS, ROUNDS

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_W0, _W1 = np.uint64(KEY_STEPS[0]), np.uint64(KEY_STEPS[1])


@jit
def position(perm, i):  # type: ignore[no-untyped-def]
    """The position in the pattern of nonzero i; perm may be empty."""
    return np.uint64(perm[i]) if perm.size else np.uint64(i)


@jit
def dot_products(  # type: ignore[no-untyped-def]
    indptr, indices, perm, own, other, d, scale, bias, out, begin, end
):
    """out: scale * (row of own . row of other) + bias of each nonzero; bias may be empty.

    Rows of `own` and `other` may be longer than d; what is beyond is not read.
    """
    mine = np.empty((1, d), own.dtype)
    row = row_of_unit(indptr, begin)
    i = begin - row
    first = i
    unit = begin
    while unit < end:
        row_end = indptr[row + 1]
        stop = min(row_end, i + end - unit)
        if stop > i:
            for t in range(d):
                mine[0, t] = own[row, t]
            part = out[i - first : stop - first]
            sample_run(indices[i:stop], mine, other, scale, part, 0, 0, stop - i)
        row += 1
        i = row_end
        unit = row_end + row
    if bias.size:
        for j in range(out.size):
            out[j] += bias[position(perm, first + j)]


@jit
def subtract_largest(indptr, x, lse, part_largest, begin, end):  # type: ignore[no-untyped-def]
    """x less the largest of its row, or of the part of it that the chunk holds, which goes to
    lse[row] or to part_largest[slot]. A NaN counts as no value, and -inf alone as 0."""
    row = row_of_unit(indptr, begin)
    i = begin - row
    first = i
    unit = begin
    while unit < end:
        row_end = indptr[row + 1]
        stop = min(row_end, i + end - unit)
        part = x[i - first : stop - first]
        largest = x.dtype.type(-np.inf)
        for value in part:
            if value > largest or largest != largest:
                largest = value
        shift = x.dtype.type(0) if largest == -np.inf else largest
        for j in range(part.size):
            part[j] -= shift
        is_begun, is_ended = i == indptr[row], row_end + row < end
        if is_begun and is_ended:
            lse[row] = largest
        else:
            part_largest[1 if is_begun else 0] = largest
        row += 1
        i = row_end
        unit = row_end + row


@jit
def divide_by_sums(indptr, x, kept, lse, part_sums, begin, end):  # type: ignore[no-untyped-def]
    """x, exponentials, divided by the sum of their row and multiplied by `kept`, which may be
    empty; of a part of a row undivided, the sum to part_sums[slot]."""
    row = row_of_unit(indptr, begin)
    i = begin - row
    first = i
    unit = begin
    while unit < end:
        row_end = indptr[row + 1]
        stop = min(row_end, i + end - unit)
        part = x[i - first : stop - first]
        total = x.dtype.type(0)
        for value in part:
            total += value
        is_begun, is_ended = i == indptr[row], row_end + row < end
        if is_begun and is_ended:
            lse[row] += np.log(total)
            if total != 0:
                inverse = x.dtype.type(1) / total
                for j in range(part.size):
                    part[j] *= inverse
        else:
            part_sums[1 if is_begun else 0] = total
        row += 1
        i = row_end
        unit = row_end + row
    if kept.size:
        for j in range(x.size):
            x[j] *= kept[j]


@jit
def scale_parts(indptr, parts, largest, sums, lse, chunk):  # type: ignore[no-untyped-def]
    """Scale the parts of each row that chunks cut so that they add up to the row, and store its
    lse. parts: (chunks, 2, columns); largest, sums: (chunks, 2)."""
    for last in range(1, parts.shape[0]):
        row = row_of_unit(indptr, last * chunk)
        first_unit = indptr[row] + row
        if first_unit < last * chunk and (indptr[row + 1] + row) // chunk == last:
            first = first_unit // chunk
            top = largest[first, 1]
            for c in range(first + 1, last + 1):
                if largest[c, 0] > top or top != top:
                    top = largest[c, 0]
            shift = lse.dtype.type(0) if top == -np.inf else top
            total = lse.dtype.type(0)
            for c in range(first, last + 1):
                slot = 1 if c == first else 0
                factor = np.exp(largest[c, slot] - shift)
                sums[c, slot] *= factor
                total += sums[c, slot]
                for t in range(parts.shape[2]):
                    parts[c, slot, t] *= factor
            lse[row] = top + np.log(total)
            if total != 0:
                for c in range(first, last + 1):
                    for t in range(parts.shape[2]):
                        parts[c, 1 if c == first else 0, t] /= total


@jit
def subtract_lse(indptr, indices, x, lse, is_of_row, begin, end):  # type: ignore[no-untyped-def]
    """x less the lse of its row, or, not is_of_row, at its index; -inf counts as 0."""
    row = row_of_unit(indptr, begin)
    i = begin - row
    first = i
    if not is_of_row:
        for j in range(x.size):
            shift = lse[indices[first + j]]
            if shift != -np.inf:
                x[j] -= shift
        return
    unit = begin
    while unit < end:
        row_end = indptr[row + 1]
        stop = min(row_end, i + end - unit)
        shift = lse[row]
        if shift != -np.inf:
            part = x[i - first : stop - first]
            for j in range(part.size):
                part[j] -= shift
        row += 1
        i = row_end
        unit = row_end + row


@jit
def score_gradients(  # type: ignore[no-untyped-def]
    indptr, indices, p, g, kept, delta, is_of_row, begin, end
):
    """g, dot products of the result's gradient and v, become p * (kept * g - delta)."""
    row = row_of_unit(indptr, begin)
    i = begin - row
    first = i
    if kept.size:
        for j in range(g.size):
            g[j] *= kept[j]
    if not is_of_row:
        for j in range(g.size):
            g[j] = p[j] * (g[j] - delta[indices[first + j]])
        return
    unit = begin
    while unit < end:
        row_end = indptr[row + 1]
        stop = min(row_end, i + end - unit)
        own_p, own_g = p[i - first : stop - first], g[i - first : stop - first]
        shift = delta[row]
        for j in range(own_p.size):
            own_g[j] = own_p[j] * (own_g[j] - shift)
        row += 1
        i = row_end
        unit = row_end + row


@jit
def row_deltas(grad_out, out, columns, grad_lse, delta, begin, end):  # type: ignore[no-untyped-def]
    """grad_out . out less grad_lse, which may be empty, of rows begin..end-1."""
    for row in range(begin, end):
        total = delta.dtype.type(0)
        for t in range(columns):
            total += grad_out[row, t] * out[row, t]
        delta[row] = total - grad_lse[row] if grad_lse.size else total


@jit
def store_by_position(perm, x, out, first):  # type: ignore[no-untyped-def]
    """out at the positions in the pattern of nonzeros first, first + 1, ...: x."""
    for j in range(x.size):
        out[position(perm, first + j)] = x[j]


@jit
def kept_factors(perm, seed, head, threshold, factor, out, first):  # type: ignore[no-untyped-def]
    """What dropout multiplies the weights of nonzeros first, first + 1, ... by (sddmm/dropout.py).

    seed, head, threshold: uint64; a nonzero counts by its position in the pattern.
    """
    zero = out.dtype.type(0)
    for j in range(out.size):
        nonzero = position(perm, first + j)
        c0, c1, c2, c3 = nonzero & _WORD, nonzero >> _HALF, head, np.uint64(0)
        k0, k1 = seed & _WORD, seed >> _HALF
        for _ in range(ROUNDS):
            product0, product1 = c0 * _M0, c2 * _M1
            c0, c1 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _WORD
            c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & _WORD
            k0, k1 = (k0 + _W0) & _WORD, (k1 + _W1) & _WORD
        out[j] = factor if c0 >= threshold else zero


@jit
def nonzeros_before(indptr, unit):  # type: ignore[no-untyped-def]
    """The number of nonzeros before a unit, which may be the end of all."""
    return min(indptr[-1], unit - row_of_unit(indptr, unit))
