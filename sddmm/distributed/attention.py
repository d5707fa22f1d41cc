"""Sparse attention of a distributed matrix: panels of K and V travel, and results are merged.

Every panel gives the attention of the rows to its columns alone, and the logarithm of each row's
sum of exp(score). From these the panels' results are merged in a fixed order, as the blocks of
FlashAttention are (Dao, Fu, Ermon, Rudra and Re, FlashAttention: fast and memory-efficient exact
attention with IO-awareness, NeurIPS 2022, section 3.1), and those of the ranks of Ring Attention
(Liu, Zaharia and Abbeel, ICLR 2024). The backward of a panel needs the merged logarithms only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sddmm.attention import attention_backward, attention_problem, is_fused
from sddmm.backends.base import (
    MANY_CALLS,
    AttentionGradients,
    AttentionOperands,
    resolve_lazy_view,
)
from sddmm.distributed.agreement import agreement
from sddmm.distributed.blocks import Block, Panel, is_sliced
from sddmm.distributed.dropout import seed_of_part
from sddmm.distributed.pattern import DistributedPattern
from sddmm.distributed.shards import Shards, cast_for_autocast, local_part
from sddmm.distributed.sliced_attention import sliced_backward, sliced_forward
from sddmm.distributed.timeline import span
from sddmm.distributed.travel import exchange_panels, panels_of
from sddmm.dropout import kept_factors
from sddmm.dtypes import DTYPES
from sddmm.operands import real_number, shape_text
from sddmm.ops.attention_operator import (
    attend,
    check_attention,
    check_dropout,
    check_generator,
    default_scale,
    new_seed,
)
from sddmm.ops.autocast import without_autocast
from sddmm.ops.routing import call
from sddmm.sparse.pattern import SparsePattern


class AttentionCall(NamedTuple):
    """The checked arguments of a call, this rank's parts."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    dropout_p: float
    seed: Tensor | None
    shards: Shards | None


def sparse_attention(
    S: DistributedPattern,
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
    """`sddmm.sparse_attention`, this rank's rows of the result.

    q: this rank's rows of S, ([h,] m_r, d); k, v: its columns of S, ([h,] n_r, d) and ([h,] n_r,
    dv); bias: of this rank's nonzeros, (nnz,) or (h, nnz). DTensors q, k and v give a DTensor; the
    logarithms are local in either case.

    Differentiable once in q, k, v and bias. With half types the results of each panel are rounded,
    and again the merged ones. Which weights dropout_p drops follows from this rank's generator and
    from how S is divided, so another division drops others.
    """

    def check() -> tuple[AttentionCall, Mapping[str, object]]:
        own = _call(S, q, k, v, bias, scale, dropout_p, generator)
        return own, _facts(own)

    with agreement(S.grid, "sparse_attention", check) as own:
        out, lse = _Attention.apply(  # type: ignore[no-untyped-call]
            S, own.q, own.k, own.v, own.bias, own.scale, own.dropout_p, own.seed
        )
    if own.shards is not None:
        out = own.shards.wrap(out, S.shape[0], S.row_cuts)
    return (out, lse) if return_lse else out


def _call(
    S: DistributedPattern, q: Any, k: Any, v: Any, bias: Any, scale: float | None,
    dropout_p: float, generator: Any,
) -> AttentionCall:  # fmt: skip
    parts = []
    shards: Shards | None = None
    for name, x, held, own, what in (
        ("q", q, S.row_cuts, S.rows, "rows"),
        ("k", k, S.column_cuts, S.columns, "columns"),
        ("v", v, S.column_cuts, S.columns, "columns"),
    ):
        part, own_shards = local_part(S, x, name, -2, held, held[-1])
        shards = own_shards if name == "q" else shards
        size = own.stop - own.start
        if part.dim() not in (2, 3) or part.shape[-2] != size:
            raise ValueError(
                f"rank {S.grid.ranks[S.grid.place]} holds {what} {own.start}..{own.stop} of S, so "
                f"{name} must be ([h,] {size}, d) here; got {name} {shape_text(part)}"
            )
        parts.append(cast_for_autocast(part, S))
    if bias is not None:
        if not isinstance(bias, Tensor):
            raise TypeError(f"bias must be a torch tensor, got {type(bias)}")
        bias = cast_for_autocast(bias, S)
    shape = (parts[0].shape[-2], parts[1].shape[-2])
    own_q, own_k, own_v = parts
    check_attention(shape, S.nnz, S.device, own_q, own_k, own_v, bias)
    number = default_scale(parts[0].shape[-1]) if scale is None else real_number(scale, "scale")
    share = real_number(dropout_p, "dropout_p")
    check_dropout(share)
    check_generator(generator, own_q)
    seed = new_seed(own_q.device, share, generator)
    return AttentionCall(own_q, own_k, own_v, bias, number, share, seed, shards)


def _facts(own: AttentionCall) -> dict[str, object]:
    q, v, bias = own.q, own.v, own.bias
    named = {"q": q, "k": own.k, "v": v, "bias": bias}
    return {
        "heads": q.shape[0] if q.dim() == 3 else None,
        "d": q.shape[-1],
        "dv": v.shape[-1],
        "dtype": q.dtype,
        "scale": own.scale,
        "dropout_p": own.dropout_p,
        "dimensions of bias": None if bias is None else bias.dim(),
        "whether a gradient is recorded": torch.is_grad_enabled(),
        **{
            f"whether {name} requires grad": x is not None and x.requires_grad
            for name, x in named.items()
        },
    }


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, S: DistributedPattern, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
        scale: float, dropout_p: float, seed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v = map(resolve_lazy_view, (q, k, v))
        bias = None if bias is None else resolve_lazy_view(bias)
        with without_autocast():
            out, lse = _forward(S, AttentionOperands(q, k, v, bias, scale, dropout_p, seed))
        ctx.save_for_backward(q, k, v, bias, seed, out, lse)
        ctx.S, ctx.options = S, (scale, dropout_p)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        S, needs = ctx.S, ctx.needs_input_grad[1:5]
        grad_out, grad_lse = grads
        q, k, v, bias, seed, out, lse = ctx.saved_tensors

        def check() -> tuple[None, Mapping[str, object]]:
            return None, {
                "which results have gradients": [x is not None for x in grads],
                "which operands need gradients": list(needs),
            }

        grad_out = torch.zeros_like(out) if grad_out is None else resolve_lazy_view(grad_out)
        grad_lse = None if grad_lse is None else resolve_lazy_view(grad_lse)
        name = "the gradient of sparse_attention"
        with agreement(S.grid, name, check), without_autocast():
            scale, dropout_p = ctx.options
            operands = AttentionOperands(q, k, v, bias, scale, dropout_p, seed)
            gradients = _backward(S, operands, out, lse, grad_out, grad_lse, needs)
        return None, *gradients, None, None, None


def _forward(S: DistributedPattern, operands: AttentionOperands) -> tuple[Tensor, Tensor]:
    q, k, v, bias = operands[:4]
    block = S.block
    block_q = block.gather_rows(q)
    block_bias = None if bias is None else block.gather_values(bias)
    if is_sliced(S.way):
        out, lse = sliced_forward(block, operands._replace(q=block_q, bias=block_bias))
        if S.grid.replicas == 1:
            return out, lse
        return _collected(S, torch.cat([out.to(lse.dtype), lse[..., None]], dim=-1), q.dtype)
    merged: Tensor | None = None
    for panel, rows, label in panels_of(block, S.way, torch.cat([k, v], dim=-1), S.ring_sizes):
        with span("compute", label):
            own = _of_panel(block, panel, rows, operands._replace(q=block_q, bias=block_bias))
            out, lse = attend(panel.pattern, own)
            part = torch.cat([out.to(lse.dtype), lse[..., None]], dim=-1)
            merged = part if merged is None else _merged(merged, part)
    assert merged is not None
    return _collected(S, merged, q.dtype)


def _collected(S: DistributedPattern, merged: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """This rank's rows of the result and of the logarithms, from all replicas' of the block."""
    own_rows, *others = S.block.collect_rows(merged)
    for other in others:
        own_rows = _merged(own_rows, other)
    return own_rows[..., :-1].to(dtype), own_rows[..., -1].contiguous()


def _merged(first: Tensor, second: Tensor) -> Tensor:
    """The attention to the columns of two parts together: [result | logarithm of the row's sum].

    A part of which a row has no finite score, with -inf for its logarithm, has no weight.
    """
    lse = torch.logaddexp(first[..., -1:], second[..., -1:])
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    out = sum(part[..., :-1] * (part[..., -1:] - finite).exp() for part in (first, second))
    return torch.cat([out, lse], dim=-1)  # type: ignore[list-item]


def _backward(
    S: DistributedPattern,
    operands: AttentionOperands,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    needs: tuple[bool, bool, bool, bool],
) -> AttentionGradients:
    q, k, v, bias = operands[:4]
    block, d, wide = S.block, k.shape[-1], DTYPES[q.dtype].accumulator
    block_q, block_out, block_grad = (block.gather_rows(x) for x in (q, out, grad_out))
    block_lse, block_grad_lse = lse, grad_lse
    if S.grid.replicas > 1:
        zeros = torch.zeros_like(lse) if grad_lse is None else grad_lse
        logarithms = block.gather_rows(torch.stack([lse, zeros], -1))
        block_lse, block_grad_lse = logarithms.unbind(-1)
    block_bias = None if bias is None else block.gather_values(bias)
    of_block = operands._replace(q=block_q, bias=block_bias)
    if is_sliced(S.way):
        gradients = sliced_backward(
            block, of_block, (block_out, block_lse, block_grad, block_grad_lse), needs,
            _panel_backward,
        )  # fmt: skip
        grads = gradients.q
        if grads is not None and S.grid.replicas > 1:
            grads = block.scatter_rows(grads.to(wide)).to(q.dtype)
        of_bias = None if gradients.bias is None else block.scatter_values(gradients.bias)
        return gradients._replace(q=grads, bias=of_bias)
    grad_q = torch.zeros(block_q.shape, dtype=wide, device=q.device) if needs[0] else None
    has_bias = needs[3] and bias is not None
    grad_bias = bias.new_zeros((*bias.shape[:-1], block.nnz)) if bias is not None else None

    def compute(panel: Panel, rows: Tensor, label: str) -> Tensor:
        with span("compute", label):
            own = _of_panel(block, panel, rows, of_block)
            gradients = _panel_backward(
                panel.pattern, own, block_out, block_lse, block_grad, block_grad_lse,
                (needs[0], needs[1], needs[2], has_bias),
            )  # fmt: skip
            if grad_q is not None and gradients.q is not None:
                grad_q.add_(gradients.q)
            if grad_bias is not None and gradients.bias is not None:
                if panel.places is None:
                    grad_bias.copy_(gradients.bias)
                else:
                    panel.places.put(gradients.bias.to(grad_bias.dtype), grad_bias)
            columns = [
                rows.new_zeros((*rows.shape[:-1], width), dtype=wide) if g is None else g.to(wide)
                for g, width in ((gradients.k, d), (gradients.v, v.shape[-1]))
            ]
            return torch.cat(columns, dim=-1)

    sums = exchange_panels(block, S.way, torch.cat([k, v], dim=-1), S.ring_sizes, compute)
    return AttentionGradients(
        None if grad_q is None else block.scatter_rows(grad_q).to(q.dtype),
        sums[..., :d].to(k.dtype) if needs[1] else None,
        sums[..., d:].to(v.dtype) if needs[2] else None,
        block.scatter_values(grad_bias) if has_bias and grad_bias is not None else None,
    )


def _of_panel(
    block: Block, panel: Panel, rows: Tensor, operands: AttentionOperands
) -> AttentionOperands:
    """The operands of a panel. rows: of K and V, side by side; operands: q and the bias are the
    block's."""
    bias, d = operands.bias, operands.q.shape[-1]
    number = next(i for i, other in enumerate(block.panels) if other is panel)
    return operands._replace(
        k=rows[..., :d],
        v=rows[..., d:],
        bias=bias if bias is None or panel.places is None else panel.places.take(bias),
        seed=seed_of_part(operands.seed, block.grid.place, number),
    )


def _panel_backward(
    pattern: SparsePattern,
    operands: AttentionOperands,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    needs: tuple[bool, bool, bool, bool],
    into_q: Tensor | None = None,
) -> AttentionGradients:
    """The gradients of one panel; out, lse and their gradients are those of whole rows."""
    problem = attention_problem(pattern, operands)
    if is_fused(problem):
        return attention_backward(
            pattern, problem, operands, out, lse, grad_out, grad_lse, needs, into_q
        )
    gradients = _from_parts(pattern, operands, out, lse, grad_out, grad_lse, needs)
    if into_q is None or gradients.q is None:
        return gradients
    return gradients._replace(q=into_q.copy_(gradients.q))


def _from_parts(
    pattern: SparsePattern,
    operands: AttentionOperands,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    needs: tuple[bool, bool, bool, bool],
) -> AttentionGradients:
    """The formulas of `PreparedAttention.backward`, by sddmm and spmm."""
    q, k, v, bias, scale = operands.joined()[:5]
    wide = lse.dtype
    rows = pattern.row_ids.long()
    indices = pattern.major_indices, pattern.col_indices
    m, n = pattern.shape
    sampling = {"compressed": True, "out_dtype": wide, "calls": MANY_CALLS}
    matrix = {"compressed": True, "m": m, "n": n, "out_dtype": wide}
    scores = call("sddmm", *indices, q, k.mT, None, alpha=scale, **sampling)
    if bias is not None:
        scores = scores + bias.to(wide)
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    p = (scores - lse[..., rows]).exp()
    kept: Tensor | float = 1.0
    if operands.seed is not None:
        heads = scores.shape[0] if scores.dim() == 2 else 1
        kept = kept_factors(operands.seed, heads, pattern.nnz, operands.dropout_p, wide).view_as(
            scores
        )
    delta = (grad_out.to(wide) * out.to(wide)).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    of_weights = call("sddmm", *indices, grad_out, v.mT, None, **sampling)
    ds = p * (kept * of_weights - delta[..., rows])
    shared = bias is not None and bias.dim() < ds.dim()
    return AttentionGradients(
        call("spmm", *indices, ds, k, alpha=scale, **matrix) if needs[0] else None,
        call("spmm", *indices, ds, q, alpha=scale, transpose=True, **matrix) if needs[1] else None,
        call("spmm", *indices, p * kept, grad_out, transpose=True, **matrix) if needs[2] else None,
        (ds.sum(0) if shared else ds).to(bias.dtype) if needs[3] and bias is not None else None,
    )
