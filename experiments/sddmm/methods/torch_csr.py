"""Calls torch.sparse.sampled_addmm on a CSR tensor, which runs cuSPARSE on a GPU.

It has no half types: on a GPU it is given them as float32, converted in its preparation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case
from experiments.sddmm.gpu_kernel import as_float32


def refuses(case: Case) -> str | None:
    if case.a.dtype.itemsize == 2 and not case.device.startswith("cuda"):
        return f"torch.sparse.sampled_addmm has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    sampled = _csr_of_zeros(case)
    a, b = _operands(case)
    return lambda: torch.sparse.sampled_addmm(sampled, a, b, beta=0.0).values()


def public_call(case: Case) -> Run:
    sampled = _csr_of_zeros(case)

    def run() -> Tensor:
        return torch.sparse.sampled_addmm(sampled, *_operands(case), beta=0.0).values()

    return run


def _operands(case: Case) -> tuple[Tensor, Tensor]:
    return as_float32(case.a), as_float32(case.b.mT).mT


def _csr_of_zeros(case: Case) -> Tensor:
    dtype = torch.promote_types(case.a.dtype, torch.float32)
    return torch.sparse_csr_tensor(
        case.pattern.major_indices,
        case.pattern.col_indices,
        torch.zeros(case.nnz, dtype=dtype, device=case.device),
        case.pattern.shape,
        check_invariants=False,
    )
