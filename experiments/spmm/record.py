"""The record of one method on one case of SpMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from experiments.sddmm import record


@dataclass(kw_only=True)
class Record(record.Record):
    """A record of SpMM: k is d, the columns of the dense operand.

    error: the largest error relative to the sum of magnitudes of each entry. variant: how a library
    was called, where there are several ways. column_view_ms: what checking the pattern and grouping
    it by column takes, once; with `ours` of the transpose only.
    """

    retired: ClassVar[frozenset[str]] = record.Record.retired | {"reorder_ms"}

    transpose: bool = False
    variant: str = ""
    column_view_ms: float | None = None

    @property
    def case(self) -> tuple[object, ...]:
        return (*super().case, self.transpose)
