"""The numba kernels of the softmax over each row; importing this module needs numba.

Nonzeros are numbered row by row: those of row r are starts[r] .. starts[r + 1] - 1, and number i is
at position perm[i] of the arrays, or at i if perm is empty.
"""

from __future__ import annotations

from sddmm.backends.cpu.jit import jit


@jit
def subtract_largest(starts, perm, x, out, begin, end):  # type: ignore[no-untyped-def]
    """The values of rows begin..end-1 less the largest of their row, to `out` by their numbers.

    A NaN counts as no value here: the exponential of its difference is NaN again.
    """
    first = starts[begin]
    for row in range(begin, end):
        largest = x[perm[starts[row]] if perm.size else starts[row]]
        for i in range(starts[row], starts[row + 1]):
            value = x[perm[i] if perm.size else i]
            out[i - first] = value
            if value > largest or largest != largest:
                largest = value
        for i in range(starts[row], starts[row + 1]):
            out[i - first] -= largest


@jit
def divide_by_sums(starts, perm, powers, out, begin, end):  # type: ignore[no-untyped-def]
    """The powers of rows begin..end-1, by their numbers, divided by the sum of their row."""
    first = starts[begin]
    for row in range(begin, end):
        total = powers.dtype.type(0)
        for i in range(starts[row], starts[row + 1]):
            total += powers[i - first]
        for i in range(starts[row], starts[row + 1]):
            out[perm[i] if perm.size else i] = powers[i - first] / total


@jit
def gradient(starts, perm, p, grad, out, begin, end):  # type: ignore[no-untyped-def]
    """p * (grad - sum of p * grad in the row), of rows begin..end-1."""
    for row in range(begin, end):
        total = p.dtype.type(0)
        for i in range(starts[row], starts[row + 1]):
            at = perm[i] if perm.size else i
            total += p[at] * grad[at]
        for i in range(starts[row], starts[row + 1]):
            at = perm[i] if perm.size else i
            out[at] = p[at] * (grad[at] - total)
