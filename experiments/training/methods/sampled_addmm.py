"""Calls torch.sparse.sampled_addmm in float32 and its backward; half operands are converted before.

Heads are calls one after another. On large matrices its backward ends the process with SIGFPE: seen
with torch 2.11 at 1,048,576 rows and columns, and not at 740,000. These are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.gpu_kernel import as_float32
from experiments.sddmm.sampled_addmm import csr_of_zeros
from experiments.training.case import Case, Step

# The most entries of a matrix, m * n, that the backward was seen to compute.
_MAX_ENTRIES = 1 << 39


def refuses(case: Case) -> str | None:
    if case.sampled.a.dtype.itemsize == 2 and not case.device.startswith("cuda"):
        return f"torch.sparse.sampled_addmm has no {case.dtype}"
    if case.m * case.n > _MAX_ENTRIES:
        return "its backward ends the process with SIGFPE on so large a matrix"
    return None


def prepare(case: Case) -> Run:
    S = csr_of_zeros(case.sampled)
    a, b_t = (as_float32(x).detach().requires_grad_() for x in case.leaves())
    grads = [_csr_like(S, grad) for grad in as_float32(case.grad).view(case.heads, -1)]

    def run() -> Step:
        heads = zip(_heads(a), _heads(b_t), strict=True)
        products = [torch.sparse.sampled_addmm(S, x, y.mT, beta=0.0) for x, y in heads]
        values = [product.detach().values() for product in products]
        return Step(
            values[0] if a.dim() == 2 else torch.stack(values),
            *torch.autograd.grad(products, (a, b_t), grads),
        )

    return run


def _heads(x: Tensor) -> tuple[Tensor, ...]:
    return (x,) if x.dim() == 2 else x.unbind()


def _csr_like(S: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(
        S.crow_indices(), S.col_indices(), values, S.shape, check_invariants=False
    )
