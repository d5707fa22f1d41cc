"""Sums over heads of weighted samples, which are the gradients of what all heads share.

No function here has an intermediate result with an entry for every head and nonzero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.dtypes import common_accumulator
from sddmm.ops.routing import call


def sum_over_heads(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    weights: Tensor,
    *,
    out_dtype: torch.dtype,
    **options: Any,
) -> Tensor:
    """The sum over heads of weights * alpha * (a @ b) at the nonzeros, (nnz,), of `out_dtype`.

    a: ([h,] m, k), b: ([h,] k, n); weights: (nnz,), or (h, nnz), of any dtype. options: of the
    torch operator sddmm, alpha among them.
    """
    if weights.dim() == 1:
        if a.dim() == 3:
            a, b = heads_as_columns(a), heads_as_columns(b.mT).mT
        return _weighted(rows, cols, a, b, weights, out_dtype, options)
    accumulator = common_accumulator(a.dtype, weights.dtype)
    total = weights.new_zeros(weights.shape[-1], dtype=accumulator)
    for head_a, head_b, head_weights in zip(a, b, weights, strict=True):
        total += _weighted(rows, cols, head_a, head_b, head_weights, accumulator, options)
    return total.to(out_dtype)


def heads_as_columns(x: Tensor) -> Tensor:
    """(h, r, d) as (r, h * d): products of such operands are the sums of all heads' products."""
    heads, rows, columns = x.shape
    return x.transpose(0, 1).reshape(rows, heads * columns)  # is_grads_batched knows no flatten


def _weighted(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    weights: Tensor,
    out_dtype: torch.dtype,
    options: dict[str, Any],
) -> Tensor:
    """The weighted samples of one head: sddmm multiplies them where it takes the weights' dtype."""
    if weights.dtype == a.dtype:
        return call("sddmm", rows, cols, a, b, weights, out_dtype=out_dtype, **options)
    accumulator = common_accumulator(a.dtype, weights.dtype)
    samples = call("sddmm", rows, cols, a, b, None, out_dtype=accumulator, **options)
    return (samples * weights).to(out_dtype)
