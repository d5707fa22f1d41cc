"""Computes a dense block of rows of the product at a time with numpy, then takes its nonzeros."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case

# Elements of a dense block: 64 MB in float32.
_BLOCK_ELEMENTS = 2**24


def refuses(case: Case) -> str | None:
    if case.device != "cpu":
        return "numpy computes on the CPU"
    if case.heads > 1:
        return "it computes one head"
    if case.a.dtype not in (torch.float32, torch.float64):
        return f"BLAS has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    data = case.numpy
    block = max(1, _BLOCK_ELEMENTS // case.n)

    def run() -> Tensor:
        values = torch.empty(case.nnz, dtype=case.a.dtype)
        out = values.numpy()
        for begin in range(0, case.m, block):
            end = min(begin + block, case.m)
            part = slice(data.crow[begin], data.crow[end])
            if part.start < part.stop:
                product = data.a[begin:end] @ data.b_t.T
                out[part] = product[data.rows[part] - begin, data.cols[part]]
        return values

    return run
