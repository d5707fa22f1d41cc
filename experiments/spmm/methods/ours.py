"""Runs a prepared product of this package; its public call is `spmm` on a torch CSR tensor."""

from __future__ import annotations

import torch
from torch import Tensor

import sddmm
from experiments.bench.methods import Run
from experiments.sddmm.unseen import unseen_csr
from experiments.spmm.case import Case
from experiments.spmm.prepared import new_product


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    return new_product(case).run


def public_call(case: Case) -> Run:
    # A sparse tensor holds one value for each nonzero; heads have values of their own beside it.
    own = case.weights if case.heads == 1 else torch.ones_like(case.weights[0])
    S = unseen_csr(case, own.view(-1))
    values = None if case.heads == 1 else case.weights

    def run() -> Tensor:
        product: Tensor = sddmm.spmm(S, case.dense, values=values, transpose=case.transpose)
        return product

    return run
