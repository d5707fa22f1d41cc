"""The definitions of softmax and its gradient in float64, and the error bounds of results."""

from __future__ import annotations

import torch
from torch import Tensor

from sddmm.dtypes import DTYPES
from sddmm.ops.base import rounded_bound, tolerance
from sddmm.ops.row_sums import Rows
from sddmm.sparse.pattern import SparsePattern

# Unit roundoffs by which an exponential may be wrong: numpy's by 5, CUDA's by 4; more for the
# quotient by the sum.
_ROUNDINGS = 10


def softmax_reference(pattern: SparsePattern, values: Tensor) -> Tensor:
    """The softmax computed in float64 from the definition; float64."""
    rows, x = Rows(pattern), values.double()
    powers = (x - rows.reduce(x, "amax")).exp()
    return powers / rows.reduce(powers, "sum")


def softmax_error_bound(pattern: SparsePattern, values: Tensor, truth: Tensor) -> Tensor:
    """Largest allowed error of every value of a softmax, float64, shaped like `truth`.

    A difference to the largest value is rounded, which its exponential multiplies; so is the
    exponential, each of the row's additions, and the quotient. A row's sum is as wrong as its
    powers are, weighted by their sizes.
    """
    rows, x = Rows(pattern), values.double()
    accumulator = DTYPES[values.dtype].accumulator
    u = DTYPES[accumulator].unit_roundoff
    depth = (rows.reduce(x, "amax") - x).nan_to_num(0.0, 0.0, 0.0)
    relative = u * (depth + rows.reduce(truth * depth, "sum") + rows.lengths + _ROUNDINGS)
    underflow = 2 * torch.finfo(accumulator).smallest_normal * u
    return rounded_bound(truth * relative.expm1() + underflow, truth, values.dtype)


def gradient_reference(pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
    """p * (grad - sum of p * grad in the row), computed in float64; float64."""
    p, grad = p.double(), grad.double()
    return p * (grad - Rows(pattern).reduce(p * grad, "sum"))


def gradient_error_bound(pattern: SparsePattern, p: Tensor, grad: Tensor, truth: Tensor) -> Tensor:
    """Largest allowed error of every value of the gradient, float64, shaped like `truth`.

    `tolerance` of the row's number of nonzeros times |p| (|grad| + sum of |p grad| in the row).
    """
    rows, size, g = Rows(pattern), p.double().abs(), grad.double().abs()
    gamma = rows.of_lengths(lambda length: tolerance(p.dtype, length + 1))
    slack = gamma * size * (g + rows.reduce(size * g, "sum"))
    return rounded_bound(slack, truth, p.dtype)
