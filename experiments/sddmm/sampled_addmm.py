"""torch.sparse.sampled_addmm on a case, for the methods that call it."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case


def sampled_addmm(S: Tensor, a: Tensor, b: Tensor) -> Run:
    """A call with these operands; heads are calls one after another, whose values are stacked."""

    def run() -> Tensor:
        if a.dim() == 2:
            return _values(S, a, b)
        return torch.stack([_values(S, *head) for head in zip(a, b, strict=True)])

    return run


def _values(S: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.sparse.sampled_addmm(S, a, b, beta=0.0).values()


def csr_of_zeros(case: Case) -> Tensor:
    """The pattern as torch's CSR tensor of float32 or float64."""
    dtype = torch.promote_types(case.a.dtype, torch.float32)
    return torch.sparse_csr_tensor(
        case.pattern.major_indices,
        case.pattern.col_indices,
        torch.zeros(case.nnz, dtype=dtype, device=case.device),
        case.pattern.shape,
        check_invariants=False,
    )
