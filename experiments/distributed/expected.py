"""The time of a call that overlap allows: from one process's time and the messages' prediction.

C is one process's time over p, M the predicted time of the messages alone. By panels, each of p
steps computes C / p while M / (p - 1) travels, but for the last; by slices, the first slice comes
before anything is computed, and the last is computed when nothing travels any more.
"""

from __future__ import annotations

import torch

from experiments.distributed.record import Record
from sddmm.distributed.slices import slices_of


def expected_ms(record: Record) -> float | None:
    """The predicted time of a record's call; None where one process could not be timed."""
    if record.one_median_ms is None or record.predicted_messages_ms is None:
        return None
    compute, messages = record.one_median_ms / record.ranks, record.predicted_messages_ms
    steps = _slices(record)
    if steps:
        step = max(compute, messages) / steps
        return messages / steps + (steps - 1) * step + compute / steps
    panels = max(record.ranks // record.replicas, 1)
    if panels == 1:
        return compute + messages
    return compute / panels + (panels - 1) * max(compute / panels, messages / (panels - 1))


def expected_efficiency(record: Record) -> float | None:
    ms = expected_ms(record)
    if ms is None or record.one_median_ms is None:
        return None
    return record.one_median_ms / ms / record.ranks


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
