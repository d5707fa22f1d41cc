"""Reads what a plan's explanation says: the kernel, and what each is predicted to cost."""

from __future__ import annotations

import re

from experiments.sddmm.record import Record

_CHOSEN = re.compile(r"^\s*kernel\s+(\w+)", re.MULTILINE)
_PREDICTED = re.compile(r"(\w+): ([0-9.e+-]+) us (?:predicted|estimated)")


def chosen_kernel(explanation: str) -> str:
    """The GPU kernel that computes; empty where none does."""
    found = _CHOSEN.search(explanation)
    return found[1] if found else ""


def predictions(explanation: str) -> dict[str, float]:
    """The predicted microseconds of a run by kernel."""
    return {kernel: float(us) for kernel, us in _PREDICTED.findall(explanation)}


def note_choice(record: Record, explanation: str) -> None:
    """Write the chosen kernel and the predictions into the record of ours."""
    record.kernel = chosen_kernel(explanation)
    record.predicted_us = predictions(explanation)
