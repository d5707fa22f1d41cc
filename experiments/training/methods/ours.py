"""Calls `sddmm` on a pattern and torch.autograd.grad on its values; a graph captures both."""

from __future__ import annotations

import torch

import sddmm
from experiments.bench.methods import Run
from experiments.sddmm.unseen import new_pattern, unseen_csr
from experiments.training.case import Case, Step


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    pattern = new_pattern(case)
    a, b_t = case.leaves()

    def run() -> Step:
        values = sddmm.sddmm(pattern, a, b_t.mT)
        return Step(values.detach(), *torch.autograd.grad(values, (a, b_t), case.grad))

    run()  # which prepares the forward and the backward for this pattern
    return run


def public_call(case: Case) -> Run:
    a, b_t = case.leaves()
    S = unseen_csr(case, torch.ones(case.nnz, dtype=a.dtype, device=case.device))

    def run() -> Step:
        product = sddmm.sddmm(S, a, b_t.mT, scale=False)
        values = product.values() if case.heads == 1 else product
        return Step(values.detach(), *torch.autograd.grad(values, (a, b_t), case.grad))

    return run
