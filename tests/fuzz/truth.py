"""What a case must give: float64 from the definition, and how far from it a result may be.

Independent of the package but for `sddmm.testing.tolerance`, its public bound of a dot product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sddmm.testing import tolerance
from tests.fuzz.build import dtype_of
from tests.fuzz.case import HALF, Case

_CHUNK = 2**22


@dataclass
class Expected:
    """truth, bound: float64, of every number. `free`: where sums of the accumulator's range may
    overflow in some order, so that a number that is not finite is right too."""

    truth: Tensor
    bound: Tensor
    free: Tensor


def accumulator(dtype: str) -> torch.dtype:
    return torch.float64 if dtype == "float64" else torch.float32


def dots(a: Tensor, b_t: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """(h, nnz): the dot product of a row of a and a row of b_t, in float64."""
    heads, m, k = a.shape
    n, nnz = b_t.shape[1], rows.numel()
    if m * n <= 3 * nnz:  # of the whole matrix, which is quicker
        return (a @ b_t.mT)[:, rows, cols]
    chunk = max(1, _CHUNK // max(1, k * heads))
    parts = [
        torch.linalg.vecdot(a[:, rows[i : i + chunk]], b_t[:, cols[i : i + chunk]])
        for i in range(0, nnz, chunk)
    ]
    return torch.cat(parts, 1) if parts else a.new_zeros(heads, nnz)


def finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)


@dataclass
class Truth:
    """The exact result of a case for these numbers at these positions.

    a: (h, m, k), b_t: (h, n, k), values: (nnz,), all float64.
    """

    case: Case
    a: Tensor
    b_t: Tensor
    values: Tensor
    rows: Tensor
    cols: Tensor

    def __post_init__(self) -> None:
        case = self.case
        self.limits = torch.finfo(accumulator(case.dtype))
        self.dot = dots(self.a, self.b_t, self.rows, self.cols)
        a, b_t = self._magnitudes(self.a), self._magnitudes(self.b_t)
        self.size = dots(a, b_t, self.rows, self.cols)
        gamma = tolerance(dtype_of(case.dtype), case.k + 2, precision=case.precision)
        error = (gamma + tolerance(torch.float64, case.k)) * self.size
        error += case.k * self.limits.smallest_normal * self.limits.eps
        if case.precision != "ieee":  # tensor cores round to tf32, whose small numbers are zeros
            flushed = self.limits.smallest_normal
            error += flushed * dots(a, torch.ones_like(b_t), self.rows, self.cols)
            error += flushed * dots(torch.ones_like(a), b_t, self.rows, self.cols)
        self.dot_error = error

    def _magnitudes(self, x: Tensor) -> Tensor:
        """Tensor cores align subnormal halves as they do the smallest normal number."""
        size = finite(x).abs()
        if self.case.dtype not in HALF:
            return size
        least = torch.finfo(dtype_of(self.case.dtype)).smallest_normal
        return torch.where(size == 0, size, size.clamp(min=least))

    def result(self) -> Expected:
        case, alpha = self.case, self.case.alpha
        if case.entry == "spmm":
            x = self.a if case.transpose else self.b_t
            return self._weighted_sum(self.values, x, case.transpose, case.out)
        tiny = self.limits.smallest_normal * self.limits.eps
        scaled = alpha * self.dot
        slack = abs(alpha) * self.dot_error + tiny * (1 + self.size)
        free = self._overflows(self.size) | self._overflows(abs(alpha) * self.size)
        if not case.weighted:
            return self._rounded(scaled, slack, free, case.out)
        v = self.values
        if case.entry == "sampled_addmm":
            if case.beta == 0:
                return self._rounded(scaled, slack, free, case.out)
            added = case.beta * v
            size = finite(added).abs()
            free = free | self._overflows(size) | self._overflows(abs(alpha) * self.size + size)
            slack = slack + 2 * self.limits.eps * (finite(scaled).abs() + slack + size) + tiny
            return self._rounded(scaled + added, slack, free, case.out)
        size = finite(v).abs()
        for product in (size * self.size, abs(alpha) * size, abs(alpha) * size * self.size):
            free = free | self._overflows(product)
        free = free | self._vanishes(alpha * v, scaled, self.dot * v)
        slack = slack * size + tiny * (1 + size + abs(alpha) + finite(self.dot).abs())
        return self._rounded(scaled * v, slack, free, case.out)

    def _overflows(self, x: Tensor) -> Tensor:
        return x >= self.limits.max * (1 - 2**-10)

    def _vanishes(self, *products: Tensor) -> Tensor:
        """Where a factor is rounded to zero and would make NaN of an infinite one."""
        infinite = ~(self.dot.isfinite() & self.values.isfinite())
        small = torch.zeros_like(self.dot, dtype=torch.bool)
        for product in products:
            small |= (product != 0) & (product.abs() < self.limits.smallest_normal)
        return infinite & small

    def _rounded(self, truth: Tensor, slack: Tensor, free: Tensor, dtype: str) -> Expected:
        info = torch.finfo(dtype_of(dtype))
        u = info.eps / 2
        bound = slack + u * (finite(truth).abs() + slack) + info.smallest_normal * info.eps
        return Expected(truth, bound, free.expand_as(truth))

    def gradient(self, name: str, upstream: Tensor) -> Expected:
        """The gradient of a, as (h, m, k); of b, as (h, n, k) rows; or of the values, (nnz,)."""
        case = self.case
        if case.entry == "spmm":
            if name == "v":
                return self._gradient_of_weights(upstream)
            return self._weighted_sum(self.values, upstream, not case.transpose, case.dtype)
        added = case.entry == "sampled_addmm"
        if name == "v":
            if added:
                g = case.beta * upstream.sum(0)
                slack = finite(case.beta * upstream).abs().sum(0) * self.limits.eps * len(upstream)
                return self._rounded(g, slack, torch.zeros_like(g, dtype=torch.bool), case.dtype)
            g = case.alpha * upstream
            size = finite(g).abs()
            slack = (size * self.dot_error).sum(0)
            total = size * self.size
            slack += (case.k + len(g) + 4) * self.limits.eps * total.sum(0)
            scaled = abs(case.alpha) * self.size
            free = self._overflows(self.size) | self._overflows(total) | self._overflows(scaled)
            free = free.any(0) | self._overflows(total.sum(0))
            return self._rounded((g * self.dot).sum(0), slack, free, case.dtype)
        weights = upstream * self.values if case.weighted and not added else upstream
        x, transpose = (self.b_t, False) if name == "a" else (self.a, True)
        return self._weighted_sum(weights, x, transpose, case.dtype)

    def _weighted_sum(self, weights: Tensor, x: Tensor, transpose: bool, dtype: str) -> Expected:
        """alpha * (W @ x) with these weights at S, or with W's transpose, rounded to `dtype`."""
        case, alpha = self.case, self.case.alpha
        to, of, count = self.rows, self.cols, case.m
        if transpose:
            to, of, count = self.cols, self.rows, case.n
        sums = self._sums(weights.expand(x.shape[0], -1), to, of, x, count)
        scaled = abs(alpha) * sums.size
        slack = abs(alpha) * sums.slack + self.limits.eps * scaled + self.limits.smallest_normal
        free = sums.free | self._overflows(scaled)
        return self._rounded(alpha * sums.truth, slack, free, dtype)

    def _gradient_of_weights(self, upstream: Tensor) -> Expected:
        """The gradient of spmm's values: alpha * (upstream @ dense^T), summed over the heads that
        share them."""
        case = self.case

        def shared(x: Tensor) -> Tensor:
            return x if case.values_have_heads else x.sum(0)

        left, right = (self.a, upstream) if case.transpose else (upstream, self.b_t)
        truth = case.alpha * shared(dots(left, right, self.rows, self.cols))
        size = dots(finite(left).abs(), finite(right).abs(), self.rows, self.cols)
        total = abs(case.alpha) * shared(size)
        terms = (case.k + 4) * max(1, len(upstream))
        slack = terms * self.limits.eps * total + terms * self.limits.smallest_normal
        free = self._overflows(shared(size)) | self._overflows(total)
        return self._rounded(truth, slack, free, case.dtype)

    def _sums(self, weights: Tensor, to: Tensor, of: Tensor, x: Tensor, count: int) -> Sums:
        truth = _scattered(weights, to, of, x, count)
        size = _scattered(finite(weights).abs(), to, of, finite(x).abs(), count)
        terms = torch.bincount(to, minlength=count).to(truth)[:, None] + 5
        u = self.limits.eps / 2
        slack = terms * (u + 2**-53) / (1 - terms * u) * size
        tiny = self.limits.smallest_normal * self.limits.eps
        slack += terms * tiny * (1 + finite(x).abs().amax() if x.numel() else 1.0)
        free = self._overflows(size)
        large = self._overflows(finite(weights).abs())
        if bool(large.any()):
            free = free | (_scattered(large.double(), to, of, torch.ones_like(x), count) > 0)
        return Sums(truth, size, slack, free)


@dataclass
class Sums:
    """Sums of weighted rows in float64: the sums, those of magnitudes, the error allowed before
    rounding, and where they may overflow."""

    truth: Tensor
    size: Tensor
    slack: Tensor
    free: Tensor


def _scattered(weights: Tensor, to: Tensor, of: Tensor, x: Tensor, count: int) -> Tensor:
    out = x.new_zeros(x.shape[0], count, x.shape[2])
    chunk = max(1, _CHUNK // max(1, x.shape[2] * x.shape[0]))
    for i in range(0, to.numel(), chunk):
        part = slice(i, i + chunk)
        out.index_add_(1, to[part], weights[:, part, None] * x[:, of[part]])
    return out


def difference(got: Tensor, expected: Expected) -> str | None:
    """None if every number is right, else the first that is not, in words."""
    if got.shape != expected.truth.shape:
        return f"shape {tuple(got.shape)} is not {tuple(expected.truth.shape)}"
    truth, bound, x = expected.truth, expected.bound, got.double()
    info = torch.finfo(got.dtype)
    # From here on a number is rounded to infinity.
    overflow = info.max + (0 if info.bits == 64 else info.eps / 4 * info.max)
    right = (x - truth).abs() <= bound
    right |= (x == torch.inf) & (truth + bound >= overflow)
    right |= (x == -torch.inf) & (truth - bound <= -overflow)
    right |= (x == truth) | (x.isnan() & truth.isnan())
    # The truth itself is of float64, whose range ends where that of float64 operands does.
    right |= expected.free & ~(x.isfinite() & truth.isfinite() & bound.isfinite())
    wrong = ~right
    if not bool(wrong.any()):
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong, first at {at}: "
        f"{float(x[at]):.9g} is not {float(truth[at]):.9g} within {float(bound[at]):.3g}"
    )
