"""The definitions of softmax and its gradient in float64, and the error bounds of results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sddmm.dtypes import DTYPES
from sddmm.ops.base import rounded_bound, tolerance
from sddmm.sparse.pattern import SparsePattern

# Unit roundoffs by which an exponential may be wrong: numpy's by 5, CUDA's by 4; more for the
# quotient by the sum.
_ROUNDINGS = 10


class _Rows:
    """Sums and largest values over the rows of a pattern, in float64, each nonzero its row's."""

    def __init__(self, pattern: SparsePattern) -> None:
        pattern.check()
        distinct, self._ids = torch.unique(pattern.row_ids, return_inverse=True)
        self._count = distinct.numel()
        self._row_lengths = torch.bincount(self._ids, minlength=self._count)

    @property
    def lengths(self) -> Tensor:
        return self._row_lengths[self._ids]

    def of_lengths(self, function: Callable[[int], float]) -> Tensor:
        """function(nonzeros in the row) of each nonzero."""
        distinct, which = torch.unique(self._row_lengths, return_inverse=True)
        results = [function(length) for length in distinct.tolist()]
        table = torch.tensor(results, dtype=torch.float64, device=which.device)
        return table[which][self._ids]

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        """reduction: "sum" or "amax"."""
        start = 0.0 if reduction == "sum" else -torch.inf
        ids = self._ids.expand_as(x)
        rows = x.new_full((*x.shape[:-1], self._count), start).scatter_reduce(-1, ids, x, reduction)
        return rows[..., self._ids]


def softmax_reference(pattern: SparsePattern, values: Tensor) -> Tensor:
    """The softmax computed in float64 from the definition; float64."""
    rows, x = _Rows(pattern), values.double()
    powers = (x - rows.reduce(x, "amax")).exp()
    return powers / rows.reduce(powers, "sum")


def softmax_error_bound(pattern: SparsePattern, values: Tensor, truth: Tensor) -> Tensor:
    """Largest allowed error of every value of a softmax, float64, shaped like `truth`.

    A difference to the largest value is rounded, which its exponential multiplies; so is the
    exponential, each of the row's additions, and the quotient. A row's sum is as wrong as its
    powers are, weighted by their sizes.
    """
    rows, x = _Rows(pattern), values.double()
    accumulator = DTYPES[values.dtype].accumulator
    u = DTYPES[accumulator].unit_roundoff
    depth = (rows.reduce(x, "amax") - x).nan_to_num(0.0, 0.0, 0.0)
    relative = u * (depth + rows.reduce(truth * depth, "sum") + rows.lengths + _ROUNDINGS)
    underflow = 2 * torch.finfo(accumulator).smallest_normal * u
    return rounded_bound(truth * relative.expm1() + underflow, truth, values.dtype)


def gradient_reference(pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
    """p * (grad - sum of p * grad in the row), computed in float64; float64."""
    p, grad = p.double(), grad.double()
    return p * (grad - _Rows(pattern).reduce(p * grad, "sum"))


def gradient_error_bound(pattern: SparsePattern, p: Tensor, grad: Tensor, truth: Tensor) -> Tensor:
    """Largest allowed error of every value of the gradient, float64, shaped like `truth`.

    `tolerance` of the row's number of nonzeros times |p| (|grad| + sum of |p grad| in the row).
    """
    rows, size, g = _Rows(pattern), p.double().abs(), grad.double().abs()
    gamma = rows.of_lengths(lambda length: tolerance(p.dtype, length + 1))
    slack = gamma * size * (g + rows.reduce(size * g, "sum"))
    return rounded_bound(slack, truth, p.dtype)
