"""Gathers both rows of every nonzero and contracts them with numpy.einsum, chunk by chunk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case

# Elements of a gathered chunk: small enough to be contracted from cache.
_CHUNK_ELEMENTS = 2**18


def refuses(case: Case) -> str | None:
    if case.device != "cpu":
        return "numpy computes on the CPU"
    if case.heads > 1:
        return "it computes one head"
    if case.a.dtype not in (torch.float32, torch.float64):
        return f"numpy has no fast {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    data = case.numpy
    chunk = max(1, _CHUNK_ELEMENTS // case.k)

    def run() -> Tensor:
        values = torch.empty(case.nnz, dtype=case.a.dtype)
        out = values.numpy()
        for begin in range(0, case.nnz, chunk):
            part = slice(begin, begin + chunk)
            left, right = data.a[data.rows[part]], data.b_t[data.cols[part]]
            np.einsum("ik,ik->i", left, right, out=out[part])
        return values

    return run
