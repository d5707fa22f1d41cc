"""The error bound of every result, derived from its summation, and checks against float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.operands import as_operands, oriented
from sddmm.ops.base import rounded_bound
from sddmm.ops.base import tolerance as tolerance
from sddmm.ops.sddmm import magnitude as _magnitude
from sddmm.ops.sddmm import plan
from sddmm.sparse.containers import read


def reference(S: Any, a: Any, b: Any, *, alpha: float = 1.0, scale: bool = True) -> Tensor:
    """sddmm's values accumulated in float64 from the definition, as a float64 tensor."""
    a, b, _ = as_operands(a, b)
    heads = a.shape[0] if a.dim() == 3 else None
    truth = plan(
        S,
        k=a.shape[-1],
        dtype=a.dtype,
        heads=heads,
        out_dtype=torch.float64,
        alpha=alpha,
        scale=scale,
        backend="reference",
    )
    with torch.no_grad():
        values: Tensor = truth.run(a, b)
    return values


def magnitude(S: Any, a: Any, b: Any) -> Tensor:
    """|a_i| |b_j|, the norms of the row of a and the column of b of every value, in float64.

    By Cauchy-Schwarz it bounds sum |a_i b_i|, and costs m + n norms instead of another SDDMM.
    Subnormal numbers of the half types count as the smallest normal one.
    """
    sampling = read(S)
    a, b, _ = as_operands(a, b)
    a, b = oriented(a, b, sampling.pattern, sampling.transposed)
    return _magnitude(sampling.pattern, a, b)


def error_bound(
    S: Any,
    a: Any,
    b: Any,
    truth: Tensor,
    *,
    out_dtype: torch.dtype,
    alpha: float = 1.0,
    scale: bool = True,
    precision: str = "ieee",
) -> Tensor:
    """Largest allowed |value - truth| of every value, float64, shaped like `truth`.

    `tolerance` of the values' `magnitude`, and rounding to `out_dtype`.
    """
    a, b, _ = as_operands(a, b)
    size = magnitude(S, a, b) * abs(alpha)
    weights = read(S).values
    if scale and weights is not None:
        size = size * weights.double().abs()
    slack = tolerance(a.dtype, a.shape[-1], precision=precision) * size
    return rounded_bound(slack, truth, out_dtype)


def assert_close(
    values: Any,
    S: Any,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    scale: bool = True,
    precision: str = "ieee",
) -> None:
    """Raise AssertionError unless `values`, ([h,] nnz), are sddmm(S, a, b) within `error_bound`.

    A NaN or infinity is right only where the float64 result has the same.
    """
    truth = reference(S, a, b, alpha=alpha, scale=scale)
    got = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    got = got.detach()
    if got.shape != truth.shape:
        raise AssertionError(f"values have shape {tuple(got.shape)}, not {tuple(truth.shape)}")
    bound = error_bound(
        S, a, b, truth, out_dtype=got.dtype, alpha=alpha, scale=scale, precision=precision
    )
    wrong = mismatches(got, truth, bound)
    if bool(wrong.any()):
        at = tuple(int(x) for x in wrong.nonzero()[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} values are wrong, first at {at}: "
            f"{float(got[at])} is not {float(truth[at])} within {float(bound[at]):.3g}"
        )


def mismatches(values: Tensor, truth: Tensor, bound: Tensor) -> Tensor:
    """Where `values` is neither within `bound` of `truth` nor `truth` rounded, NaN included."""
    rounded = truth.to(values.dtype)
    same = (values == rounded) | (values.isnan() & rounded.isnan())
    close = truth.isfinite() & ((values.double() - truth).abs() <= bound)
    return ~(same | close)
