"""torch.sparse.sampled_addmm on a CSR tensor: what PyTorch offers (cuSPARSE on a GPU).

It has no half types: on a GPU it is given them as float32, converted in its preparation.
"""

from __future__ import annotations

import torch

from experiments.case import Case
from experiments.gpu_kernel import as_float32
from experiments.methods import Run


def refuses(case: Case) -> str | None:
    if case.a.dtype.itemsize == 2 and not case.device.startswith("cuda"):
        return f"torch.sparse.sampled_addmm has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    a, b = as_float32(case.a), as_float32(case.b.mT).mT
    zeros = torch.zeros(case.nnz, dtype=a.dtype, device=case.device)
    sampled = torch.sparse_csr_tensor(
        case.pattern.major_indices,
        case.pattern.col_indices,
        zeros,
        case.pattern.shape,
        check_invariants=False,
    )
    return lambda: torch.sparse.sampled_addmm(sampled, a, b, beta=0.0).values()
