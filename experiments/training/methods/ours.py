"""Calls `sddmm` on a pattern and torch.autograd.grad on its values; a graph captures both."""

from __future__ import annotations

import torch

import sddmm
from experiments.bench.methods import Run
from experiments.training.case import Case, Step


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    # A pattern of its own finds nothing that was prepared before.
    pattern = sddmm.SparsePattern.from_csr(
        case.pattern.major_indices, case.pattern.col_indices, case.pattern.shape
    )
    a, b_t = case.leaves()

    def run() -> Step:
        values = sddmm.sddmm(pattern, a, b_t.mT)
        return Step(values.detach(), *torch.autograd.grad(values, (a, b_t), case.grad))

    run()  # which prepares the forward and the backward for this pattern
    return run


def public_call(case: Case) -> Run:
    # Earlier copies held the same indices, maybe at this address: nothing of theirs may answer.
    sddmm.clear_cache()
    pattern = case.pattern
    a, b_t = case.leaves()
    values = torch.ones(case.nnz, dtype=a.dtype, device=case.device)
    S = torch.sparse_csr_tensor(
        pattern.major_indices, pattern.col_indices, values, pattern.shape, check_invariants=False
    )

    def run() -> Step:
        product = sddmm.sddmm(S, a, b_t.mT, scale=False)
        values = product.values() if case.heads == 1 else product
        return Step(values.detach(), *torch.autograd.grad(values, (a, b_t), case.grad))

    return run
