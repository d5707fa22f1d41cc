"""Verifies a GEMM: integers to the last bit, then random operands within an error bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.bench.verify import Trial, Verdict
from experiments.gemm.case import Case
from experiments.gemm.methods import GemmMethod

# Relative rounding of operands that are not multiplied as they are.
_OPERANDS = {"ieee": 0.0, "tf32x3": 2.0**-21, "tf32": 2.0**-11}


@dataclass(frozen=True)
class Reference:
    """The float64 product of a (m, k) and b (k, n), and the product of their magnitudes."""

    k: int
    product: Tensor
    magnitude: Tensor

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> Reference:
        wide_a, wide_b = a.double(), b.double()
        return cls(a.shape[1], wide_a @ wide_b, wide_a.abs() @ wide_b.abs())

    def check_exact(self, c: Tensor) -> Verdict:
        """Whether a product of small integers came out to the last bit."""
        wrong = int((c != self.product.to(c.dtype)).sum())
        return Verdict(c.numel(), wrong, None, "small integers are not exact" if wrong else "")

    def check(self, c: Tensor, accumulate: str, precision: str) -> Verdict:
        """Whether every element is within its bound; the error is |C - AB| / |AB| (Frobenius)."""
        wrong = int((~self.within_bound(c, accumulate, precision)).sum())
        error = float((c.double() - self.product).norm() / self.product.norm())
        return Verdict(c.numel(), wrong, error, f"{wrong} values beyond the bound" if wrong else "")

    def within_bound(self, c: Tensor, accumulate: str, precision: str) -> Tensor:
        """Element by element: |C - AB| <= gamma_k |A| |B|, and the rounding of C.

        gamma_k as in Higham, Accuracy and Stability, section 3.1, with twice the unit roundoff, as
        the tensor cores truncate. With sums in halves gamma_k says nothing at large k, so that
        there only the exactness of integers counts.
        """
        unit = 2.0**-24 if accumulate == "fp32" else 2.0**-11
        if 2 * self.k * unit >= 1:
            return torch.ones_like(c, dtype=torch.bool)
        gamma = 2 * (self.k + 2) * unit / (1 - 2 * (self.k + 2) * unit) + 2.1 * _OPERANDS[precision]
        info = torch.finfo(c.dtype)
        error = (c.double() - self.product).abs()
        rounding = info.eps / 2 * self.product.abs() + info.smallest_normal * info.eps
        return error <= (1 + info.eps / 2) * gamma * self.magnitude + rounding


@dataclass(frozen=True)
class References:
    """The references of a case's two pairs of operands."""

    integers: Reference
    random: Reference

    @classmethod
    def of(cls, case: Case) -> References:
        integers = Reference.of(case.integer_a, case.integer_b)
        return cls(integers, Reference.of(case.a, case.b))


def trials(method: GemmMethod, case: Case, references: References) -> list[Trial]:
    """The products of both pairs of operands, each into memory full of NaN."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        case.out.fill_(torch.nan)
        method.multiply(case, a, b)
        return case.out

    def check(c: Tensor) -> Verdict:
        return references.random.check(c, case.config.accumulate, method.precision)

    return [
        Trial(
            lambda: multiply(case.integer_a, case.integer_b).clone(),
            references.integers.check_exact,
        ),
        Trial(lambda: multiply(case.a, case.b), check),
    ]
