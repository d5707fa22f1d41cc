"""Sparse attention by fused kernels: prepared once, kept with the pattern, and run."""

from __future__ import annotations

import torch
from torch import Tensor

from sddmm.backends.base import (
    AttentionGradients,
    AttentionOperands,
    PreparedAttention,
    resolve_lazy_view,
)
from sddmm.backends.selection import select_attention_backend
from sddmm.cache import CACHE
from sddmm.memory import new_memory
from sddmm.prepared import plans_of
from sddmm.problem import AttentionProblem
from sddmm.sparse.pattern import SparsePattern

_RESULT = "a result of attention of shape {shape}"


def attention_problem(pattern: SparsePattern, operands: AttentionOperands) -> AttentionProblem:
    """The problem of an attention with these operands, (heads, rows, columns) or without heads."""
    q, v, bias = operands.q, operands.v, operands.bias
    return AttentionProblem(
        *pattern.shape, pattern.nnz, q.shape[-1], v.shape[-1],
        q.shape[0] if q.dim() == 3 else 1, q.dtype, pattern.index_dtype, pattern.device,
        bias is not None, bias is not None and bias.dim() == 2, operands.seed is not None,
    )  # fmt: skip


def is_empty(problem: AttentionProblem) -> bool:
    """Whether there are no scores at all."""
    return problem.nnz == 0 or problem.heads == 0


def is_fused(problem: AttentionProblem) -> bool:
    """Whether a kernel of a backend computes the problem; `ops/attention_parts.py` does if not."""
    return is_empty(problem) or select_attention_backend(problem) is not None


def attention(
    pattern: SparsePattern,
    problem: AttentionProblem,
    operands: AttentionOperands,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The result, ([heads,] m, dv), and the logarithm of each row's sum, ([heads,] m).

    operands: ([heads,] rows, columns), of any strides, and of shapes that fit (`ops/attention.py`
    checks them). into: contiguous memory for both; by default they are new tensors. What is
    prepared for the pattern is kept with it.
    """
    out, lse = into or _new_results(problem, operands)
    if is_empty(problem):
        pattern.check()
        return out.zero_(), lse.fill_(-torch.inf)
    _forward(pattern, problem).forward(
        _with_heads(operands), _head_first(out, 3), _head_first(lse, 2)
    )
    return out, lse


def _new_results(problem: AttentionProblem, operands: AttentionOperands) -> tuple[Tensor, Tensor]:
    """Memory for a result and its logarithms."""
    q, v = operands.q, operands.v
    out = new_memory(_RESULT, (*q.shape[:-1], v.shape[-1]), problem.dtype, problem.device)
    return out, new_memory(_RESULT, q.shape[:-1], problem.accumulator, problem.device)


def attention_backward(
    pattern: SparsePattern,
    problem: AttentionProblem,
    operands: AttentionOperands,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    needs: tuple[bool, bool, bool, bool],
    into_q: Tensor | None = None,
) -> AttentionGradients:
    """The gradients of q, k, v and the bias; None for each that is not needed.

    out, lse: what `attention` returned for the operands. grad_out, grad_lse: theirs, of any
    strides. into_q: contiguous memory for q's; by default all are new tensors.
    """
    q, k, v, bias = (
        None if shape is None or not needed else shape
        for shape, needed in zip(_shapes(problem, operands), needs, strict=True)
    )
    gradients = AttentionGradients(
        _new_gradient(problem, q) if into_q is None else into_q,
        *(_new_gradient(problem, shape) for shape in (k, v, bias)),
    )
    if is_empty(problem):
        for gradient in gradients:
            if gradient is not None:
                gradient.zero_()
        return gradients
    _with_backward(pattern, problem).backward(
        _with_heads(operands),
        _head_first(out.contiguous(), 3),
        _head_first(lse.contiguous(), 2),
        _head_first(_with_unit_stride(grad_out), 3),
        None if grad_lse is None else _head_first(resolve_lazy_view(grad_lse).contiguous(), 2),
        gradients._replace(
            q=None if gradients.q is None else _head_first(gradients.q, 3),
            k=None if gradients.k is None else _head_first(gradients.k, 3),
            v=None if gradients.v is None else _head_first(gradients.v, 3),
        ),
    )
    return gradients


def _new_gradient(problem: AttentionProblem, shape: tuple[int, ...] | None) -> Tensor | None:
    return None if shape is None else new_memory(_RESULT, shape, problem.dtype, problem.device)


def _shapes(problem: AttentionProblem, operands: AttentionOperands) -> list[tuple[int, ...] | None]:
    """Those of the gradients of q, k, v and the bias, k's and v's of the rows `beyond`, too; None
    without bias."""
    q, k, v, bias = operands[:4]
    of_keys = [(*x.shape[:-2], problem.n, x.shape[-1]) for x in (k, v)]
    return [tuple(q.shape), *of_keys, None if bias is None else tuple(bias.shape)]


def _forward(pattern: SparsePattern, problem: AttentionProblem) -> PreparedAttention:
    """What computes the problem with a pattern, which `is_fused`; prepared at its first use."""

    def prepare() -> PreparedAttention:
        backend = select_attention_backend(problem)
        assert backend is not None
        return backend.prepare_attention(pattern, problem)

    return CACHE.find_or_prepare(pattern, plans_of(pattern).attentions, problem, "", prepare)


def _with_backward(pattern: SparsePattern, problem: AttentionProblem) -> PreparedAttention:
    """As `_forward`, with its backward prepared too."""

    def prepare() -> PreparedAttention:
        prepared = _forward(pattern, problem)
        prepared.prepare_backward()
        return prepared

    attentions = plans_of(pattern).attentions
    return CACHE.find_or_prepare(pattern, attentions, problem, "with its backward", prepare)


def _with_heads(operands: AttentionOperands) -> AttentionOperands:
    """The operands as a backend receives them."""
    q, k, v, bias, scale, dropout_p, seed, beyond = operands
    q, k, v = _with_unit_stride(q), _with_unit_stride(k), _with_unit_stride(v)
    if q.dim() != 3:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    bias = None if bias is None else _with_unit_stride(bias)
    if beyond is not None:
        beyond = _head_first(beyond[0], 3), _head_first(beyond[1], 3)
    return AttentionOperands(q, k, v, bias, scale, dropout_p, seed, beyond)


def _head_first(x: Tensor, dimensions: int) -> Tensor:
    return x if x.dim() == dimensions else x.unsqueeze(0)


def _with_unit_stride(x: Tensor) -> Tensor:
    """x, or a copy in which the elements of a row are adjacent."""
    if x.is_neg() or x._is_zerotensor():  # as most are not, they cost no call
        x = resolve_lazy_view(x)
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()
