"""Our re-implementation of what PyTorch Geometric's TransformerConv computes, edge by edge.

Rows of q, k and v are gathered for every nonzero, (nnz, h, d); the softmax is by scatter_reduce and
scatter_add, and the messages are added to their targets. Scores of half types are converted to
float32 for the softmax, as a sum of many would not fit them. The formulas are those of
torch_geometric.nn.TransformerConv and torch_geometric.utils.softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.attention.case import Case, heads_first, new_run, rows_first
from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run

IS_PEER = True

# Arrays of nnz rows that are alive at once: two gathered and their product; of a training step the
# three gathered, the messages, and the gradients of both products.
_ARRAYS, _ARRAYS_OF_STEP = 3, 7
# Arrays of (nnz, h) float32 beside them.
_SCORES = 8
# What PyTorch Geometric adds to the sums of its softmax.
LEAST_SUM = 1e-16


def refuses(case: Case) -> str | None:
    arrays = _ARRAYS_OF_STEP if case.backward else _ARRAYS
    row_bytes = arrays * case.k * case.q.element_size() + 4 * _SCORES
    return refuse_bytes(case.device, "the gathered rows take", row_bytes * case.nnz * case.heads)


def prepare(case: Case) -> Run:
    rows, cols = case.pattern.row_ids.long(), case.pattern.col_indices.long()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dots = (q.index_select(0, rows) * k.index_select(0, cols)).sum(-1)
        scores = dots.to(torch.promote_types(dots.dtype, torch.float32)) * case.scale
        weights = _softmax(scores, rows, case.m)
        messages = v.index_select(0, cols) * weights.to(v.dtype)[:, :, None]
        return torch.zeros_like(q).index_add_(0, rows, messages)

    return new_run(case, attend, rows_first, heads_first)


def _softmax(scores: Tensor, rows: Tensor, m: int) -> Tensor:
    """The softmax over the nonzeros of each row of scores (nnz, h)."""
    index = rows[:, None].expand_as(scores)
    shape = (m, *scores.shape[1:])
    largest = scores.new_zeros(shape).scatter_reduce_(
        0, index, scores.detach(), "amax", include_self=False
    )
    powers = (scores - largest.index_select(0, rows)).exp()
    sums = powers.new_zeros(shape).scatter_add_(0, index, powers) + LEAST_SUM
    return powers / sums.index_select(0, rows)
