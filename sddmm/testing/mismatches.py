"""Comparison of a result with float64 and its error bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def refuse_mismatches(
    result: Any,
    truth: Tensor,
    bound: Tensor,
    dtype: torch.dtype | None = None,
    name: str = "",
) -> None:
    """Raise AssertionError, which begins with `name`, unless `result` has the shape of `truth`, its
    values within `bound`, and `dtype` if that is given."""
    got = result if isinstance(result, Tensor) else torch.as_tensor(result, device="cpu")
    if got.shape != truth.shape:
        raise AssertionError(
            f"{name}values have shape {tuple(got.shape)}, not {tuple(truth.shape)}"
        )
    if dtype is not None and got.dtype != dtype:
        raise AssertionError(f"{name}values are {got.dtype}, not {dtype}")
    wrong = mismatches(got.detach(), truth, bound)
    if bool(wrong.any()):
        at = tuple(int(x) for x in wrong.nonzero()[0])
        raise AssertionError(
            f"{name}{int(wrong.sum())} of {wrong.numel()} values are wrong, first at {at}: "
            f"{float(got[at])} is not {float(truth[at])} within {float(bound[at]):.3g}"
        )


def mismatches(values: Tensor, truth: Tensor, bound: Tensor) -> Tensor:
    """A mask of the values that are neither within `bound` of `truth` nor equal to it rounded.

    NaN equals NaN.
    """
    rounded = truth.to(values.dtype)
    same = (values == rounded) | (values.isnan() & rounded.isnan())
    close = truth.isfinite() & ((values.double() - truth).abs() <= bound)
    return ~(same | close)
