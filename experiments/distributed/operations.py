"""The operations that are measured: each rank's call, one process's, and how a part is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import sddmm
from experiments.bench.verify import Verdict
from experiments.spmm.verify import Reference as ProductReference
from experiments.training.case import Case
from sddmm import testing
from sddmm.distributed import DistributedPattern
from sddmm.distributed.volumes import Operation
from sddmm.sparse.pattern import SparsePattern

# Multiply-adds of a rank's results that are verified.
_WORK = 200_000_000

Results = tuple[Tensor, ...]


@dataclass(frozen=True)
class Operands:
    """The operands of a call: of one rank, or of the whole matrix. grad: the weights of spmm, and
    the gradient of sddmm's values in a training step."""

    S: DistributedPattern | SparsePattern
    a: Tensor
    b_t: Tensor
    grad: Tensor


def whole(case: Case, device: torch.device) -> Operands:
    """The operands of one process."""
    parts = (case.sampled.a, case.sampled.b.mT, case.grad)
    return Operands(case.pattern.to(device).clone(), *(x.to(device) for x in parts))


def of_rank(case: Case, S: DistributedPattern, device: torch.device) -> Operands:
    """The operands of this rank, cut out of a case on the CPU."""
    a, b_t = case.sampled.a[..., S.rows, :], case.sampled.b.mT[..., S.columns, :]
    grad = case.grad[..., own_nonzeros(case, S)]
    return Operands(S, *(x.contiguous().to(device) for x in (a, b_t, grad)))


def own_nonzeros(case: Case, S: DistributedPattern) -> slice:
    crow = case.pattern.major_indices
    return slice(int(crow[S.rows.start]), int(crow[S.rows.stop]))


def _sampled(x: Operands) -> Results:
    return (sddmm.sddmm(x.S, x.a, x.b_t.mT),)


def _multiplied(x: Operands) -> Results:
    return (sddmm.spmm(x.S, x.b_t, values=x.grad),)


def _trained(x: Operands) -> Results:
    a, b_t = (t.detach().requires_grad_() for t in (x.a, x.b_t))
    values = sddmm.sddmm(x.S, a, b_t.mT)
    return (values.detach(), *torch.autograd.grad(values, (a, b_t), x.grad))


# By name: the call, and the operations whose messages it sends.
OPERATIONS: Mapping[str, tuple[Callable[[Operands], Results], tuple[Operation, ...]]] = {
    "sddmm": (_sampled, ("sddmm",)),
    "spmm": (_multiplied, ("spmm",)),
    "training": (_trained, ("sddmm", "spmm", "spmm_transposed")),
}


def verify(name: str, case: Case, S: DistributedPattern, results: Results) -> Verdict:
    """Compare this rank's results with float64; the largest error is relative to the operands."""
    results = tuple(x.cpu() for x in results)
    verdicts = []
    if name == "spmm":
        verdicts.append(_rows(case, S).check(results[0]))
    else:
        verdicts.append(_check_samples(case, S, results[0]))
    if name == "training":
        verdicts.append(_rows(case, S).check(results[1]))
        verdicts.append(_columns(case, S).check(results[2]))
    return Verdict(
        sum(v.checked for v in verdicts),
        sum(v.wrong for v in verdicts),
        max(v.error or 0.0 for v in verdicts),
    )


def _check_samples(case: Case, S: DistributedPattern, values: Tensor) -> Verdict:
    """Compare values of the rank's nonzeros: all, or a random sample of them."""
    own = own_nonzeros(case, S)
    if values.shape[-1] != own.stop - own.start:
        return Verdict(0, own.stop - own.start, float("inf"))
    most = max(1, _WORK // max(1, case.k * case.heads))
    chosen = torch.arange(own.start, own.stop)
    if chosen.numel() > most:
        generator = torch.Generator().manual_seed(case.seed)
        chosen = chosen[torch.randint(chosen.numel(), (most,), generator=generator)]
    at = chosen.to(case.pattern.device)
    pattern = SparsePattern.from_coo(
        case.pattern.row_ids[at], case.pattern.col_indices[at], case.pattern.shape
    )
    a, b, got = case.sampled.a, case.sampled.b, values[..., chosen - own.start]
    truth = testing.reference(pattern, a, b)
    bound = testing.error_bound(pattern, a, b, truth, out_dtype=got.dtype)
    wrong = int(testing.mismatches(got, truth, bound).sum())
    scale = testing.magnitude(pattern, a, b).clamp_min(torch.finfo(torch.float64).tiny)
    error = float(((got.double() - truth).abs() / scale).max()) if got.numel() else 0.0
    return Verdict(got.numel(), wrong, error)


def _rows(case: Case, S: DistributedPattern) -> ProductReference:
    """This rank's rows of W B^T, with W the gradient of the values."""
    own = own_nonzeros(case, S)
    crow = case.pattern.major_indices[S.rows.start : S.rows.stop + 1]
    pattern = SparsePattern.from_csr(
        crow - crow[0], case.pattern.col_indices[own], (crow.numel() - 1, case.n)
    )
    b_t = case.sampled.b.mT
    return ProductReference(pattern.by_row, case.n, case.grad[..., own], b_t, case.seed, _WORK)


def _columns(case: Case, S: DistributedPattern) -> ProductReference:
    """This rank's rows of W^T A, which are columns of S."""
    cols = case.pattern.col_indices
    at = ((cols >= S.columns.start) & (cols < S.columns.stop)).nonzero()[:, 0]
    pattern = SparsePattern.from_coo(
        case.pattern.row_ids[at], cols[at] - S.columns.start,
        (case.m, S.columns.stop - S.columns.start),
    )  # fmt: skip
    grad, a = case.grad[..., at], case.sampled.a
    return ProductReference(pattern.by_column, case.m, grad, a, case.seed, _WORK)
