"""Records as rows of a table, and tables as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from experiments.methods import BASELINE
from experiments.record import Record

COLUMNS = (
    "matrix",
    "nnz",
    "sparsity",
    "K",
    "dtype",
    "method",
    "status",
    "prepare ms",
    "first call ms",
    "time ms",
    "p20-p80",
    "GFLOP/s",
    f"vs {BASELINE}",
    "error",
)
_LEFT = ("matrix", "dtype", "method", "variant", "status", "reason")


def speedups(records: Iterable[Record]) -> dict[str, float]:
    """Median time of the baseline over that of each record, by key, within a session's case."""
    records = list(records)
    baseline = {case_of(r): r.median_ms for r in records if r.method == BASELINE and r.median_ms}
    return {
        r.key: baseline[case_of(r)] / r.median_ms
        for r in records
        if r.median_ms and case_of(r) in baseline
    }


def rows(records: Sequence[Record], cached: bool = False) -> list[dict[str, str]]:
    """One row per record, every cell as text. cached: show "cached" in place of "ok"."""
    speedup = speedups(records)
    return [
        {
            "matrix": r.matrix,
            "nnz": f"{r.nnz:,}",
            "sparsity": f"{r.sparsity * 100:.4f}".rstrip("0").rstrip(".") + "%",
            "K": str(r.k),
            "dtype": r.dtype,
            "method": r.method,
            "status": "cached" if cached and r.status == "ok" else r.status,
            "prepare ms": _figure(r.prepare_ms),
            "first call ms": _figure(r.median_first_call_ms),
            "time ms": _figure(r.median_ms),
            "p20-p80": _span(r),
            "GFLOP/s": _figure(r.gflops),
            f"vs {BASELINE}": f"{speedup[r.key]:.2f}x" if r.key in speedup else "",
            "error": "" if r.error is None else f"{r.error:.1e}",
        }
        for r in records
    ]


def as_text(table: Sequence[dict[str, str]]) -> str:
    """Aligned columns that are a Markdown table as well."""
    if not table:
        return "(no records)"
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
    """Why rows have no time: one line for each method and reason."""
    told = dict.fromkeys(f"{r.method}: {r.status}: {r.reason}" for r in records if r.reason)
    return list(told)


def as_csv(records: Sequence[Record]) -> str:
    """Every figure at full precision, times in ms."""
    speedup = speedups(records)
    lines = [
        {
            "matrix": r.matrix,
            "m": r.m,
            "n": r.n,
            "nnz": r.nnz,
            "sparsity": r.sparsity,
            "k": r.k,
            "dtype": r.dtype,
            "seed": r.seed,
            "device": r.environment.get("device", ""),
            "method": r.method,
            "status": r.status,
            "reason": r.reason,
            "prepare_ms": r.prepare_ms,
            "first_call_ms": r.median_first_call_ms,
            "median_ms": r.median_ms,
            "p20_ms": r.percentile_ms(20),
            "p80_ms": r.percentile_ms(80),
            "samples": len(r.samples_ms),
            "gflops": r.gflops,
            f"speedup_over_{BASELINE}": speedup.get(r.key),
            "error": r.error,
            "checked": r.checked,
            "session": r.session,
        }
        for r in records
    ]
    return csv_text(lines)


def csv_text(lines: Sequence[dict[str, object]]) -> str:
    """Lines of equal keys as CSV with a header; nothing for none."""
    out = io.StringIO()
    if lines:
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return out.getvalue()


def case_of(r: Record) -> tuple[object, ...]:
    """Rows that may be compared: one matrix and problem, measured in one session."""
    return (r.session, r.matrix, r.nnz, r.k, r.dtype, r.seed)


def _figure(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def _span(r: Record) -> str:
    low, high = r.percentile_ms(20), r.percentile_ms(80)
    return "" if low is None else f"{_figure(low)}-{_figure(high)}"
