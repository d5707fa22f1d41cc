"""Calls torch.sparse.sampled_addmm on a CSR tensor, which runs cuSPARSE on a GPU.

It has no half types: on a GPU it is given them as float32, converted in its preparation. Heads are
calls one after another, whose values are stacked.
"""

from __future__ import annotations

from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case
from experiments.sddmm.gpu_kernel import as_float32
from experiments.sddmm.sampled_addmm import csr_of_zeros, sampled_addmm


def refuses(case: Case) -> str | None:
    if case.a.dtype.itemsize == 2 and not case.device.startswith("cuda"):
        return f"torch.sparse.sampled_addmm has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    return sampled_addmm(csr_of_zeros(case), *_operands(case))


def public_call(case: Case) -> Run:
    S = csr_of_zeros(case)
    return lambda: sampled_addmm(S, *_operands(case))()


def _operands(case: Case) -> tuple[Tensor, Tensor]:
    return as_float32(case.a), as_float32(case.b.mT).mT
