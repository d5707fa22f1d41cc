"""Is a GEMM right? On integers to the last bit, then on random operands within its error bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Relative rounding of operands that are not taken as they are.
_OPERANDS = {"ieee": 0.0, "tf32x3": 2.0**-21, "tf32": 2.0**-11}


@dataclass(frozen=True)
class Operands:
    """a (m, k), b (k, n), their float64 product and the product of their magnitudes."""

    a: Tensor
    b: Tensor
    product: Tensor
    magnitude: Tensor


def operands(a: Tensor, b: Tensor) -> Operands:
    wide_a, wide_b = a.double(), b.double()
    return Operands(a, b, wide_a @ wide_b, wide_a.abs() @ wide_b.abs())


def exact(c: Tensor, made: Operands) -> bool:
    """Whether a product of small integers came out to the last bit."""
    return torch.equal(c, made.product.to(c.dtype))


def within_bound(c: Tensor, made: Operands, accumulate: str, precision: str) -> Tensor:
    """Element by element: |C - AB| <= gamma_k |A| |B|, and the rounding of C.

    gamma_k as in Higham, Accuracy and Stability, section 3.1, with twice the unit roundoff, as the
    tensor cores truncate. With sums in halves gamma_k says nothing at large k, so that there only
    the exactness of integers counts.
    """
    k = made.a.shape[1]
    unit = 2.0**-24 if accumulate == "fp32" else 2.0**-11
    if 2 * k * unit >= 1:
        return torch.ones_like(c, dtype=torch.bool)
    gamma = 2 * (k + 2) * unit / (1 - 2 * (k + 2) * unit) + 2.1 * _OPERANDS[precision]
    info = torch.finfo(c.dtype)
    error = (c.double() - made.product).abs()
    rounding = info.eps / 2 * made.product.abs() + info.smallest_normal * info.eps
    return error <= (1 + info.eps / 2) * gamma * made.magnitude + rounding


def relative_error(c: Tensor, made: Operands) -> float:
    """|C - AB| / |AB| in the Frobenius norm."""
    return float((c.double() - made.product).norm() / made.product.norm())
