"""Small cases of attention, and their results by dense matrices in float64."""

from __future__ import annotations

from typing import Any

import torch

from experiments.attention.case import Case, Step, make_case
from experiments.bench.sources import (
    Causal,
    DilatedWindow,
    PackedCausal,
    RandomBlocks,
    SlidingWindow,
    Source,
    Uniform,
)
from experiments.sddmm.config import Config

GRAPH = Uniform(rows=30, cols=40, nnz=300)
SQUARE = Uniform(rows=40, cols=40, nnz=300)
MASKS: dict[str, Source] = {
    "window": SlidingWindow(length=300, window=20, global_tokens=5),
    "dilated": DilatedWindow(length=300, window=10, dilation=3),
    "causal": Causal(rows=300, cols=300),
    "packed": PackedCausal(length=300, sequences=4),
    "blocks": RandomBlocks(rows=400, cols=400, block=128, density=0.3),
    "small blocks": RandomBlocks(rows=300, cols=300, block=64, density=0.3),
}


def case_of(source: Source = SQUARE, dtype: str = "float32", **all_: Any) -> Case:
    settings: dict[str, Any] = {"objective": "attention", "k": 16, "device": "cpu", **all_}
    return make_case("test", Config(matrix=source, dtype=dtype, **settings))


def definition(case: Case) -> Step:
    """Attention by dense matrices, and its gradients by autograd."""
    q, k, v = leaves = [x.double().detach().requires_grad_() for x in case.inputs]
    is_stored = torch.zeros(case.m, case.n, dtype=torch.bool, device=q.device)
    is_stored[case.pattern.row_ids.long(), case.pattern.col_indices.long()] = True
    scores = (q @ k.mT * case.scale).masked_fill(~is_stored, -torch.inf)
    out = scores.softmax(-1).masked_fill(~is_stored.any(-1, keepdim=True), 0.0) @ v
    if not case.backward:
        return Step(out.detach())
    return Step(out.detach(), *torch.autograd.grad(out, leaves, case.grad.double()))


def rounded(step: Step, dtype: torch.dtype) -> Step:
    return Step(*(None if x is None else x.to(dtype) for x in step))
