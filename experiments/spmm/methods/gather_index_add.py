"""Gathers a row of X for every nonzero, multiplies, and adds with index_add: a user's first way.

index_add adds with atomics on a GPU. Heads are calls one after another, as a gathered row of every
nonzero takes much memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run
from experiments.spmm.case import Case

PARTIAL_SUMS_ROUND = True


def refuses(case: Case) -> str | None:
    needed = 2 * case.nnz * case.k * case.dense.element_size()  # the rows, and their products
    return refuse_bytes(case.device, "the gathered rows take", needed)


def prepare(case: Case) -> Run:
    targets, sources = case.pattern.row_ids, case.pattern.col_indices
    if case.transpose:
        targets, sources = sources, targets

    def run() -> Tensor:
        out = torch.zeros(case.out_shape, dtype=case.dense.dtype, device=case.dense.device)
        for own, dense, target in case.heads_of(case.weights, case.dense, out):
            target.index_add_(0, targets, dense.index_select(0, sources) * own[:, None])
        return out

    return run
