"""The time of a call that overlap allows: from one process's time and the messages' prediction.

C is one process's time over p, M the predicted time of the messages alone, in ms. By panels, each
of p steps computes C / p while M / (p - 1) travels, but for the last; by slices, the first slice
comes before anything is computed but what `sddmm/distributed/early.py` finds, and the last is
computed when nothing travels any more. With replicas nothing is hidden. A single call on GPUs has
to be launched first, and so has the first of several back to back.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

import torch

from experiments.distributed.record import CALLS, Record
from sddmm.distributed.early import most_early
from sddmm.distributed.slices import slices_of


class Overheads(NamedTuple):
    """What overlap costs, in ms. begin_ms, send_ms: when the first kernel of a single call begins,
    and when its first rows set off. slower: the time that kernels lose beside messages, over that
    of the messages. step_ms: that of a step's signals, and of waiting for the slowest rank."""

    begin_ms: float = 0.0
    send_ms: float = 0.0
    slower: float = 0.0
    step_ms: float = 0.0


# Fitted to the calls of docs/results/h200/ranks, by panels and slices without replicas: a
# prediction for other numbers of GPUs, and a description of these.
_ON_GPUS = Overheads(begin_ms=0.3, send_ms=1.0, slower=0.2, step_ms=0.05)


def expected_ms(record: Record, is_back_to_back: bool = False) -> float | None:
    """The predicted time of a record's call; None where one process could not be timed."""
    one_ms, messages = _one_ms(record, is_back_to_back), record.predicted_messages_ms
    if one_ms is None or messages is None:
        return None
    compute = one_ms / record.ranks
    cost = _ON_GPUS if record.engine.get("name") == "NCCL" else Overheads()  # gloo's is a CPU
    if is_back_to_back:
        cost = cost._replace(begin_ms=cost.begin_ms / CALLS, send_ms=cost.send_ms / CALLS)
    if record.replicas > 1:
        return cost.begin_ms + compute + messages
    if record.method == "training":  # each of its products is computed while the other's travel
        beside = cost.begin_ms + compute + cost.slower * messages
        return max(beside, cost.send_ms + messages) + 3 * cost.step_ms  # of three products
    slices = _slices(record)
    if slices == 1:
        early = compute * _early_share(record)
        beside = cost.begin_ms + early + cost.slower * min(early, messages)
        # Two steps: before and after the slice has come.
        return max(beside, cost.send_ms + messages) + compute - early + 2 * cost.step_ms
    if slices:
        step = max(compute + cost.slower * messages, messages) / slices
        first = cost.send_ms + messages / slices
        return first + (slices - 1) * step + compute / slices + slices * cost.step_ms
    panels, panel_ms = record.ranks, compute / record.ranks
    if panels == 1:
        return cost.begin_ms + compute
    message_ms = messages / (panels - 1)
    beside = panel_ms + cost.slower * message_ms
    first = max(cost.begin_ms + beside, cost.send_ms + message_ms)
    return first + (panels - 2) * max(beside, message_ms) + panel_ms + panels * cost.step_ms


def expected_efficiency(record: Record, is_back_to_back: bool = False) -> float | None:
    one_ms, ms = _one_ms(record, is_back_to_back), expected_ms(record, is_back_to_back)
    return None if one_ms is None or ms is None else one_ms / ms / record.ranks


def _one_ms(record: Record, is_back_to_back: bool) -> float | None:
    """One process's time of a call."""
    samples = record.one_back_to_back_ms if is_back_to_back else record.one_ms
    return statistics.median(samples) if samples else None


def _slices(record: Record) -> int:
    """The slices in which the operand travels; 0 for panels."""
    if record.way not in ("slices", "row_slices") or record.method == "sddmm":
        return 0
    if record.heads > 1:
        return record.heads
    if record.method == "attention":
        return 1
    dtype: torch.dtype = getattr(torch, record.dtype)
    return len(slices_of(torch.empty(0, record.k, dtype=dtype)))


def _early_share(record: Record) -> float:
    """The part of a rank's nonzeros that is multiplied while the first slice travels, with the
    nonzeros spread evenly over the columns."""
    if record.method != "spmm" or record.replicas > 1 or not record.received_bytes:
        return 0.0
    item = torch.empty(0, dtype=getattr(torch, record.dtype)).element_size()
    arriving = max(record.received_bytes) // (record.k * item)
    return min(1 / record.ranks, most_early(arriving) * record.ranks / record.nnz)
