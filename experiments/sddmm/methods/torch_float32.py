"""Calls torch.sparse.sampled_addmm on half operands that were float32 from the beginning.

It is method `torch_csr` without the conversion, which that one pays in its first call.
"""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.sddmm.case import Case
from experiments.sddmm.gpu_kernel import as_float32
from experiments.sddmm.sampled_addmm import csr_of_zeros, sampled_addmm


def refuses(case: Case) -> str | None:
    if case.a.dtype.itemsize != 2:
        return f"the operands are {case.dtype}: this is method torch_csr"
    if not case.device.startswith("cuda"):
        return f"torch.sparse.sampled_addmm has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    return sampled_addmm(csr_of_zeros(case), as_float32(case.a), as_float32(case.b.mT).mT)


public_call = prepare
