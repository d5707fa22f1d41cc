"""Sparse attention whose operands travel head by head, so that no results are merged.

Without heads there is one slice, which comes before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.distributed.blocks import Block
from sddmm.distributed.dropout import seed_of_part
from sddmm.distributed.slices import (
    Operands,
    ReceivedSlice,
    Slice,
    add_up,
    gathered,
    side_by_side,
    whole_pattern,
)
from sddmm.distributed.timeline import span
from sddmm.dtypes import DTYPES
from sddmm.ops.attention_operator import attend
from sddmm.sparse.pattern import SparsePattern

PanelBackward = Callable[
    [
        SparsePattern, AttentionOperands, Tensor, Tensor, Tensor, "Tensor | None",
        tuple[bool, bool, bool, bool], "Tensor | None",
    ],
    AttentionGradients,
]  # fmt: skip


def sliced_forward(block: Block, operands: AttentionOperands) -> tuple[Tensor, Tensor]:
    """The result of the block's rows, and the logarithms of their sums.

    operands: q and the bias are the block's, k and v this rank's rows.
    """
    q, v = operands.q, operands.v
    wide = DTYPES[q.dtype].accumulator
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty(q.shape[:-1], dtype=wide)
    heads = _heads(q)
    for j, rows, label, send_next in _slices(block, operands, heads):
        at = heads[j]
        with span("compute", label):
            own = _own(block, at, rows, operands)
            into = at.of(out), _head(at, lse)
            attend(whole_pattern(block), own, into=into)
        send_next()
    return out, lse


def sliced_backward(
    block: Block,
    operands: AttentionOperands,
    of_rows: tuple[Tensor, Tensor, Tensor, Tensor | None],
    needs: tuple[bool, bool, bool, bool],
    compute: PanelBackward,
) -> AttentionGradients:
    """Gradients: of q for the block's rows, of k and v for this rank's, and of the block's bias.

    of_rows: the block's result, logarithms, and the gradients of both. compute: the gradients of a
    pattern, with memory for that of q.
    """
    q, k, v, bias = operands[:4]
    heads, wide = _heads(q), DTYPES[q.dtype].accumulator
    grad_q = q.new_empty(q.shape) if needs[0] else None
    of_columns = [torch.empty_like(x) for x, needed in ((k, needs[1]), (v, needs[2])) if needed]
    has_bias = needs[3] and bias is not None
    grad_bias = torch.zeros_like(bias, dtype=wide) if has_bias and bias is not None else None

    def parts() -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        for j, rows, label, send_next in _slices(block, operands, heads):
            at = heads[j]
            with span("compute", label):
                own = _own(block, at, rows, operands)
                out, lse, grad_out, grad_lse = of_rows
                gradients = compute(
                    whole_pattern(block), own, at.of(out), _head(at, lse), at.of(grad_out),
                    None if grad_lse is None else _head(at, grad_lse),
                    (needs[0], needs[1], needs[2], has_bias),
                    None if grad_q is None else at.of(grad_q),
                )  # fmt: skip
                if grad_bias is not None and gradients.bias is not None:
                    at.values(grad_bias).add_(gradients.bias)
            send_next()
            yield j, tuple(x.to(q.dtype) for x in (gradients.k, gradients.v) if x is not None)

    add_up(block, parts(), lambda j: tuple(heads[j].of(x) for x in of_columns))
    grads = iter(of_columns)
    return AttentionGradients(
        grad_q,
        next(grads) if needs[1] else None,
        next(grads) if needs[2] else None,
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    )


def _heads(q: Tensor) -> list[Slice]:
    heads: list[int | None] = [None] if q.dim() == 2 else list(range(q.shape[0]))
    return [Slice(head, slice(None)) for head in heads]


def _slices(
    block: Block, operands: AttentionOperands, heads: list[Slice]
) -> Iterator[ReceivedSlice]:
    """Each head with the rows of k and of v that others hold."""
    k, v = operands.k, operands.v
    return gathered(block, len(heads), lambda j: (heads[j].of(k), heads[j].of(v)))


def _own(
    block: Block, at: Slice, others: Operands, operands: AttentionOperands
) -> AttentionOperands:
    """The operands of a head. others: the rows of K and of V that others hold."""
    bias = operands.bias
    (k, v), beyond = side_by_side((at.of(operands.k), at.of(operands.v)), others)
    return operands._replace(
        q=at.of(operands.q),
        k=k,
        v=v,
        bias=None if bias is None else at.values(bias),
        seed=seed_of_part(operands.seed, block.grid.place, at.head or 0),
        beyond=None if beyond is None else (beyond[0], beyond[1]),
    )


def _head(at: Slice, x: Tensor) -> Tensor:
    """A head of ([h,] rows)."""
    return x if at.head is None else x[at.head]
