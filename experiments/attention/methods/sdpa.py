"""Calls torch's scaled_dot_product_attention on dense scores: causal by its flag, else by a mask.

The mask is -inf where S stores nothing, in q's dtype, made once; torch would convert a boolean one
at every call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.attention.case import Case, batch_of_one, new_run, without_batch
from experiments.bench.memory import refuse_bytes
from experiments.bench.methods import Run

IS_PEER = True

# Masks that are alive at once: a second one is made while its preparation is timed.
_MASKS = 2


def refuses(case: Case) -> str | None:
    if _is_causal(case):
        return None
    if bool((case.pattern.by_row.indptr.diff() == 0).any()):
        return "a row without nonzeros would have no softmax: dense attention masks it out whole"
    # On a CPU the scores of all heads are stored too.
    scores = 0 if case.device.startswith("cuda") else 4 * case.heads
    per_position = _MASKS * case.q.element_size() + scores
    return refuse_bytes(
        case.device, "the dense masks and scores take", per_position * case.m * case.n
    )


def prepare(case: Case) -> Run:
    mask = None if _is_causal(case) else _mask(case)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None
        )

    return new_run(case, attend, batch_of_one, without_batch)


def _is_causal(case: Case) -> bool:
    return case.definition["source"] == "Causal" and case.m == case.n


def _mask(case: Case) -> Tensor:
    mask = torch.full((case.m, case.n), -torch.inf, dtype=case.q.dtype, device=case.device)
    mask[case.pattern.row_ids.long(), case.pattern.col_indices.long()] = 0.0
    return mask
