"""Verification: a method is timed only if its results are right.

An objective says what is called and how each result is checked; the bench calls, checks and writes
the verdict into the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """checked values were compared, `wrong` of them were wrong, and the largest error was `error`.

    reason: what a record says of a wrong result, if not how many values are outside the bound.
    """

    checked: int
    wrong: int
    error: float | None
    reason: str = ""


@dataclass(frozen=True)
class Trial:
    """A call to verify: call() returns a result, and check(result) judges it."""

    call: Callable[[], Any]
    check: Callable[[Any], Verdict]


def decisive(verdicts: Sequence[Verdict]) -> Verdict:
    """The first verdict that found something wrong, else the last."""
    return next((verdict for verdict in verdicts if verdict.wrong), verdicts[-1])
