"""Gathers both rows of every nonzero, multiplies and sums them: what a user writes first.

torch.einsum contracts the same rows as products of 1 x k matrices, which takes several times longer
on a GPU. Autograd adds the gradients with index_add, by atomics on a GPU.
"""

from __future__ import annotations

import torch

from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run
from experiments.training.case import Case, Step

PARTIAL_SUMS_ROUND = True

# Arrays of nnz rows that are alive at once: two gathered, their product, and their gradients.
_ARRAYS = 5


def refuses(case: Case) -> str | None:
    itemsize = case.sampled.a.element_size()
    needed = _ARRAYS * case.nnz * case.k * case.heads * itemsize
    return refuse_bytes(case.device, "the gathered rows take", needed)


def prepare(case: Case) -> Run:
    rows, cols = case.pattern.row_ids, case.pattern.col_indices
    a, b_t = case.leaves()

    def run() -> Step:
        values = (a.index_select(-2, rows) * b_t.index_select(-2, cols)).sum(-1)
        return Step(values.detach(), *torch.autograd.grad(values, (a, b_t), case.grad))

    return run
