"""The definition of sparse attention in float64, and the error bounds of results and gradients.

Operands are ([heads,] rows, columns), and a bias ([heads,] nnz).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.reference import ReferenceExecutor, reference_product
from sddmm.dropout import kept_factors
from sddmm.dtypes import DTYPES
from sddmm.ops.base import magnitude, rounded_bound, tolerance
from sddmm.ops.row_sums import Rows
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern

# Unit roundoffs by which an exponential may be wrong, with the product that follows it. An online
# softmax multiplies by one more at each new largest score: as often as a row has nonzeros, at most.
_ROUNDINGS = 6


class AttentionTruth(NamedTuple):
    """Every quantity of an attention in float64.

    s: scores, p: weights, kept: dropout's factors of the weights, all (..., nnz); largest: the
    largest score of each nonzero's row; out (..., m, dv); lse (..., m).
    """

    s: Tensor
    p: Tensor
    kept: Tensor
    largest: Tensor
    out: Tensor
    lse: Tensor


def attention_truth(pattern: SparsePattern, operands: AttentionOperands) -> AttentionTruth:
    """The attention computed in float64 from the definition."""
    rows = Rows(pattern)
    s = _dots(pattern, operands.q, operands.k) * operands.scale
    if operands.bias is not None:
        s = s + operands.bias.double()
    largest = rows.reduce(s, "amax")
    is_dead = largest == -torch.inf
    largest = largest.masked_fill(is_dead, 0.0)
    powers = (s - largest).exp()
    sums = rows.reduce(powers, "sum")
    p = (powers / sums).masked_fill(is_dead, 0.0)
    lse = s.new_full((*s.shape[:-1], pattern.shape[0]), -torch.inf)
    lse[..., pattern.row_ids] = largest + sums.log()
    kept = torch.ones_like(s)
    if operands.seed is not None:
        heads, nnz = (s.shape[0] if s.dim() == 2 else 1), s.shape[-1]
        kept = kept_factors(operands.seed, heads, nnz, operands.dropout_p, s.dtype).view_as(s)
    out = reference_product(pattern, kept * p, operands.v)
    return AttentionTruth(s, p, kept, largest, out, lse)


def _dots(pattern: SparsePattern, a: Tensor, b_t: Tensor) -> Tensor:
    """The dot products of a row of a and one of b_t at the nonzeros, (..., nnz), float64."""
    heads = a.shape[0] if a.dim() == 3 else None
    problem = make_problem(
        pattern, k=a.shape[-1], dtype=a.dtype, heads=heads, out_dtype=torch.float64
    )
    pattern.check()
    out = a.new_empty(problem.values_shape(), dtype=torch.float64)
    ReferenceExecutor(pattern, problem)(a, b_t.mT, None, 1.0, out)
    return out


class _Errors(NamedTuple):
    """Errors before results are rounded: s of scores; p relative, of weights; out; lse."""

    p: Tensor
    out: Tensor
    lse: Tensor


def attention_error_bound(
    pattern: SparsePattern, operands: AttentionOperands, truth: AttentionTruth
) -> tuple[Tensor, Tensor]:
    """Largest allowed errors of out and of lse, float64, shaped like them.

    A score is a dot product, within `tolerance`; its exponential multiplies that error, and those
    of the difference to the largest score and of the rescaling of an online softmax. A row's sum is
    as wrong as its powers are, weighted by their sizes. Weights of a half type may be rounded to it
    before they are multiplied by v, and the sums of products are within `tolerance`.
    """
    errors = _errors(pattern, operands, truth)
    dtype = operands.q.dtype
    lse = rounded_bound(errors.lse, truth.lse, DTYPES[dtype].accumulator)
    empty = truth.lse == -torch.inf
    return rounded_bound(errors.out, truth.out, dtype), lse.masked_fill(empty, 0.0)


def _errors(pattern: SparsePattern, operands: AttentionOperands, truth: AttentionTruth) -> _Errors:
    rows, (s, p, kept, largest, _, lse) = Rows(pattern), truth
    q, k, v, bias = operands[:4]
    dtype, accumulator = q.dtype, DTYPES[q.dtype].accumulator
    u = DTYPES[accumulator].unit_roundoff
    size = magnitude(pattern, q, k.mT) * abs(operands.scale)
    score = tolerance(dtype, q.shape[-1]) * size + 4 * u * (s.abs() + largest.abs())
    if bias is not None:
        score = score + 4 * u * bias.double().abs()
    depth = (largest - s).nan_to_num(0.0, 0.0, 0.0)
    score = (score + u * depth).nan_to_num(0.0, 0.0, 0.0)
    count = u * _ROUNDINGS * (rows.lengths + 2)
    row_error = rows.reduce(p * score, "sum") + count
    relative = (score + row_error + count).expm1()
    ids = pattern.row_ids
    lse_error = torch.zeros_like(lse)
    lse_error[..., ids] = row_error + 4 * u * largest.abs() + 4 * u * lse[..., ids].abs()
    weight = kept * (p * (relative + _weight_rounding(dtype)) + _underflow(dtype))
    return _Errors(relative, _sum_error(pattern, weight, kept * p, v), lse_error)


def _sum_error(
    pattern: SparsePattern,
    error: Tensor,
    weights: Tensor,
    dense: Tensor,
    scale: float = 1.0,
    transpose: bool = False,
) -> Tensor:
    """The error of sums of weights times rows of `dense`, before they are rounded.

    Each product may fall below the smallest normal number, where numbers are evenly spaced.
    """
    size = dense.abs()
    wrong = reference_product(pattern, error, size, transpose=transpose, alpha=abs(scale))
    weights = weights.abs() + error
    total = reference_product(pattern, weights, size, transpose=transpose, alpha=abs(scale))
    lengths = (pattern.by_column if transpose else pattern.by_row).indptr.diff()
    distinct, which = torch.unique(lengths, return_inverse=True)
    accumulator = DTYPES[dense.dtype].accumulator
    gamma = torch.tensor([tolerance(accumulator, x) for x in distinct.tolist()]).to(total)
    limits = torch.finfo(accumulator)
    spacing = limits.smallest_normal * limits.eps
    # In float64: integers times a number would be float32, in which a double's spacing is zero.
    return wrong + gamma[which, None] * total + spacing * (lengths[:, None] + 2).to(total)


def _weight_rounding(dtype: torch.dtype) -> float:
    return DTYPES[dtype].unit_roundoff if DTYPES[dtype].is_half else 0.0


def _underflow(dtype: torch.dtype) -> float:
    """The absolute error of a weight that is too small for its dtype."""
    return (
        2
        * torch.finfo(dtype).smallest_normal
        * (DTYPES[dtype].unit_roundoff if DTYPES[dtype].is_half else 1.0)
    )


def gradients_reference(
    pattern: SparsePattern,
    operands: AttentionOperands,
    grad_out: Tensor,
    grad_lse: Tensor | None = None,
) -> AttentionGradients:
    """The gradients of q, k, v and the bias (None without one), in float64 from the definition."""
    truth = attention_truth(pattern, operands)
    g = truth.kept * _dots(pattern, grad_out, operands.v)
    ds = truth.p * (g - _deltas(pattern, truth, g, grad_lse))
    q, k, _, bias = operands[:4]
    product, scale = reference_product, operands.scale
    grad_bias = None
    if bias is not None:
        grad_bias = ds.sum(0) if bias.dim() < ds.dim() else ds
    return AttentionGradients(
        product(pattern, ds, k, alpha=scale),
        product(pattern, ds, q, transpose=True, alpha=scale),
        product(pattern, truth.kept * truth.p, grad_out, transpose=True),
        grad_bias,
    )


def _deltas(
    pattern: SparsePattern, truth: AttentionTruth, g: Tensor, grad_lse: Tensor | None
) -> Tensor:
    """The row's sum of p g, less the gradient of its lse, of each nonzero's row."""
    delta = Rows(pattern).reduce(truth.p * g, "sum")
    return delta if grad_lse is None else delta - grad_lse.double()[..., pattern.row_ids]


def gradients_error_bound(
    pattern: SparsePattern,
    operands: AttentionOperands,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    reference: AttentionGradients,
) -> AttentionGradients:
    """Largest allowed errors of the gradients, float64, shaped like the reference.

    They are sums of ds = p (g - delta): p is as wrong as in the forward; g is a dot product; delta
    is either the dot product of grad_out with the rounded result, or the row's sum of p g. ds may
    be rounded to a half type before it is multiplied.
    """
    truth = attention_truth(pattern, operands)
    q, k, v, bias = operands[:4]
    dtype, rows = q.dtype, Rows(pattern)
    u = DTYPES[DTYPES[dtype].accumulator].unit_roundoff
    errors = _errors(pattern, operands, truth)
    kept, p, ids = truth.kept, truth.p, pattern.row_ids
    g = kept * _dots(pattern, grad_out, v)
    g_error = kept * tolerance(dtype, v.shape[-1]) * magnitude(pattern, grad_out, v.mT)
    delta = _deltas(pattern, truth, g, grad_lse)

    out_error = rounded_bound(errors.out, truth.out, dtype)
    gamma = tolerance(dtype, v.shape[-1])
    size = grad_out.double().abs()
    by_result = (size * (out_error + gamma * (truth.out.abs() + out_error))).sum(-1)[..., ids]
    lengths = rows.of_lengths(lambda length: tolerance(dtype, length))
    by_sum = rows.reduce(p * (g_error + g.abs() * (errors.p + lengths)), "sum")
    delta_error = torch.maximum(by_result, by_sum) + 2 * u * (delta.abs() + g.abs())
    if grad_lse is not None:
        delta_error = delta_error + 2 * u * grad_lse.double().abs()[..., ids]

    ds = p * (g - delta)
    relative = errors.p + _weight_rounding(dtype) + 4 * u
    ds_error = p * (g_error + delta_error) * (1 + relative) + ds.abs() * relative
    ds_error = ds_error + _underflow(dtype) * (1 + g.abs() + delta.abs())
    weight_error = kept * (p * relative + _underflow(dtype))
    sums = [
        _sum_error(pattern, ds_error, ds, k, operands.scale),
        _sum_error(pattern, ds_error, ds, q, operands.scale, transpose=True),
        _sum_error(pattern, weight_error, kept * p, grad_out, transpose=True),
    ]
    if bias is None:
        sums.append(torch.empty(0))
    elif bias.dim() < ds.dim():
        heads_gamma = tolerance(dtype, ds.shape[0])
        sums.append((ds_error + heads_gamma * (ds.abs() + ds_error)).sum(0))
    else:
        sums.append(ds_error)
    return AttentionGradients(
        *(
            None if x is None else rounded_bound(slack, x, dtype)
            for slack, x in zip(sums, reference, strict=True)
        )
    )
