"""Computes the whole product with torch.mm, then takes its nonzeros: what a user writes first.

Its values are of the operands' dtype: torch.mm rounds half types to half. Heads are one torch.bmm.
"""

from __future__ import annotations

import torch

from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run
from experiments.sddmm.case import Case


def refuses(case: Case) -> str | None:
    needed = case.m * case.n * case.a.dtype.itemsize * case.heads
    return refuse_bytes(case.device, "the dense product takes", needed)


def prepare(case: Case) -> Run:
    crow, cols = case.pattern.major_indices, case.pattern.col_indices
    rows = torch.arange(case.m, device=case.device)
    flat = rows.repeat_interleave(crow.diff(), output_size=case.nnz) * case.n + cols
    if case.heads == 1:
        return lambda: torch.mm(case.a, case.b).take(flat)
    return lambda: torch.bmm(case.a, case.b).flatten(1).index_select(1, flat)
