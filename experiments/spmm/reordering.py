"""Puts the weights of a call in the order of the transpose, by an operation of torch.

In training the weights change in every step, and a library that reads the CSR of the transpose
needs them in its order anew. Both operations write to a buffer that is allocated once, so that a
CUDA graph captures them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.spmm.case import Case

INDEX_SELECT, TAKE = "index_select", "take"
OPERATIONS = (INDEX_SELECT, TAKE)


class Reordering:
    """The weights of a case in the order of its view: a call writes them to `ordered`.

    The view of the case has a permutation.
    """

    def __init__(self, case: Case, operation: str) -> None:
        self.ordered = torch.empty_like(case.weights)
        fill = {INDEX_SELECT: _index_select, TAKE: _take}[operation]
        self._fill = fill(case, self.ordered)

    def __call__(self) -> Tensor:
        self._fill()
        return self.ordered


def _index_select(case: Case, ordered: Tensor) -> Run:
    positions = _positions(case)
    if case.nnz < 2**31:
        positions = positions.to(torch.int32)
    return lambda: torch.index_select(case.weights, -1, positions, out=ordered)


def _take(case: Case, ordered: Tensor) -> Run:
    """Head by head, as `take` numbers all elements of its input; its positions are int64."""
    positions, heads = _positions(case).long(), case.heads_of(case.weights, ordered)

    def run() -> None:
        for own, target in heads:
            torch.take(own, positions, out=target)

    return run


def _positions(case: Case) -> Tensor:
    perm = case.view.perm
    assert perm is not None
    return perm
