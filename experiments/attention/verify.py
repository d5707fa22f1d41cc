"""Verifies attention and its gradients against float64, on all rows or on a sample of them.

A sample of columns counts with all rows that they have nonzeros in, as the gradients of k and v are
sums over columns; results and gradients of q are verified on these rows too, and on others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

import sddmm
from experiments.attention.case import Case, Step
from experiments.bench.verify import Verdict
from experiments.spmm.verify import nonzeros_of, sampled_rows
from sddmm import testing
from sddmm.backends.base import AttentionOperands
from sddmm.backends.reference import reference_product
from sddmm.ops.attention_bounds import (
    attention_error_bound,
    attention_truth,
    gradients_error_bound,
    gradients_reference,
)
from sddmm.ops.row_sums import Rows

# Multiply-adds of one product that are verified at most, beside rows and columns chosen for
# themselves.
_FULL_WORK = 300_000_000

# Half types may be rounded so many times more by peers: a dot product, and a sum of products, whose
# partial sums some add with atomics, in no order that a bound could follow.
_DOT_ROUNDINGS, _SUM_ROUNDINGS = 4, 16


class Part(NamedTuple):
    """The values of one result that are verified: the truth, the bounds of ours and of peers, and
    the sums of magnitudes of each entry, all float64; and which rows of the result they are."""

    truth: Tensor
    bound: Tensor
    peer_bound: Tensor
    size: Tensor
    rows: Tensor


class Reference:
    """The results of a case in float64, and how far those of a method may be from them."""

    def __init__(self, case: Case, full_work: int = _FULL_WORK) -> None:
        rows, columns = _sample(case, full_work)
        sub = _SubProblem(case, rows, columns)
        self._shapes = (tuple(case.q.shape), *(tuple(x.shape) for x in case.inputs))
        self._parts = sub.parts()

    def check(self, step: Step, is_peer: bool = False) -> Verdict:
        """Compare a method's results; the largest error of a verdict is of all of them.

        is_peer: the method is not ours, and may round half types more often.
        """
        checked = wrong = 0
        worst = 0.0
        for result, part, shape in zip(step, self._parts, self._shapes, strict=False):
            if result is None or tuple(result.shape) != shape:
                return Verdict(0, math.prod(shape), float("inf"), "a result has another shape")
            got = result.detach()[..., part.rows, :]
            bound = part.peer_bound if is_peer else part.bound
            normal = torch.finfo(got.dtype).smallest_normal  # below it every dtype is coarse
            errors = (got.double() - part.truth).abs() / part.size.clamp_min(normal)
            checked += got.numel()
            wrong += int(testing.mismatches(got, part.truth, bound).sum())
            worst = max(worst, float(errors.nan_to_num(nan=torch.inf).max()) if got.numel() else 0)
        return Verdict(checked, wrong, worst)


class _SubProblem:
    """The attention of some rows of a case, to those columns that they have nonzeros in.

    rows: sorted. columns: sorted, with all of their nonzeros in these rows.
    """

    def __init__(self, case: Case, rows: Tensor, columns: Tensor) -> None:
        view = case.pattern.by_row
        positions, self._local_rows = nonzeros_of(view.indptr, rows)
        cols = view.indices[positions].long()
        present = torch.cat([cols, columns]).unique()
        self._rows, self._columns = rows, columns
        self._own_columns = torch.searchsorted(present, columns)
        self._pattern = sddmm.SparsePattern.from_coo(
            self._local_rows, torch.searchsorted(present, cols), (rows.numel(), present.numel())
        )
        q, k, v = case.q[..., rows, :], case.keys[..., present, :], case.v[..., present, :]
        self._operands = AttentionOperands(q, k, v, None, case.scale)
        self._truth = attention_truth(self._pattern, self._operands)
        self._grad = case.grad[..., rows, :] if case.backward else None

    def parts(self) -> list[Part]:
        """The result, and where the case has a backward the gradients of q, k and v."""
        bound, _ = attention_error_bound(self._pattern, self._operands, self._truth)
        slack, sizes = self._peer_slack()
        parts = [Part(self._truth.out, bound, bound + slack[0], sizes[0], self._rows)]
        if self._grad is None:
            return parts
        pattern, operands, grad = self._pattern, self._operands, self._grad
        truth = gradients_reference(pattern, operands, grad)
        bounds = gradients_error_bound(pattern, operands, grad, None, truth)
        rows = self._rows, self._columns, self._columns
        for index, which in enumerate((slice(None), self._own_columns, self._own_columns)):
            exact, bound = _present(truth[index]), _present(bounds[index])
            size, peer_bound = sizes[1 + index], bound + slack[1 + index]
            values = (x[..., which, :] for x in (exact, bound, peer_bound, size))
            parts.append(Part(*values, rows[index]))
        return parts

    def _peer_slack(self) -> tuple[list[Tensor], list[Tensor]]:
        """What peers may be off beyond our bound, and the sums of magnitudes, of each result.

        Scores are rounded in the operands' dtype before the exponential, and so are weights, the
        products behind gradients, and partial sums.
        """
        pattern, truth = self._pattern, self._truth
        q, k, v = self._operands[:3]
        sums, scale = Rows(pattern), self._operands.scale
        unit = torch.finfo(q.dtype).eps / 2
        dot, rounding = _DOT_ROUNDINGS * unit, _SUM_ROUNDINGS * unit
        spacing = torch.finfo(q.dtype).smallest_normal * 2 * unit * _DOT_ROUNDINGS
        p = truth.p
        score = dot * testing.magnitude(pattern, q, k.mT) * scale
        relative = (score + sums.reduce(p * score, "sum") + dot).expm1()
        weight = p * relative + spacing
        slack = [self._sum(weight, v) + rounding * self._sum(p, v)]
        sizes = [self._sum(p, v)]
        if self._grad is None:
            return slack, sizes
        g = testing.reference(pattern, self._grad, v.mT)
        delta = sums.reduce(p * g, "sum")
        product = dot * testing.magnitude(pattern, self._grad, v.mT)
        ds = (p * (g - delta)).abs()
        ds_size = p * (g.abs() + delta.abs())
        ds_error = p * (product + sums.reduce(p * product, "sum"))
        ds_error = ds_error + ds_size * (relative + dot) + spacing * (1 + g.abs() + delta.abs())
        for error, size, weights, dense, is_column in (
            (ds_error, ds_size, ds, k, False),
            (ds_error, ds_size, ds, q, True),
            (weight, p, p, self._grad, True),
        ):
            by = 1.0 if dense is self._grad else scale
            rounded = rounding * self._sum(weights, dense, is_column, by)
            slack.append(self._sum(error, dense, is_column, by) + rounded)
            sizes.append(self._sum(size, dense, is_column, by))
        return slack, sizes

    def _sum(
        self, weights: Tensor, dense: Tensor, transpose: bool = False, scale: float = 1.0
    ) -> Tensor:
        """The sums of weights times magnitudes of rows of `dense`."""
        return reference_product(
            self._pattern, weights, dense.abs(), transpose=transpose, alpha=scale
        )


def _present(x: Tensor | None) -> Tensor:
    assert x is not None  # only a bias may have no gradient
    return x


def _sample(case: Case, full_work: int) -> tuple[Tensor, Tensor]:
    """Rows that are verified, and columns all of whose nonzeros are in them; sorted.

    All, or a seeded sample: rows with the first, the last and the longest among them, and, for
    gradients, columns with the one among them that has the most nonzeros and is within the work.
    """
    view = case.pattern.by_row
    per_nonzero = case.k * case.heads
    chosen = sampled_rows(view.indptr, per_nonzero, case.seed, full_work)
    columns = torch.arange(case.n, device=chosen.device)
    if chosen.numel() == case.m:
        return chosen, columns
    if not case.backward:
        return chosen, columns[:0]
    row_work = (view.indptr.diff().long() + 1) * per_nonzero
    row_ids, cols = case.pattern.row_ids.long(), view.indices.long()
    column_work = torch.zeros_like(columns).index_add_(0, cols, row_work[row_ids]) + per_nonzero
    generator = torch.Generator().manual_seed(case.seed)
    whole = _within(column_work, full_work, generator)
    number = torch.bincount(cols, minlength=case.n).masked_fill(column_work > full_work, -1)
    whole = torch.cat([whole, number.argmax()[None]])
    is_whole = torch.zeros_like(columns, dtype=torch.bool)
    is_whole[whole] = True
    return torch.cat([chosen, row_ids[is_whole[cols]]]).unique(), whole.unique()


def _within(work: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """As many indices, in a random order, as are within the limit together."""
    order = torch.randperm(work.numel(), generator=generator).to(work.device)
    order = order[work[order] <= limit]
    return order[work[order].cumsum(0) <= limit]
