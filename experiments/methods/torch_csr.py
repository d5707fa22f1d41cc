"""torch.sparse.sampled_addmm on a CSR tensor: what PyTorch offers (cuSPARSE on a GPU)."""

from __future__ import annotations

import torch

from experiments.case import Case
from experiments.methods import Run


def refuses(case: Case) -> str | None:
    if case.a.dtype not in (torch.float32, torch.float64):
        return f"torch.sparse.sampled_addmm has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    zeros = torch.zeros(case.nnz, dtype=case.a.dtype, device=case.device)
    sampled = torch.sparse_csr_tensor(
        case.pattern.major_indices,
        case.pattern.col_indices,
        zeros,
        case.pattern.shape,
        check_invariants=False,
    )
    return lambda: torch.sparse.sampled_addmm(sampled, case.a, case.b, beta=0.0).values()
