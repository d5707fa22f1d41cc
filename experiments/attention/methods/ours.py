"""Calls `sparse_attention` on a pattern; torch.autograd.grad on its result in a training step."""

from __future__ import annotations

import torch

import sddmm
from experiments.attention.case import Case, new_run
from experiments.bench.methods import Run


def refuses(case: Case) -> str | None:
    return None


def prepare(case: Case) -> Run:
    # A pattern of its own finds nothing that was prepared before.
    pattern = sddmm.SparsePattern.from_csr(
        case.pattern.major_indices, case.pattern.col_indices, case.pattern.shape
    )
    run = new_run(case, lambda q, k, v: sddmm.sparse_attention(pattern, q, k, v))
    run()  # which prepares the forward and the backward for this pattern
    return run


def public_call(case: Case) -> Run:
    # Earlier copies held the same indices, maybe at this address: nothing of theirs may answer.
    sddmm.clear_cache()
    pattern = case.pattern
    values = torch.ones(case.nnz, dtype=case.q.dtype, device=case.device)
    S = torch.sparse_csr_tensor(
        pattern.major_indices, pattern.col_indices, values, pattern.shape, check_invariants=False
    )
    return new_run(case, lambda q, k, v: sddmm.sparse_attention(S, q, k, v))
