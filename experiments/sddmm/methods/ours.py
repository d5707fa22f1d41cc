"""Runs a plan of this package; its public call is `sddmm(S, a, b)` on a torch CSR tensor."""

from __future__ import annotations

import torch
from torch import Tensor

import sddmm
from experiments.bench.methods import Run
from experiments.sddmm.case import Case
from experiments.sddmm.unseen import new_pattern, unseen_csr

# It multiplies the samples by the matrix's values itself.
scales = True


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    plan = new_plan(case)
    return lambda: plan.run(case.a, case.b)


def new_plan(case: Case, kernel: str | None = None) -> sddmm.Plan:
    """A plan by this kernel, or by the one that the planner chooses."""
    heads = None if case.heads == 1 else case.heads
    return sddmm.plan(
        new_pattern(case) if case.values is None else unseen_csr(case, case.values),
        k=case.k,
        dtype=case.a.dtype,
        heads=heads,
        out_dtype=case.out_dtype,
        kernel=kernel,
    )


def public_call(case: Case) -> Run:
    scaled, values = case.values is not None, case.values
    if values is None:
        values = torch.ones(case.nnz, dtype=case.a.dtype, device=case.device)
    S = unseen_csr(case, values)

    def run() -> Tensor:
        product = sddmm.sddmm(S, case.a, case.b, scale=scaled, out_dtype=case.out_dtype)
        return product.values() if case.heads == 1 else product

    return run
