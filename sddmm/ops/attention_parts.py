"""Sparse attention from its parts, sddmm, softmax and spmm, which pass on (heads, nnz) arrays.

It serves where no backend has a fused kernel. Every part is an operator that is differentiable any
number of times, so its gradients have gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS, AttentionGradients, AttentionOperands
from sddmm.dropout import kept_factors
from sddmm.dtypes import DTYPES
from sddmm.ops.routing import call
from sddmm.sparse.pattern import SparsePattern


class _Weights(NamedTuple):
    """p: the softmax of the scores; kept: what dropout multiplies it by, or None; both (..., nnz).
    lse: (..., m), which autograd does not follow."""

    p: Tensor
    kept: Tensor | None
    lse: Tensor

    def dropped(self, x: Tensor) -> Tensor:
        return x if self.kept is None else x * self.kept


class AttentionParts:
    """The attention over one pattern; operands are ([heads,] rows, columns)."""

    def __init__(self, pattern: SparsePattern) -> None:
        self._pattern = pattern
        self._indices = pattern.major_indices, pattern.col_indices
        self._layout = {"compressed": pattern.is_csr, "blocksize": pattern.blocksize}
        m, n = pattern.shape
        self._matrix = {**self._layout, "m": m, "n": n}

    def forward(self, operands: AttentionOperands) -> tuple[Tensor, Tensor]:
        """The result, and the logarithm of each row's sum."""
        weights = self._weights(operands)
        return self._spmm(weights.dropped(weights.p), operands.v), weights.lse

    def backward(
        self,
        operands: AttentionOperands,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        needs: tuple[bool, bool, bool, bool],
    ) -> AttentionGradients:
        """The gradients of q, k, v and the bias; None for each that is not needed."""
        q, k, v, bias = operands[:4]
        weights = self._weights(operands)
        p, scale = weights.p, operands.scale
        grad_q = grad_k = grad_v = grad_bias = None
        if needs[2]:
            grad_v = self._spmm(weights.dropped(p), grad_out, transpose=True)
        if needs[0] or needs[1] or needs[3]:
            g = weights.dropped(self._sddmm(grad_out, v))
            ds = call("softmax_backward", *self._indices, p, g, **self._matrix)
            if grad_lse is not None:
                ds = ds + p * grad_lse.index_select(-1, self._row_ids)
            grad_q = self._spmm(ds, k, alpha=scale) if needs[0] else None
            grad_k = self._spmm(ds, q, transpose=True, alpha=scale) if needs[1] else None
            if needs[3] and bias is not None:
                shared = bias.dim() < ds.dim()
                grad_bias = (ds.sum(0) if shared else ds).to(bias.dtype)
        return AttentionGradients(grad_q, grad_k, grad_v, grad_bias)

    @property
    def _row_ids(self) -> Tensor:
        return self._pattern.row_ids.to(torch.int64)

    def _weights(self, operands: AttentionOperands) -> _Weights:
        scores = self._sddmm(operands.q, operands.k, operands.scale)
        if operands.bias is not None:
            scores = scores + operands.bias.to(scores.dtype)
        rows, m = self._row_ids, self._pattern.shape[0]
        ids = rows.expand_as(scores)
        largest = scores.new_full((*scores.shape[:-1], m), -torch.inf)
        largest = largest.scatter_reduce(-1, ids, scores.detach(), "amax")
        # A row that has nothing but -inf would be NaN, in its gradients too.
        is_dead = (largest == -torch.inf).index_select(-1, rows)
        p = call("softmax", *self._indices, scores.masked_fill(is_dead, 0.0), **self._matrix)
        p = p.masked_fill(is_dead, 0.0)
        # The largest weight of a row is 1 / (sum of exp(score - largest)).
        smallest = torch.finfo(p.dtype).tiny
        largest_p = largest.new_full(largest.shape, smallest)
        largest_p = largest_p.scatter_reduce(-1, ids, p.detach(), "amax")
        lse = largest - largest_p.log()
        if operands.seed is None:
            return _Weights(p, None, lse)
        heads = p.shape[0] if p.dim() == 2 else 1
        kept = kept_factors(operands.seed, heads, p.shape[-1], operands.dropout_p, p.dtype)
        return _Weights(p, kept.view_as(p), lse)

    def _sddmm(self, a: Tensor, b_t: Tensor, alpha: float = 1.0) -> Tensor:
        options: dict[str, Any] = {**self._layout, "alpha": alpha}
        options["out_dtype"] = DTYPES[a.dtype].accumulator
        options["calls"] = MANY_CALLS  # for the same bits at every call
        return call("sddmm", *self._indices, a, b_t.mT, None, **options)

    def _spmm(self, values: Tensor, dense: Tensor, **options: Any) -> Tensor:
        return call("spmm", *self._indices, values, dense, **self._matrix, **options)
