"""The time of a call that overlap allows: from one process's time and the messages' prediction.

C is one process's time over p, M the predicted time of the messages alone. By panels, each of p
steps computes C / p while M / (p - 1) travels, but for the last; by slices, the first slice comes
before anything is computed but what `sddmm/distributed/early.py` finds, and the last is computed
when nothing travels any more. A single call on GPUs has to be launched first; of calls back to back
the host has launched one while the GPU computes the one before.
"""

from __future__ import annotations

import statistics

import torch

from experiments.distributed.record import Record
from sddmm.distributed.early import most_early
from sddmm.distributed.slices import slices_of

# When the first kernel of a call begins, and when its first rows set off, by the timelines of
# single calls on hosts of four H200: 0.2 to 0.5 ms, and 0.7 to 1.0.
_BEGIN_MS, _SEND_MS = 0.3, 0.8


def expected_ms(record: Record, is_back_to_back: bool = False) -> float | None:
    """The predicted time of a record's call; None where one process could not be timed."""
    one = record.one_back_to_back_ms if is_back_to_back else record.one_ms
    if not one or record.predicted_messages_ms is None:
        return None
    compute, messages = statistics.median(one) / record.ranks, record.predicted_messages_ms
    is_launched = is_back_to_back or record.engine.get("name") != "NCCL"
    begin, send = (0.0, 0.0) if is_launched else (_BEGIN_MS, _SEND_MS)
    if record.method == "training":  # each of its products is computed while the other's travel
        return max(begin + compute, send + messages)
    slices, panels = _slices(record), max(record.ranks // record.replicas, 1)
    if slices == 1:
        early = compute * _early_share(record)
        return max(begin + early, send + messages) + compute - early
    if slices:
        step = max(compute, messages) / slices
        return send + messages / slices + (slices - 1) * step + compute / slices
    if panels == 1:
        return begin + compute + messages
    step, message = compute / panels, messages / (panels - 1)
    first = max(begin + step, send + message)
    return first + (panels - 2) * max(step, message) + step


def expected_efficiency(record: Record, is_back_to_back: bool = False) -> float | None:
    ms = expected_ms(record, is_back_to_back)
    if ms is None:
        return None
    one = record.one_back_to_back_ms if is_back_to_back else record.one_ms
    return statistics.median(one) / ms / record.ranks


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
