"""Calls `sparse_attention` on a pattern; torch.autograd.grad on its result in a training step."""

from __future__ import annotations

import torch

import sddmm
from experiments.attention.case import Case, new_run
from experiments.bench.methods import Run
from experiments.sddmm.unseen import new_pattern, unseen_csr


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    pattern = new_pattern(case)
    run = new_run(case, lambda q, k, v: sddmm.sparse_attention(pattern, q, k, v))
    run()  # which prepares the forward and the backward for this pattern
    return run


def public_call(case: Case) -> Run:
    S = unseen_csr(case, torch.ones(case.nnz, dtype=case.q.dtype, device=case.device))
    return new_run(case, lambda q, k, v: sddmm.sparse_attention(S, q, k, v))
