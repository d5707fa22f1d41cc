"""Attention from this package's parts: sddmm, softmax and spmm, which pass on (h, nnz) arrays.

Scores and weights are float32 until spmm, which takes weights of the dtype of v.
"""

from __future__ import annotations

import torch
from torch import Tensor

import sddmm
from experiments.attention.case import Case, new_run
from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run
from experiments.sddmm.unseen import new_pattern

IS_PEER = True

# Arrays of (h, nnz) float32 that are alive at once: scores, weights, and what gradients add.
_ARRAYS, _ARRAYS_OF_STEP = 3, 7


def refuses(case: Case) -> str | None:
    arrays = _ARRAYS_OF_STEP if case.backward else _ARRAYS
    return refuse_bytes(
        case.device, "the scores and weights take", arrays * 4 * case.nnz * case.heads
    )


def prepare(case: Case) -> Run:
    pattern = new_pattern(case)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype = torch.promote_types(q.dtype, torch.float32)
        scores = sddmm.sddmm(pattern, q, k.mT, alpha=case.scale, out_dtype=dtype)
        weights = sddmm.softmax(pattern, scores)
        out: Tensor = sddmm.spmm(pattern, v, values=weights.to(v.dtype))
        return out

    run = new_run(case, attend)
    run()  # which prepares every part for this pattern
    return run
