"""Turns records into rows of a table, and tables into text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from experiments.bench.record import NOISY, Record

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

NOISE = f"~: the p80 of the samples is more than {NOISY:g} times their p20"
NOT_INTERLEAVED = (
    "run: rows of one case with different letters were measured at different times, not "
    "interleaved; a is the oldest"
)
# The columns that say what a row is about, from left to right.
KEYS = (
    *("device", "class", "matrix", "shape", "nnz", "sparsity", "K", "d", "dtype", "heads"),
    *("scaled", "transpose", "sums", "B rows", "method", "variant"),
)
_LEFT = (
    *("matrix", "shape", "run", "device", "dtype", "method", "variant", "status", "reason"),
    *("class", "chosen", "best of ours", "best peer", "first peer", "way", "other"),
    *("folder", "commit", "day", "variable", "default", "valid", "meaning", "read"),
)


def speedups(records: Iterable[Record], baseline: str) -> dict[str, float]:
    """Median time of the baseline over that of each record, by key, within a case.

    The baseline of the record's own session counts, where there is one.
    """
    records = list(records)
    timed = [r for r in records if r.name == baseline and r.median_ms]
    of_any_session = {r.case: r.median_ms for r in timed}
    of_session = {(r.session, *r.case): r.median_ms for r in timed}
    ratios = {}
    for r in records:
        baseline_ms = of_session.get((r.session, *r.case)) or of_any_session.get(r.case)
        if r.median_ms and baseline_ms:
            ratios[r.key] = baseline_ms / r.median_ms
    return ratios


def runs(records: Iterable[Record]) -> dict[str, str]:
    """A letter for each record, by key, of a case that was measured in several sessions.

    Rows with one letter were interleaved; "a" is the oldest session.
    """
    sessions: dict[tuple[object, ...], dict[str, str]] = {}
    timed = [r for r in records if r.median_ms is not None]
    for r in timed:
        sessions.setdefault(r.case, {})[r.session] = r.date
    letters = {}
    for r in timed:
        own = sessions[r.case]
        if len(own) > 1:
            letters[r.key] = _letter(sorted(own, key=lambda name: own[name]).index(r.session))
    return letters


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else str(index + 1)


def rows(
    objective: AnyObjective, records: Sequence[Record], cached: Collection[str] = ()
) -> list[dict[str, str]]:
    """One row per record, every cell as text. cached: the keys of those shown as such."""
    labels, run = objective.labels(records), runs(records)
    speedup = speedups(records, objective.baseline)
    return [
        {
            **labels[r.case],
            "method": r.name,
            "status": "cached" if r.key in cached and r.status == "ok" else r.status,
            "prepare ms": figure(r.prepare_ms),
            "first call ms": figure(r.median_first_call_ms),
            "time ms": figure(r.median_ms),
            "p20-p80": _span(r),
            **objective.figures(r),
            f"vs {objective.baseline}": f"{speedup[r.key]:.2f}x" if r.key in speedup else "",
            "error": "" if r.error is None else f"{r.error:.1e}",
            **({"run": run.get(r.key, "")} if run else {}),
        }
        for r in records
    ]


def short_rows(objective: AnyObjective, records: Sequence[Record]) -> list[dict[str, str]]:
    """One row per record with what a person reads; the CSV has every column.

    A row without a time has its status instead, and a noisy one a mark.
    """
    labels, run = short_labels(objective, records), runs(records)
    speedup = speedups(records, objective.baseline)
    return [
        {
            **labels[r.case],
            "method": r.name,
            "time ms": (figure(r.median_ms) or r.status) + (" ~" if r.is_noisy else ""),
            f"vs {objective.baseline}": f"{speedup[r.key]:.2f}x" if r.key in speedup else "",
            "first call ms": figure(r.median_first_call_ms),
            "prepare ms": figure(r.prepare_ms),
            **({"run": run.get(r.key, "")} if run else {}),
        }
        for r in records
    ]


def short_labels(
    objective: AnyObjective, records: Sequence[Record]
) -> dict[tuple[object, ...], dict[str, str]]:
    """The labels of each case without the columns that follow from the others."""
    return {
        case: {name: cell for name, cell in cells.items() if name not in objective.implied}
        for case, cells in objective.labels(records).items()
    }


def as_text(table: Sequence[dict[str, str]]) -> str:
    """Aligned columns that are a Markdown table as well."""
    if not table:
        return "(no records)"
    # A name, of a file perhaps, leaves its row and its column whole.
    table = [{c: " ".join(row[c].split()).replace("|", "\\|") for c in row} for row in table]
    columns = list(table[0])
    widths = {c: max(len(c), *(len(row[c]) for row in table)) for c in columns}

    def line(cells: dict[str, str]) -> str:
        return "| " + " | ".join(
            cells[c].ljust(widths[c]) if c in _LEFT else cells[c].rjust(widths[c]) for c in columns
        ) + " |"  # fmt: skip

    rule = ["-" * (widths[c] + 2) if c in _LEFT else "-" * (widths[c] + 1) + ":" for c in columns]
    head = line({c: c for c in columns})
    return "\n".join([head, "|" + "|".join(rule) + "|", *(line(row) for row in table)])


def notes(records: Iterable[Record]) -> list[str]:
    """The reasons of rows without a time, a line each; then which rows were not interleaved."""
    records = list(records)
    reasons = dict.fromkeys(f"{r.name}: {r.status}: {r.reason}" for r in records if r.reason)
    return [*reasons, *([NOT_INTERLEAVED] if runs(records) else [])]


def csv_lines(objective: AnyObjective, records: Sequence[Record]) -> list[dict[str, object]]:
    """A line per record with every figure at full precision, times in ms."""
    speedup = speedups(records, objective.baseline)
    return [
        {
            **objective.csv_case(r),
            "device": r.environment.get("device", ""),
            "threads": r.environment.get("threads", ""),
            "method": r.name,
            "status": r.status,
            "reason": r.reason,
            "prepare_ms": r.prepare_ms,
            "first_call_ms": r.median_first_call_ms,
            "median_ms": r.median_ms,
            "p20_ms": r.percentile_ms(20),
            "p80_ms": r.percentile_ms(80),
            "samples": len(r.samples_ms),
            **objective.csv_figures(r),
            f"speedup_over_{objective.baseline}": speedup.get(r.key),
            "error": r.error,
            "checked": r.checked,
            "session": r.session,
            "date": r.date,
            "commit": r.environment.get("commit", ""),
        }
        for r in records
    ]


def csv_text(lines: Sequence[dict[str, object]]) -> str:
    """Lines of equal keys as CSV with a header; nothing for none."""
    out = io.StringIO()
    if lines:
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return out.getvalue()


def figure(value: float | None) -> str:
    """A number with three significant digits and without an exponent."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def _span(r: Record) -> str:
    low, high = r.percentile_ms(20), r.percentile_ms(80)
    return "" if low is None else f"{figure(low)}-{figure(high)}"
