"""Sparse attention, softmax(q k^T at S) v; attention_operator.py has the torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling

from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.cache import CACHE
from sddmm.cupy_arrays import make_cupy_wait
from sddmm.operands import as_tensors, needs_grad, real_number
from sddmm.ops import attention_operator, traced
from sddmm.ops.attention_bounds import (
    attention_error_bound,
    attention_truth,
    gradients_error_bound,
    gradients_reference,
)
from sddmm.ops.attention_operator import (
    check_attention,
    check_dropout,
    check_generator,
    checked_problem,
    default_scale,
    new_seed,
    operands_of_backward,
    pattern_and_operands,
)
from sddmm.ops.autocast import without_autocast
from sddmm.ops.base import Operator, register
from sddmm.ops.routing import ELSEWHERE, dynamo_callback, is_plain
from sddmm.ops.traced import TRACEABLE, needs_operator
from sddmm.problem import AttentionProblem
from sddmm.sparse.containers import parse_sparse
from sddmm.sparse.indices import BlockSize, stored_nnz


def sparse_attention(
    S: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    bias: Any = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of each row of S to its nonzeros: softmax(scale * q k^T + bias, at S) v.

    S: an m x n matrix of any kind that `sddmm` takes, in any order of nonzeros; row r attends to
        the columns of its nonzeros. Duplicates are keys of their own. S's values are not read.
    q: (m, d), k: (n, d), v: (n, dv); or (h, m, d), (h, n, d) and (h, n, dv) for h heads over one
        pattern. float16, bfloat16, float32 or float64, the same for all; torch tensors on S's
        device, or numpy or CuPy arrays. Any strides; no copy is made of one whose rows are
        contiguous, such as an (m, h, d) tensor seen as (h, m, d). (Without a GPU half types are
        widened, and so copied.)
    scale: multiplies the dot products; 1 / sqrt(d) if None.
    bias: added to the scores, one for each nonzero in S's order: (nnz,), or (h, nnz) with heads.
        Those without heads serve every head. Of q's dtype.
    dropout_p: the probability with which a weight is dropped, in 0..1; the others are multiplied by
        1 / (1 - dropout_p). Which are dropped follows from the head, the position of the nonzero in
        S's order, and a seed that each call draws from `generator`, torch's default one of the
        device if None; `sddmm/dropout.py` says how. So all devices and orders of S agree, and
        nothing is kept for the backward but the seed.
    return_lse: return the pair of the result and the logarithm of each row's sum of exp(score),
        (m,) or (h, m), float32, or float64 for float64.

    Returns (m, dv) or (h, m, dv), contiguous and of q's dtype: numpy or CuPy if all operands are. A
    row without nonzeros, or with no score but -inf, is 0, and its logarithm -inf. Half types are
    computed in float32 and rounded once, but `attention_tile`, which multiplies by tensor cores,
    rounds the weights before. Where a fused kernel serves, no weights are stored, and of the scores
    at most those of some nonzeros at a time.

    Differentiable in q, k, v and bias, by both results; gradients of gradients are computed from
    sddmm, softmax and spmm, and hold their scores. The same call gives the same bits every time,
    and so do its gradients: nothing is added by atomics. The first call with a pattern, and the
    first backward, prepare for all further ones.

    Autocast, what is remembered of S's indices, and what torch.compile, torch.func and forward mode
    do: as in `sddmm`. torch.compile traces no `generator`.

    Raises TypeError or ValueError, naming the argument, for operands that do not fit S or each
    other, indices out of range, and kinds, dtypes or devices that are not supported.
    """
    if not isinstance(S, TRACEABLE) if is_dynamo_compiling() else dynamo_callback():
        return _untraced_attention(
            S, q, k, v, scale=scale, bias=bias, dropout_p=dropout_p, generator=generator,
            return_lse=return_lse,
        )  # fmt: skip
    if type(S) in ELSEWHERE:
        return ELSEWHERE[type(S)].sparse_attention(
            S, q, k, v, scale=scale, bias=bias, dropout_p=dropout_p, generator=generator,
            return_lse=return_lse,
        )  # fmt: skip
    operands = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    tensors, to_output = as_tensors(operands)
    q, k, v, bias = tensors["q"], tensors["k"], tensors["v"], tensors.get("bias")
    scale = None if scale is None else real_number(scale, "scale")
    dropout_p = real_number(dropout_p, "dropout_p")
    check_dropout(dropout_p)
    check_generator(generator, q)
    inputs = (q, k, v, bias)
    if not is_plain(q, k, v, bias) and needs_operator(S, to_output):
        parts = traced.parts_of(S)
        nnz = stored_nnz(parts.cols, parts.blocksize)
        check_attention(parts.shape, nnz, parts.cols.device, *inputs, is_cast=True)
        seed = new_seed(q.device, dropout_p, generator)
        out, lse = _operate(
            parts.rows, parts.cols, inputs, seed, parts.compressed, parts.blocksize, scale,
            dropout_p,
        )  # fmt: skip
        return (to_output(out), to_output(lse)) if return_lse else to_output(out)
    sparse = parse_sparse(S, reads_values=False)
    pattern = sparse.pattern.T if sparse.transposed else sparse.pattern
    problem = checked_problem(pattern, *inputs, dropout_p != 0.0)
    seed = None if dropout_p == 0.0 else new_seed(q.device, dropout_p, generator)
    if needs_grad(*inputs):
        if sparse.is_scipy:  # the backward reads what scipy may change until then
            pattern = pattern.clone()
        CACHE.of_pattern(pattern)  # from which the operator takes compressed views
        out, lse = _operate(
            pattern.major_indices, pattern.col_indices, inputs, seed, pattern.is_csr,
            pattern.blocksize, scale, dropout_p,
        )  # fmt: skip
    else:
        scale = default_scale(q.shape[-1]) if scale is None else scale
        with without_autocast():
            out, lse = attention_operator.attend(
                pattern, AttentionOperands(q, k, v, bias, scale, dropout_p, seed), problem
            )
    if sparse.is_cupyx:
        make_cupy_wait(out.device)
    return (to_output(out), to_output(lse)) if return_lse else to_output(out)


# torch.compile takes no sparse tensor into a graph; see `sddmm`.
_untraced_attention = _disable_dynamo(sparse_attention)


def _operate(
    rows: Tensor,
    cols: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    seed: Tensor | None,
    compressed: bool,
    blocksize: BlockSize | None,
    scale: float | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.sddmm.attention(
        rows, cols, *inputs, seed,
        compressed=compressed, blocksize=blocksize, scale=scale, dropout_p=dropout_p,
    )  # fmt: skip
    return out, lse


def _reference(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    truth = attention_truth(*pattern_and_operands(*inputs, **options))
    return truth.out, truth.lse


def _error_bound(_: Any, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    pattern, operands = pattern_and_operands(*inputs, **options)
    return attention_error_bound(pattern, operands, attention_truth(pattern, operands))


def _gradients_reference(*inputs: Any, needs: Any, **options: Any) -> AttentionGradients:
    pattern, operands, results = operands_of_backward(*inputs, **options)
    return gradients_reference(pattern, operands, results.grad_out, results.grad_lse)


def _gradients_error_bound(
    truth: AttentionGradients, *inputs: Any, needs: Any, **options: Any
) -> AttentionGradients:
    pattern, operands, results = operands_of_backward(*inputs, **options)
    return gradients_error_bound(pattern, operands, results.grad_out, results.grad_lse, truth)


_OPTIONS = "bool compressed=False, int[]? blocksize=None, float? scale=None, float dropout_p=0.0"

register(
    Operator(
        schema=(
            "attention(Tensor rows, Tensor cols, Tensor q, Tensor k, Tensor v, Tensor? bias=None, "
            f"Tensor? seed=None, *, {_OPTIONS}) -> (Tensor, Tensor)"
        ),
        compute=attention_operator.compute,
        fake=attention_operator.fake,
        backward=attention_operator.backward,
        reference=_reference,
        error_bound=_error_bound,
        problem=AttentionProblem,
    )
)
register(
    Operator(
        schema=(
            "attention_backward(Tensor rows, Tensor cols, Tensor q, Tensor k, Tensor v, "
            "Tensor? bias, Tensor? seed, Tensor out, Tensor lse, Tensor grad_out, "
            f"Tensor? grad_lse, *, bool[] needs, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"
        ),
        compute=attention_operator.compute_backward,
        fake=attention_operator.fake_backward,
        backward=attention_operator.refuse_backward,
        reference=_gradients_reference,
        error_bound=_gradients_error_bound,
        problem=AttentionProblem,
        is_autocast=False,
    )
)
