"""Calls torch's product of a CSR tensor and a dense one, which runs cuSPARSE on a GPU.

Heads are calls one after another, whose results are stacked. The transpose is a CSR tensor that is
made in its preparation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.spmm.case import Case

PARTIAL_SUMS_ROUND = True


def refuses(case: Case) -> str | None:
    if case.dense.dtype.itemsize == 2 and not case.device.startswith("cuda"):
        return f"torch's CSR product on a CPU has no {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    return run_of(case, heads_of(case))


def run_of(case: Case, heads: Sequence[tuple[Tensor, Tensor]]) -> Run:
    """The products of a sparse tensor and X, head by head, as torch computes them."""

    def run() -> Tensor:
        products = [W @ dense for W, dense in heads]
        return products[0] if case.dense.dim() == 2 else torch.stack(products)

    return run


def heads_of(case: Case) -> list[tuple[Tensor, Tensor]]:
    """The CSR tensor that multiplies X, and X, head by head."""
    view, size = case.view, (case.out_shape[-2], case.dense.shape[-2])
    return [
        (_csr(view.indptr, view.indices, own, size), dense)
        for own, dense in case.heads_of(case.weights_by_view, case.dense)
    ]


def _csr(indptr: Tensor, indices: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(
        indptr, indices.to(indptr.dtype), weights, size, check_invariants=False
    )
