"""Cells and lines that the reports of studies share."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence

from experiments.bench import report
from experiments.sddmm.record import Record

# A number of so many digits is a size.
_SIZE = re.compile(r"\d{6,}")

Best = tuple[str, float]
"""The name of the fastest, and its time in us."""


def places(records: Sequence[Record]) -> str:
    """The devices and, a line each, the environments of the records."""
    devices = ", ".join(dict.fromkeys(record.place_name for record in records))
    return "\n".join([f"## {devices}", "", *report.provenance(records)])


def not_served(records: Sequence[Record]) -> str:
    """Why methods have no time, with the number of problems of each reason.

    Sizes, which differ from problem to problem, are left out.
    """
    reasons: dict[str, int] = {}
    for r in records:
        if r.status != "ok":
            text = f"{r.method}: {r.status}: {_SIZE.sub('...', r.reason)}"
            reasons[text] = reasons.get(text, 0) + 1
    return "".join(f"* {text} ({count})\n" for text, count in sorted(reasons.items()))


def problem_name(r: Record, size: str = "K") -> str:
    """The matrix, K, dtype and heads of a record's case. size: what its objective calls K."""
    heads = f", {r.heads} heads" if r.heads > 1 else ""
    return f"{r.matrix} {size}={r.k} {r.dtype}{heads}"


def best_cell(best: Best | None) -> str:
    return f"{best[0]} {time_cell(best[1])}" if best else ""


def least(times: Iterable[tuple[str, float | None]]) -> Best | None:
    measured = [(name, us) for name, us in times if us is not None]
    return min(measured, key=lambda pair: pair[1]) if measured else None


def microseconds(ms: float | None) -> float | None:
    return None if ms is None else 1e3 * ms


def ratio(us: float | None, other_us: float | None) -> float | None:
    """One time over another; None unless both were measured."""
    return us / other_us if us and other_us else None


def present(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def time_cell(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def ratio_cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def mean_cell(values: Iterable[float | None]) -> str:
    """The geometric mean of those that are not None."""
    measured = present(values)
    return f"{math.exp(statistics.fmean(map(math.log, measured))):.3f}" if measured else ""


def megabytes_cell(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"
