"""Merging records into tables (terminal, Markdown, CSV) and plots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from experiments.bench import compare, table
from experiments.bench.config import ReportConfig
from experiments.bench.record import Record
from experiments.bench.store import load_all
from experiments.sddmm import methods
from experiments.sddmm import published as published_sddmm
from experiments.sddmm.methods import OURS, introduction


class Measured(Protocol):
    """A record that says where it comes from."""

    environment: dict[str, Any]
    date: str


def report(config: ReportConfig) -> None:
    """Write report.md, report.csv and the plots to config.output; print the tables.

    With config.compare, write and print only the table of its two commits.
    """
    records = merge(config.records)
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    if config.compare:
        every = load_all(config.records, Record, "run")
        text = compare.as_markdown(sorted(every, key=_order), config.compare)
        print(text)
        print("written:", write(output / "compare.md", text))
        return
    text = as_markdown(records)
    print(text)
    written = [
        write(output / "report.md", text),
        write(output / "report.csv", table.as_csv(records)),
    ]
    written.append(write(output / "summary.md", as_summary(records)))
    beside_published = published_sddmm.as_markdown(records)
    if beside_published:
        written.append(write(output / "published.md", beside_published))
    if config.plots and can_draw():
        from experiments.bench import plots

        written += plots.draw(records, output)
    print("written:", ", ".join(str(path) for path in written))


def can_draw() -> bool:
    """Whether matplotlib is here; says so if not."""
    if find_spec("matplotlib") is not None:
        return True
    print("no plots: matplotlib is not installed (pip install 'sddmm[plots]')")
    return False


def merge(paths: Iterable[str]) -> list[Record]:
    """The newest record of every method on every case, in order of devices and sizes."""
    newest: dict[tuple[object, ...], Record] = {}
    for record in load_all(paths, Record, "run"):
        newest[(*record.case, record.method)] = record
    return sorted(newest.values(), key=_order)


def as_markdown(records: list[Record]) -> str:
    """A section per place: where it was measured, the table, and why rows have no time.

    A place is a device, or a number of threads on one that was used with several.
    """
    sections = []
    for place in dict.fromkeys(r.place for r in records):
        own = [r for r in records if r.place == place]
        lines = [f"## {_place(own[0], records)}", "", *provenance(own)]
        lines += ["", *_introduced(own, table.as_text(table.rows(own)))]
        notes = table.notes(own)
        if notes:
            lines += ["", *(f"* {note}" for note in notes)]
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def as_summary(records: Sequence[Record]) -> str:
    """A row per case: every method's time in us, and the best of the others' over ours.

    The last two columns are of the first call: our time in us, and the best of the others' over it.
    """
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if record.median_ms is not None:
            cases.setdefault(record.case, []).append(record)
    used = list(dict.fromkeys(r.method for own in cases.values() for r in own))
    rows = []
    several = len({r.place for own in cases.values() for r in own}) > 1
    names = table.shown_names(records)
    run = table.runs(records)
    for own in cases.values():
        us = {r.method: 1e3 * (r.median_ms or 0.0) for r in own}
        row = {"device": _place(own[0], records)} if several else {}
        row |= {"matrix": names[own[0].case], "nnz": f"{own[0].nnz:,}", "K": str(own[0].k)}
        row["dtype"] = own[0].dtype
        cells = {r.method: f"{_us(us[r.method])} {run.get(r.key, '')}".strip() for r in own}
        row |= {method: cells.get(method, "") for method in used}
        first_us = {r.method: 1e3 * t for r in own if (t := r.median_first_call_ms) is not None}
        row["best other / ours"] = _lead(us)
        row["first call"] = _us(first_us[OURS]) if OURS in first_us else ""
        row["first call, best other / ours"] = _lead(first_us)
        rows.append(row)
    told = f"\n\n{table.NOT_INTERLEAVED}." if run else ""
    return "\n".join(_introduced(records, table.as_text(rows))) + told + "\n"


def _introduced(records: Sequence[Record], text: str) -> list[str]:
    """A table's lines under the sentence that says whose methods it shows."""
    sentence = introduction(r.method for r in records)
    return [sentence, "", text] if sentence else [text]


def _lead(us: dict[str, float]) -> str:
    """The least of the others' times over ours, if both are there."""
    others = [time for method, time in us.items() if method != OURS]
    return f"{min(others) / us[OURS]:.2f}" if OURS in us and others else ""


def _us(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def provenance(records: Sequence[Measured]) -> list[str]:
    """One line for each environment that the records come from, with the days of measuring."""
    days: dict[str, set[str]] = {}
    for r in records:
        e = r.environment
        libraries = ", ".join(f"{name} {v}" for name, v in e.get("libraries", {}).items())
        dirty = " with uncommitted changes" if e.get("dirty") else ""
        line = (
            f"* {e.get('threads')} threads of {e.get('cpu')}; {e.get('os')}, "
            f"Python {e.get('python')}, {libraries}; commit {str(e.get('commit'))[:12]}{dirty}"
        )
        gpu = e.get("gpu")
        days.setdefault(line + (f"; GPU {gpu}" if gpu else ""), set()).add(r.date[:10])
    return [line + _span({day for day in found if day}) for line, found in days.items()]


def _span(days: set[str]) -> str:
    if not days:
        return ""
    first, last = min(days), max(days)
    return f"; measured {first}" + (f" to {last}" if last != first else "")


def _order(r: Record) -> tuple[object, ...]:
    device, threads = r.place
    sizes = (r.m * r.n, r.matrix, r.dtype, r.nnz * -1, r.k, r.seed)
    definition = json.dumps(r.definition, sort_keys=True, default=str)
    known = methods.names()
    rank = known.index(r.method) if r.method in known else len(known)
    return (device, threads or 0, *sizes, definition, rank, r.method)


def _place(r: Record, records: Sequence[Record]) -> str:
    """The device; with the number of threads where records of several are shown."""
    device = r.place[0]
    return r.place_name if len({s.place for s in records if s.place[0] == device}) > 1 else device


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
