"""Records as rows of a table, and tables as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence

from experiments.bench.record import Record
from experiments.sddmm.methods import BASELINE

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
NOT_INTERLEAVED = (
    "run: rows of one case with different letters were measured at different times, not "
    "interleaved; a is the oldest"
)
_LEFT = ("matrix", "run", "device", "dtype", "method", "variant", "status", "reason")


def speedups(records: Iterable[Record]) -> dict[str, float]:
    """Median time of the baseline over that of each record, by key, within a case.

    The baseline of the record's own session counts, where there is one.
    """
    records = list(records)
    timed = [r for r in records if r.method == BASELINE and r.median_ms]
    of_any_session = {r.case: r.median_ms for r in timed}
    of_session = {(r.session, *r.case): r.median_ms for r in timed}
    found = {}
    for r in records:
        baseline = of_session.get((r.session, *r.case)) or of_any_session.get(r.case)
        if r.median_ms and baseline:
            found[r.key] = baseline / r.median_ms
    return found


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


def shown_names(records: Iterable[Record]) -> dict[tuple[object, ...], str]:
    """The name of each case's matrix; where rows would look alike, with what tells them apart."""
    records = list(records)
    alike: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for r in records:
        known = alike.setdefault(_look(r), [])
        if (own := _details(r)) not in known:
            known.append(own)
    return {r.case: _cell(r.matrix + _difference(_details(r), alike[_look(r)])) for r in records}


def _cell(name: str) -> str:
    """A name, of a file perhaps, that leaves its row and its column whole."""
    return " ".join(name.split()).replace("|", "\\|")


def _look(r: Record) -> tuple[object, ...]:
    return (r.place, r.matrix, r.nnz, r.k, r.dtype)


def _details(r: Record) -> dict[str, object]:
    """What makes a case and has no column; a path says nothing of a file's content."""
    details = {f"matrix.{name}": value for name, value in r.definition.items() if name != "path"}
    return {**details, "seed": r.seed}


def _difference(own: dict[str, object], alike: list[dict[str, object]]) -> str:
    names = [name for name in own if any(other.get(name) != own[name] for other in alike)]
    told = ", ".join(f"{name}={str(own[name])[:8]}" for name in names)
    return f" ({told})" if told else ""


def rows(records: Sequence[Record], cached: Collection[str] = ()) -> list[dict[str, str]]:
    """One row per record, every cell as text. cached: the keys of those shown as such."""
    speedup, run, name = speedups(records), runs(records), shown_names(records)
    return [
        {
            "matrix": name[r.case],
            "nnz": f"{r.nnz:,}",
            "sparsity": f"{r.sparsity * 100:.4f}".rstrip("0").rstrip(".") + "%",
            "K": str(r.k),
            "dtype": r.dtype,
            "method": r.method,
            "status": "cached" if r.key in cached and r.status == "ok" else r.status,
            "prepare ms": _figure(r.prepare_ms),
            "first call ms": _figure(r.median_first_call_ms),
            "time ms": _figure(r.median_ms),
            "p20-p80": _span(r),
            "GFLOP/s": _figure(r.gflops),
            f"vs {BASELINE}": f"{speedup[r.key]:.2f}x" if r.key in speedup else "",
            "error": "" if r.error is None else f"{r.error:.1e}",
            **({"run": run.get(r.key, "")} if run else {}),
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
    """Why rows have no time, a line for each method and reason, and which were not interleaved."""
    records = list(records)
    told = dict.fromkeys(f"{r.method}: {r.status}: {r.reason}" for r in records if r.reason)
    return [*told, *([NOT_INTERLEAVED] if runs(records) else [])]


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
            "threads": r.environment.get("threads", ""),
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
            "date": r.date,
            "commit": r.environment.get("commit", ""),
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
