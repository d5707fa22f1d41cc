"""Checks of sparse attention and its gradients against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.operands import as_tensors
from sddmm.ops.attention_bounds import attention_error_bound as _error_bound
from sddmm.ops.attention_bounds import (
    attention_truth,
    gradients_error_bound,
    gradients_reference,
)
from sddmm.ops.attention_operator import default_scale
from sddmm.sparse.containers import parse_sparse
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing.mismatches import refuse_mismatches


def attention_reference(S: Any, q: Any, k: Any, v: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """sparse_attention's result and logarithms computed in float64 from the definition.

    options: scale, bias and dropout_p of sparse_attention; and with dropout the seed, (1,) int64,
    that the call has drawn: torch.randint(2**63 - 1, (1,)) from the same state of its generator.
    """
    truth = attention_truth(*_operands(S, q, k, v, **options))
    return truth.out, truth.lse


def attention_error_bound(S: Any, q: Any, k: Any, v: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Largest allowed errors of sparse_attention's result and logarithms, float64.

    q's dtype rounds the result; float32, or float64 for float64, all before it, but the weights,
    which a kernel may round to q's dtype. options: as in `attention_reference`.
    """
    pattern, operands = _operands(S, q, k, v, **options)
    return _error_bound(pattern, operands, attention_truth(pattern, operands))


def attention_gradients_error_bound(
    S: Any,
    q: Any,
    k: Any,
    v: Any,
    grad_out: Tensor,
    *,
    grad_lse: Tensor | None = None,
    **options: Any,
) -> AttentionGradients:
    """Largest allowed errors of the gradients of q, k, v and bias (None without one), float64.

    grad_out, grad_lse: the gradients of sparse_attention's results. options: as in
    `attention_reference`.
    """
    pattern, operands = _operands(S, q, k, v, **options)
    truth = gradients_reference(pattern, operands, grad_out, grad_lse)
    return gradients_error_bound(pattern, operands, grad_out, grad_lse, truth)


def assert_attention_close(
    result: Any, S: Any, q: Any, k: Any, v: Any, *, lse: Any = None, **options: Any
) -> None:
    """Raise AssertionError unless `result`, and `lse` if given, are sparse_attention's within
    `attention_error_bound`. A NaN is right only where the float64 result has one.

    options: as in `attention_reference`.
    """
    pattern, operands = _operands(S, q, k, v, **options)
    truth = attention_truth(pattern, operands)
    bounds = _error_bound(pattern, operands, truth)
    refuse_mismatches(result, truth.out, bounds[0], operands.q.dtype)
    if lse is not None:
        refuse_mismatches(lse, truth.lse, bounds[1])


def assert_attention_gradients_close(
    gradients: Sequence[Any],
    S: Any,
    q: Any,
    k: Any,
    v: Any,
    grad_out: Any,
    *,
    grad_lse: Any = None,
    **options: Any,
) -> None:
    """Raise AssertionError unless `gradients`, of q, k, v, and of bias if it is given, are right
    within their error bounds. None for one that is not to be checked.

    grad_out, grad_lse: the gradients of sparse_attention's results. options: as in
    `attention_reference`.
    """
    pattern, operands = _operands(S, q, k, v, **options)
    grad_out = torch.as_tensor(grad_out).detach()
    truth = gradients_reference(pattern, operands, grad_out, grad_lse)
    bounds = gradients_error_bound(pattern, operands, grad_out, grad_lse, truth)
    for name, got, exact, bound in zip(
        AttentionGradients._fields, [*gradients, None][:4], truth, bounds, strict=True
    ):
        if got is not None and exact is not None and bound is not None:
            refuse_mismatches(got, exact, bound, operands.q.dtype, f"the gradient of {name}: ")


def _operands(
    S: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    bias: Any = None,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[SparsePattern, AttentionOperands]:
    """The pattern whose rows count, and the operands without gradients."""
    if (dropout_p != 0.0) != (seed is not None):
        raise ValueError("seed must be given if dropout_p is not 0, and only then")
    sparse = parse_sparse(S)
    pattern = sparse.pattern.T if sparse.transposed else sparse.pattern
    named = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    tensors = {name: x.detach() for name, x in as_tensors(named)[0].items()}
    scale = default_scale(tensors["q"].shape[-1]) if scale is None else scale
    return pattern, AttentionOperands(
        tensors["q"], tensors["k"], tensors["v"], tensors.get("bias"), scale, dropout_p, seed
    )
