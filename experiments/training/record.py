"""The record of one method on one training step."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.sddmm import record


@dataclass(kw_only=True)
class Record(record.Record):
    """A record of a training step.

    error: the largest error of the values and the gradients. peak_bytes: the memory on the GPU that
    a step allocates at most, its results included; None for yardsticks and on a CPU.
    """

    peak_bytes: int | None = None
