"""The numba kernel of the CPU backend; importing this module needs numba.

A chunk of nonzeros is walked in runs of one row. Within a run eight dot products are formed
together, so that the row of A is loaded once for eight columns and the loads of B overlap. Where
B exceeds the cache and runs are long, a chunk is walked in column tiles whose rows of B stay in
the L2 cache (the column tiles of Nisa et al., HiPC 2018, on the CPU's cache).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from sddmm.backends.cpu.addresses import array_at, fetch_and_add
from sddmm.backends.cpu.jit import c_function, inlined, jit
from sddmm.backends.cpu.openmp import CHUNK, END, NEXT, WORDS, WORKED
from sddmm.backends.cpu.rows_kernel import are_below, crow_is_valid


@inlined
def sample_run(cols, a, b, alpha, out, row, begin, end):  # type: ignore[no-untyped-def]
    """Dot products of one row of A with the columns cols[begin:end].

    Rows are taken out of their arrays first, and by unsigned numbers: numba adds the length to a
    negative index, which costs instructions for each column and keeps loops from SIMD.
    """
    x, k = a[row], a.shape[1]
    zero = x.dtype.type(0)
    i = begin
    while i + 8 <= end:
        c, o = cols[i : i + 8], out[i : i + 8]
        y0, y1, y2, y3 = b[uint64(c[0])], b[uint64(c[1])], b[uint64(c[2])], b[uint64(c[3])]
        y4, y5, y6, y7 = b[uint64(c[4])], b[uint64(c[5])], b[uint64(c[6])], b[uint64(c[7])]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zero
        for t in range(k):
            s0 += x[t] * y0[t]
            s1 += x[t] * y1[t]
            s2 += x[t] * y2[t]
            s3 += x[t] * y3[t]
            s4 += x[t] * y4[t]
            s5 += x[t] * y5[t]
            s6 += x[t] * y6[t]
            s7 += x[t] * y7[t]
        o[0], o[1], o[2], o[3] = alpha * s0, alpha * s1, alpha * s2, alpha * s3
        o[4], o[5], o[6], o[7] = alpha * s4, alpha * s5, alpha * s6, alpha * s7
        i += 8
    while i + 4 <= end:
        c, o = cols[i : i + 4], out[i : i + 4]
        y0, y1, y2, y3 = b[uint64(c[0])], b[uint64(c[1])], b[uint64(c[2])], b[uint64(c[3])]
        s0 = s1 = s2 = s3 = zero
        for t in range(k):
            s0 += x[t] * y0[t]
            s1 += x[t] * y1[t]
            s2 += x[t] * y2[t]
            s3 += x[t] * y3[t]
        o[0], o[1], o[2], o[3] = alpha * s0, alpha * s1, alpha * s2, alpha * s3
        i += 4
    for j in range(i, end):
        y0, s0 = b[uint64(cols[j])], zero
        for t in range(k):
            s0 += x[t] * y0[t]
        out[j] = alpha * s0


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
        own, own_factors = out[begin:end], factors[begin:end]
        for i in range(own.size):
            own[i] *= own_factors[i]


@jit
def sample_checked(  # type: ignore[no-untyped-def]
    crow_at, cols_at, a_at, b_at, factors_at, out_at, alpha, is_checked, m, n, k, nnz, width,
    begin, end, offset, index, number,
):  # fmt: skip
    """`KernelsAt.sample_chunk` for crow_indices, col_indices and operands of these numpy types."""
    crow, cols = array_at(crow_at, (m + 1,), offset), array_at(cols_at, (nnz,), index)
    if not is_checked:
        if end - begin == nnz and not crow_is_valid(crow, nnz):
            return False
        if not are_below(cols[begin:end], n):
            return False
    sample_scaled(
        crow, cols, array_at(a_at, (m, k), number), array_at(b_at, (n, k), number),
        number(alpha), array_at(factors_at, (nnz if factors_at else 0,), number),
        array_at(out_at, (nnz,), number), width, begin, end,
    )  # fmt: skip
    return True


class KernelsAt(NamedTuple):
    """Kernels for indices and operands of fixed types, in memory that is named by its address.

    check_crow(crow_at, m, nnz): whether the m + 1 crow_indices are valid. sample_chunk: nonzeros
    begin..end-1, as `sample_scaled` does, of a (m, k), b (n, k) and out (nnz,); factors_at: 0 where
    there are none. Without `is_checked` it checks their columns first, and crow_indices too if
    the chunk is the whole pattern. It returns whether they are valid; if not it writes nothing.
    """

    check_crow: Any
    sample_chunk: Any


@functools.cache
def kernels_at(offset: type, index: type, number: type) -> KernelsAt:
    """The kernels for crow_indices, col_indices and operands of these numpy types."""

    @jit
    def check_crow(crow_at, m, nnz):  # type: ignore[no-untyped-def]
        return crow_is_valid(array_at(crow_at, (m + 1,), offset), nnz)

    @jit
    def sample_chunk(  # type: ignore[no-untyped-def]
        crow_at, cols_at, a_at, b_at, factors_at, out_at, alpha, is_checked, m, n, k, nnz, width,
        begin, end,
    ):  # fmt: skip
        return sample_checked(
            crow_at, cols_at, a_at, b_at, factors_at, out_at, alpha, is_checked, m, n, k, nnz,
            width, begin, end, offset, index, number,
        )  # fmt: skip

    return KernelsAt(check_crow, sample_chunk)


@functools.cache
def sample_chunks_at(offset: type, index: type, number: type) -> int:
    """The address of `sample_chunk` for `for_compiled_chunks`: its arguments up to width are those
    of the block, in which alpha is a float64."""

    def sample_chunks(block_at):  # type: ignore[no-untyped-def]
        block = array_at(block_at, (WORDS + 13,), np.int64)
        alpha = array_at(block_at, (WORDS + 13,), np.float64)[WORDS + 6]
        x, size, last = block[WORDS:], block[CHUNK], block[END]
        while True:
            begin: int = fetch_and_add(block_at + 8 * NEXT, size)  # type: ignore[call-arg]
            end = min(last, begin + size)
            if begin >= end:
                return
            if sample_checked(
                x[0], x[1], x[2], x[3], x[4], x[5], alpha, x[7] != 0, x[8], x[9], x[10], x[11],
                x[12], begin, end, offset, index, number,
            ):  # fmt: skip
                fetch_and_add(block_at + 8 * WORKED, end - begin)

    return c_function(sample_chunks)
