"""The torch operators attention and attention_backward: their computation and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.attention import attention, attention_backward, attention_problem, is_fused
from sddmm.backends.base import AttentionOperands
from sddmm.dtypes import DTYPES
from sddmm.operands import check_dense, check_dimensions, check_per_nonzero, remember, shape_text
from sddmm.ops.attention_parts import AttentionParts
from sddmm.ops.autocast import autocast_dtype
from sddmm.ops.base import pattern_of
from sddmm.ops.routing import call
from sddmm.problem import AttentionProblem
from sddmm.sparse.pattern import SparsePattern


class Results(NamedTuple):
    """What attention returned, and the gradients of it; grad_lse None for zeros."""

    out: Tensor
    lse: Tensor
    grad_out: Tensor
    grad_lse: Tensor | None


def check_attention(
    shape: tuple[int, int], nnz: int, device: torch.device, q: Tensor, k: Tensor, v: Tensor,
    bias: Tensor | None, is_cast: bool = False,
) -> None:  # fmt: skip
    """Raise unless q ([h,] m, d), k ([h,] n, d), v ([h,] n, dv) and bias ([h,] nnz) fit an m x n S.

    is_cast: whether autocast, if it is on, casts them before they are used.
    """
    dtype = autocast_dtype if is_cast else _own_dtype
    named = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    for name, x in named.items():
        check_dense(name, x, device, no_complex="complex attention is not supported")
        if dtype(x.dtype, device) != dtype(q.dtype, device):
            raise TypeError(
                f"{name} is {x.dtype} and q is {q.dtype}; convert one: their dtypes must agree"
            )
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_dimensions(name, x)
        if x.shape[:-2] != q.shape[:-2]:
            raise ValueError(
                f"{name} {shape_text(x)} and q {shape_text(q)} must both be 2-D, or both 3-D with "
                f"as many heads"
            )
    for name, x, side in (("q", q, 0), ("k", k, 1), ("v", v, 1)):
        if x.shape[-2] != shape[side]:
            raise ValueError(
                f"S has shape {shape[0]}x{shape[1]}, so {name} must have {shape[side]} rows; "
                f"got {name} {shape_text(x)}"
            )
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"q {shape_text(q)} and k {shape_text(k)} must have as many columns")
    if bias is not None:
        check_per_nonzero("bias", bias, nnz, "q", q)


# The problems of calls whose operands fitted, by the metadata of pattern and operands. Equal calls
# need no second check of them.
_PROBLEMS: dict[tuple[object, ...], AttentionProblem] = {}


def checked_problem(
    pattern: SparsePattern, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, has_dropout: bool
) -> AttentionProblem:
    """The problem of operands that fit each other and the pattern; raises for others."""
    signature: tuple[object, ...] = (
        pattern.shape, pattern.nnz, pattern.index_dtype, pattern.device, q.shape, k.shape, v.shape,
        q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.layout, k.layout, v.layout,
        has_dropout,
    )  # fmt: skip
    if bias is not None:
        signature += bias.shape, bias.dtype, bias.device, bias.layout
    problem = _PROBLEMS.get(signature)
    if problem is None:
        check_attention(pattern.shape, pattern.nnz, pattern.device, q, k, v, bias)
        problem = attention_problem(pattern, AttentionOperands(q, k, v, bias, 1.0))
        problem = problem._replace(has_dropout=has_dropout)
        remember(_PROBLEMS, signature, problem)
    return problem


def _own_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    return dtype


def check_dropout(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout_p must lie in 0..1, got {p}")


def check_generator(generator: Any, q: Tensor) -> None:
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator)}")
    if generator.device.type != q.device.type:
        raise ValueError(
            f"generator is on {generator.device} and q on {q.device}; they must be on one device"
        )


def new_seed(
    device: torch.device, dropout_p: float, generator: torch.Generator | None
) -> Tensor | None:
    """The seed of a call with dropout, drawn on the device, so that nothing waits for it."""
    if dropout_p == 0.0:
        return None
    if generator is None:  # of which torch.compile knows nothing
        return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device)
    return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device, generator=generator)


def pattern_and_operands(
    rows: Tensor, cols: Tensor, q: Tensor, k: Tensor, v: Tensor,
    bias: Tensor | None = None, seed: Tensor | None = None, *, compressed: bool = False,
    blocksize: Sequence[int] | None = None, scale: float | None = None, dropout_p: float = 0.0,
) -> tuple[SparsePattern, AttentionOperands]:  # fmt: skip
    """The pattern and the operands of a call of either operator, all that must fit checked."""
    pattern = pattern_of(rows, cols, q.shape[-2], k.shape[-2], compressed, blocksize)
    checked_problem(pattern, q, k, v, bias, dropout_p != 0.0)
    check_dropout(dropout_p)
    if dropout_p == 0.0:
        seed = None
    elif seed is None:
        raise ValueError("seed must be given, (1,) of int64, if dropout_p is not 0")
    elif seed.shape != (1,) or seed.dtype != torch.int64 or seed.device != q.device:
        raise ValueError(
            f"seed must be (1,) of int64 on {q.device}, got shape {shape_text(seed)} of "
            f"{seed.dtype} on {seed.device}"
        )
    if scale is None:
        scale = default_scale(q.shape[-1])
    return pattern, AttentionOperands(q, k, v, bias, scale, dropout_p, seed)


def default_scale(d: int) -> float:
    return 1.0 / math.sqrt(d) if d else 1.0


def attend(
    pattern: SparsePattern,
    operands: AttentionOperands,
    problem: AttentionProblem | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The result and the logarithms of the rows' sums, of operands that are checked. problem:
    theirs, if it is known. into: contiguous memory for both, if it is there."""
    if problem is None:
        problem = attention_problem(pattern, operands)
    if is_fused(problem):
        return attention(pattern, problem, operands, into)
    results = AttentionParts(pattern).forward(operands.joined())
    if into is None:
        return results
    return into[0].copy_(results[0]), into[1].copy_(results[1])


def compute(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return attend(*pattern_and_operands(*inputs, **options))


def fake(
    rows: Tensor, cols: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None,
    seed: Tensor | None = None, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=DTYPES[q.dtype].accumulator)


def operands_of_backward(
    rows: Tensor, cols: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
    seed: Tensor | None, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None,
    **options: Any,
) -> tuple[SparsePattern, AttentionOperands, Results]:  # fmt: skip
    """The pattern, the operands and the rest of a call of attention_backward, all checked."""
    pattern, operands = pattern_and_operands(rows, cols, q, k, v, bias, seed, **options)
    results = Results(out, lse, grad_out, grad_lse)
    _check_results(operands, results)
    return pattern, operands, results


def compute_backward(
    *inputs: Any, needs: Sequence[bool], **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and bias, which are (0,) where they are not needed."""
    pattern, operands, results = operands_of_backward(*inputs, **options)
    is_needed = _four(needs)
    problem = attention_problem(pattern, operands)
    if is_fused(problem):
        gradients = attention_backward(pattern, problem, operands, *results, is_needed)
    else:
        parts = AttentionParts(pattern)
        gradients = parts.backward(operands, results.grad_out, results.grad_lse, is_needed)
    grad_q, grad_k, grad_v, grad_bias = (
        operands.q.new_empty(0) if x is None else x.contiguous() for x in gradients
    )
    return grad_q, grad_k, grad_v, grad_bias


def _four(needs: Sequence[bool]) -> tuple[bool, bool, bool, bool]:
    if len(needs) != 4:
        raise ValueError(f"needs must have 4 entries, for q, k, v and bias, got {len(needs)}")
    q, k, v, bias = needs
    return q, k, v, bias


def _check_results(operands: AttentionOperands, results: Results) -> None:
    q, v = operands.q, operands.v
    shapes = {"out": (*q.shape[:-1], v.shape[-1]), "lse": tuple(q.shape[:-1])}
    dtypes = {"out": q.dtype, "lse": DTYPES[q.dtype].accumulator}
    for name, x in results._asdict().items():
        kind = name.removeprefix("grad_")
        if x is None:
            continue
        if x.shape != shapes[kind] or x.dtype != dtypes[kind] or x.device != q.device:
            raise ValueError(
                f"{name} must have shape {shapes[kind]} and {dtypes[kind]} on {q.device}, "
                f"got {tuple(x.shape)} and {x.dtype} on {x.device}"
            )


def fake_backward(
    rows: Tensor, cols: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
    *_: Any, needs: Sequence[bool], **__: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    grad_q, grad_k, grad_v, grad_bias = (
        q.new_empty(x.shape if needed and x is not None else 0)
        for x, needed in zip((q, k, v, bias), needs, strict=True)
    )
    return grad_q, grad_k, grad_v, grad_bias


def backward(
    ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients by attention_backward; by the parts where they are to be differentiated."""
    rows, cols, q, k, v, bias, seed, out, lse = ctx.saved_tensors
    needs = _four(ctx.needs_input_grad[2:6])
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    if torch.is_grad_enabled():
        pattern, operands = pattern_and_operands(rows, cols, q, k, v, bias, seed, **ctx.options)
        gradients = AttentionParts(pattern).backward(operands, grad_out, grad_lse, needs)
        return None, None, *gradients, None
    saved = (rows, cols, q, k, v, bias, seed, out, lse, grad_out, grad_lse)
    grads = call("attention_backward", *saved, needs=needs, **ctx.options)
    return None, None, *(x if n else None for x, n in zip(grads, needs, strict=True)), None


def refuse_backward(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:
    raise NotImplementedError(
        "attention_backward has no derivative; differentiate sparse_attention with "
        "create_graph=True, whose gradients have gradients"
    )
