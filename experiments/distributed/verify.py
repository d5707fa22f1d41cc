"""Compares each rank's results with float64, on samples whose rows of operands it makes itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.bench.verify import Verdict
from experiments.distributed.case import Case
from experiments.distributed.operations import Operands, Results
from experiments.spmm.verify import Reference as ProductReference
from experiments.spmm.verify import nonzeros_of, sampled_rows
from sddmm import testing
from sddmm.backends.base import AttentionOperands
from sddmm.distributed import DistributedPattern
from sddmm.ops.attention_bounds import (
    attention_error_bound,
    attention_truth,
    gradients_error_bound,
    gradients_reference,
)
from sddmm.ops.attention_operator import default_scale
from sddmm.sparse.pattern import SparsePattern

# Multiply-adds of a rank's results that are verified.
_WORK = 200_000_000
# The columns among which those are drawn whose gradients are verified; such a gradient needs all
# nonzeros of its rows.
_CANDIDATES = 256


def verify(name: str, case: Case, own: Operands, results: Results) -> Verdict:
    """The verdict of this rank's results; the largest error is relative to the operands."""
    S = own.S
    assert isinstance(S, DistributedPattern)
    if name == "attention":
        return _total(
            [_attention_rows(case, S, own, results), _attention_columns(case, S, results)]
        )
    verdicts = []
    if name == "spmm":
        verdicts.append(_rows(case, S, own["weights"], results[0]))
    else:
        verdicts.append(_samples(case, S, own["a"], results[0]))
    if name == "training":
        verdicts.append(_rows(case, S, own["weights"], results[1]))
        verdicts.append(_columns(case, S, results[2]))
    return _total(verdicts)


def _total(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    return Verdict(
        sum(v.checked for v in found),
        sum(v.wrong for v in found),
        max(v.error or 0.0 for v in found),
    )


def _samples(case: Case, S: DistributedPattern, a: Tensor, values: Tensor) -> Verdict:
    """Compare values of the rank's nonzeros: all, or a random sample of them."""
    if values.shape[-1] != S.nnz:
        return Verdict(0, S.nnz, float("inf"))
    most = max(1, _WORK // (case.k * case.heads))
    chosen = torch.arange(S.nnz) if S.nnz <= most else _random(S.nnz, most, case.seed)
    at = chosen.to(S.device)
    columns, col_ids = torch.unique(S.local.col_indices[at].long(), return_inverse=True)
    rows, row_ids = torch.unique(S.local.row_ids[at].long(), return_inverse=True)
    pattern = SparsePattern.from_coo(row_ids, col_ids, (rows.numel(), columns.numel()))
    a, b, got = a[..., rows, :], case.chosen_rows("b_t", columns).mT, values[..., at]
    truth = testing.reference(pattern, a, b)
    bound = testing.error_bound(pattern, a, b, truth, out_dtype=got.dtype)
    size = testing.magnitude(pattern, a, b)
    return _verdict(got, truth, bound, size)


def _rows(case: Case, S: DistributedPattern, weights: Tensor, result: Tensor) -> Verdict:
    """Compare this rank's rows of W B^T."""
    part = _PartOfRows.of(case, S, case.k * case.heads)
    dense, view = case.chosen_rows("b_t", part.columns), part.pattern.by_row
    own = weights[..., part.nonzeros]
    reference = ProductReference(view, part.columns.numel(), own, dense, full_work=1 << 62)
    return _of_rows(reference, result, part.rows, S.rows)


def _columns(case: Case, S: DistributedPattern, result: Tensor) -> Verdict:
    """Compare this rank's rows of W^T A, which are columns of S."""
    columns, work = S.columns, case.k * case.heads
    lengths = _column_lengths(case, columns)
    chosen = sampled_rows(
        torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), work, case.seed, _WORK
    )
    at = _nonzeros_of_columns(case, chosen + columns.start)
    rows, row_ids = torch.unique(_row_ids(case, at), return_inverse=True)
    col_ids = torch.searchsorted(chosen, case.pattern.col_indices[at].long() - columns.start)
    pattern = SparsePattern.from_coo(row_ids, col_ids, (rows.numel(), chosen.numel()))
    reference = ProductReference(
        pattern.by_column, rows.numel(), case.chosen_weights(at), case.chosen_rows("a", rows),
        full_work=1 << 62,
    )  # fmt: skip
    return _of_rows(reference, result, chosen, columns)


def _of_rows(reference: ProductReference, result: Tensor, rows: Tensor, own: slice) -> Verdict:
    if result.shape[-2] != own.stop - own.start:
        return Verdict(0, own.stop - own.start, float("inf"))
    return reference.check(result[..., rows, :])


def _attention_rows(case: Case, S: DistributedPattern, own: Operands, results: Results) -> Verdict:
    """Compare rows of the result and of q's gradient."""
    part = _PartOfRows.of(case, S, 8 * case.k * case.heads)
    q, grad_out = (own[name][..., part.rows, :] for name in ("a", "grad_out"))
    k, v = (case.chosen_rows(name, part.columns) for name in ("b_t", "v"))
    operands = AttentionOperands(q, k, v, None, default_scale(case.k))
    truth = attention_truth(part.pattern, operands)
    gradients = gradients_reference(part.pattern, operands, grad_out)
    bounds = gradients_error_bound(part.pattern, operands, grad_out, None, gradients)
    bound = attention_error_bound(part.pattern, operands, truth)[0]
    assert gradients.q is not None
    assert bounds.q is not None
    out, grad_q = (x[..., part.rows, :] for x in results[:2])
    return _total([
        _panels_verdict(out, truth.out, bound), _panels_verdict(grad_q, gradients.q, bounds.q)
    ])  # fmt: skip


def _attention_columns(case: Case, S: DistributedPattern, results: Results) -> Verdict:
    """Compare rows of the gradients of k and v: of columns whose rows have few nonzeros."""
    own = S.columns
    if own.stop == own.start:
        return Verdict(0, 0, 0.0)
    candidates = _random(own.stop - own.start, _CANDIDATES, case.seed).to(S.device)
    at = _nonzeros_of_columns(case, candidates + own.start)
    which = torch.searchsorted(candidates, case.pattern.col_indices[at].long() - own.start)
    rows, crow = _row_ids(case, at), case.pattern.major_indices.long()
    costs = torch.zeros_like(candidates).index_add_(0, which, crow[rows + 1] - crow[rows])
    order = costs.argsort()
    most = _WORK // (8 * case.k * case.heads)
    few = order[: max(1, int((costs[order].cumsum(0) <= most).sum()))].sort().values
    chosen = candidates[few]
    at = at[torch.isin(which, few)]
    rows = torch.unique(_row_ids(case, at))
    nonzeros, row_ids = nonzeros_of(case.pattern.major_indices, rows)
    cols = case.pattern.col_indices[nonzeros].long()
    columns = torch.unique(torch.cat([cols, chosen + own.start]))
    pattern = SparsePattern.from_coo(
        row_ids, torch.searchsorted(columns, cols), (rows.numel(), columns.numel())
    )
    q, k, v, grad_out = (
        case.chosen_rows(name, numbers)
        for name, numbers in (("a", rows), ("b_t", columns), ("v", columns), ("grad_out", rows))
    )
    operands = AttentionOperands(q, k, v, None, default_scale(case.k))
    truth = gradients_reference(pattern, operands, grad_out)
    bounds = gradients_error_bound(pattern, operands, grad_out, None, truth)
    places = torch.searchsorted(columns, chosen + own.start)
    verdicts = []
    for got, exact, bound in ((results[2], truth.k, bounds.k), (results[3], truth.v, bounds.v)):
        assert exact is not None
        assert bound is not None
        verdicts.append(
            _panels_verdict(got[..., chosen, :], exact[..., places, :], bound[..., places, :])
        )
    return _total(verdicts)


def _panels_verdict(got: Tensor, truth: Tensor, bound: Tensor) -> Verdict:
    """The verdict of merged results of panels, each of which was rounded as one process's is.

    The bound holds a rounding of each term to the operands' dtype; panels add one more.
    """
    largest = truth.abs().max() if truth.numel() else truth.sum()
    return _verdict(got, truth, 2 * bound, largest)


def _verdict(got: Tensor, truth: Tensor, bound: Tensor, size: Tensor) -> Verdict:
    if got.shape != truth.shape:
        return Verdict(0, truth.numel(), float("inf"))
    wrong = int(testing.mismatches(got, truth, bound).sum())
    scale = size.clamp_min(torch.finfo(got.dtype).smallest_normal)
    errors = ((got.double() - truth).abs() / scale).nan_to_num(nan=torch.inf)
    return Verdict(got.numel(), wrong, float(errors.max()) if got.numel() else 0.0)


class _PartOfRows(NamedTuple):
    """Some of a rank's rows. rows, nonzeros: their numbers on the rank; columns: of S, those with
    nonzeros in the rows; pattern: of these rows and columns alone."""

    rows: Tensor
    nonzeros: Tensor
    columns: Tensor
    pattern: SparsePattern

    @classmethod
    def of(cls, case: Case, S: DistributedPattern, each: int) -> _PartOfRows:
        """each: the multiply-adds of a nonzero."""
        rows = sampled_rows(S.local.major_indices, each, case.seed, _WORK)
        nonzeros, row_ids = nonzeros_of(S.local.major_indices, rows)
        columns, col_ids = torch.unique(S.local.col_indices[nonzeros].long(), return_inverse=True)
        pattern = SparsePattern.from_coo(row_ids, col_ids, (rows.numel(), columns.numel()))
        return cls(rows, nonzeros, columns, pattern)


def _random(size: int, count: int, seed: int) -> Tensor:
    """Some distinct numbers below `size`, at most `count` of them, ascending; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(size, (count,), generator=generator).unique()


def _column_lengths(case: Case, own: slice) -> Tensor:
    """The nonzeros of each of these columns of S."""
    cols = case.pattern.col_indices
    inside = cols[(cols >= own.start) & (cols < own.stop)].long() - own.start
    return torch.bincount(inside, minlength=own.stop - own.start)


def _nonzeros_of_columns(case: Case, columns: Tensor) -> Tensor:
    """The numbers of the nonzeros in some columns of S, ascending."""
    is_chosen = torch.zeros(case.pattern.shape[1], dtype=torch.bool, device=columns.device)
    is_chosen[columns] = True
    return is_chosen[case.pattern.col_indices].nonzero()[:, 0]


def _row_ids(case: Case, nonzeros: Tensor) -> Tensor:
    """The rows of S in which these nonzeros are."""
    return torch.searchsorted(case.pattern.major_indices.long(), nonzeros, right=True) - 1
