"""The record of one operation on one matrix by several ranks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from experiments.sddmm import record

CALLS = 5
"""How many calls follow each other where they are timed back to back."""


@dataclass(kw_only=True)
class Record(record.Record):
    """A record of an operation, which is its method: sddmm, spmm, training or attention.

    samples_ms: the slowest rank's time of each call. ranks_ms: every rank's, by rank. one_ms: those
    of one process on the whole matrix, in turns with the others; empty where that failed, for which
    one_reason says why. back_to_back_ms, one_back_to_back_ms: of several sequences, the mean of
    CALLS that follow each other, where no host waits for its GPU in between. ranks, replicas, way:
    how the matrix is divided and its rows travel.
    rank_nnz, received_bytes, formula_bytes: by rank; the second are counted in one call, the third
    follow from the cuts. written_bytes: by rank, those that it wrote into others' memory, where the
    rest are messages. engine: what carries the messages. messages_ms: the messages of a call
    alone, the slowest rank's. predicted_messages_ms: the same by the formulas. spans: by rank, one
    call as [kind, label, begin us, end us], where kind is compute, wait, or, on GPUs, transfer.
    """

    ranks: int = 1
    replicas: int = 1
    way: str = ""
    rank_nnz: list[int] = field(default_factory=list)
    ranks_ms: list[Any] = field(default_factory=list)
    one_ms: list[float] = field(default_factory=list)
    one_reason: str = ""
    back_to_back_ms: list[float] = field(default_factory=list)
    one_back_to_back_ms: list[float] = field(default_factory=list)
    received_bytes: list[int] = field(default_factory=list)
    formula_bytes: list[int] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)
    messages_ms: float | None = None
    predicted_messages_ms: float | None = None
    spans: list[Any] = field(default_factory=list)

    @property
    def case(self) -> tuple[object, ...]:
        return (*super().case, self.ranks, self.replicas, self.way)

    @property
    def one_median_ms(self) -> float | None:
        return statistics.median(self.one_ms) if self.one_ms else None

    @property
    def speedup(self) -> float | None:
        """The time of one process over that of the ranks."""
        if self.one_median_ms is None or self.median_ms is None:
            return None
        return self.one_median_ms / self.median_ms

    @property
    def efficiency(self) -> float | None:
        """The speed-up over the number of ranks."""
        return None if self.speedup is None else self.speedup / self.ranks

    @property
    def back_to_back_median_ms(self) -> float | None:
        return statistics.median(self.back_to_back_ms) if self.back_to_back_ms else None

    @property
    def back_to_back_speedup(self) -> float | None:
        """The time of one process over that of the ranks, of calls that follow each other."""
        if self.back_to_back_median_ms is None or not self.one_back_to_back_ms:
            return None
        return statistics.median(self.one_back_to_back_ms) / self.back_to_back_median_ms

    @property
    def back_to_back_efficiency(self) -> float | None:
        speedup = self.back_to_back_speedup
        return None if speedup is None else speedup / self.ranks

    @property
    def waited_ms(self) -> float | None:
        """The longest that a rank of the recorded call waited for messages."""
        if not self.spans:
            return None
        return max(
            sum(end - begin for kind, _, begin, end in spans if kind == "wait") / 1e3
            for spans in self.spans
        )

    @property
    def hidden(self) -> float | None:
        """The part of the messages' time, between 0 and 1, in which ranks did not wait for them."""
        if not self.messages_ms or self.waited_ms is None:
            return None
        return max(0.0, 1 - self.waited_ms / self.messages_ms)
