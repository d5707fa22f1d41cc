"""Merges the records of an objective into tables and plots."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bench import compare, exports, table
from experiments.bench.config import ReportConfig
from experiments.bench.errors import NoRecords
from experiments.bench.methods import introduction
from experiments.bench.page.render import Figure, render
from experiments.bench.record import Record
from experiments.bench.store import load_all
from experiments.bench.terminal import show
from experiments.pictures import cases

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective
    from experiments.pictures.picture import Picture


def report(objective: AnyObjective, config: ReportConfig) -> None:
    """Write the objective's pages and plots to config.output; print the first page, unless quiet.

    With config.compare, write and print only the table of its two commits.
    """
    exports.require(config.formats)
    output, complaints = Path(config.output), list[str]()
    try:
        records = load_all(config.records, objective.record_type, _measuring(objective), complaints)
    except NoRecords:
        if config.html:  # else a page of records that are gone would stay
            _write_html(objective, [], [], complaints, config)
        raise
    output.mkdir(parents=True, exist_ok=True)
    if config.compare:
        records.sort(key=objective.order)
        text = compare.as_markdown(objective, records, config.compare)
        show(text)
        print("written:", write(output / "compare.md", text))
        return
    records = newest(objective, records)
    if config.reference:
        cases.require_reference(objective, records, config.reference)
        objective = objective.referring_to(config.reference)
    pages = objective.pages(records)
    if not config.quiet:
        show(next(iter(pages.values())))
    written = [write(output / name, text) for name, text in pages.items()]
    if config.formats:
        places = ", ".join(dict.fromkeys(r.place_name for r in records))
        reimplemented = introduction((r.name for r in records), objective.reimplemented)
        caption = " ".join(filter(None, (f"On {places}.", reimplemented)))
        written += exports.write(
            objective.tables(records), config.formats, output, caption, provenance(records)
        )
    pictures: list[Picture] = []
    if config.plots and _can_draw():
        pictures = _draw(objective, records, config.reference)
        written += [path for picture in pictures for path in picture.write(output)]
    if config.html:
        written.append(_write_html(objective, records, pictures, complaints, config))
    show(objective.finding(records))
    show(f"written to {output}: {', '.join(path.name for path in written)}")
    for picture in pictures:
        if picture.figure is not None:
            print(f"picture: {output / picture.name}.png")
            break


def _write_html(
    objective: AnyObjective,
    records: Sequence[Record],
    pictures: Sequence[Picture],
    complaints: Sequence[str],
    config: ReportConfig,
) -> Path:
    figures = [Figure.of(picture) for picture in pictures]
    html = render(objective, records, figures, complaints, _command(objective, config))
    Path(config.output).mkdir(parents=True, exist_ok=True)
    return write(Path(config.output) / "report.html", html)


def _draw(objective: AnyObjective, records: Sequence[Record], reference: str) -> list[Picture]:
    """The pictures; prints a line for each that the records give nothing for."""
    from experiments.pictures.figures import figures

    pictures = figures(objective, records, reference)
    for picture in pictures:
        if picture.figure is None:
            print(f"no {picture.name}: {picture.caption}")
    return pictures


def _command(objective: AnyObjective, config: ReportConfig) -> str:
    """The command line that reports the same files again."""
    keys = [f"records=[{','.join(config.records)}]", f"output={config.output}"]
    keys += [f"reference={config.reference}"] if config.reference else []
    return f"python -m experiments {objective.report_command} {shlex.join(keys)}"


def _measuring(objective: AnyObjective) -> str:
    """The words of the command line that measure the objective: run, or run objective=spmm."""
    return " ".join([objective.command, *objective.report_command.split()[1:]])


def _can_draw() -> bool:
    """Whether matplotlib is installed; prints a line if it is not."""
    if find_spec("matplotlib") is not None:
        return True
    print("no plots: matplotlib is not installed (pip install 'sddmm[plots]')")
    return False


def merge(objective: AnyObjective, paths: Iterable[str]) -> list[Any]:
    """The records of these files that a report shows."""
    return newest(objective, load_all(paths, objective.record_type, _measuring(objective)))


def newest(objective: AnyObjective, records: Iterable[Record]) -> list[Any]:
    """The newest record of every method on every case, and the companions' of the same sessions."""
    last: dict[tuple[object, ...], Record] = {}
    for r in records:
        own_session = r.session if r.name in objective.companions else ""
        last[(*r.case, r.name, own_session)] = r
    sessions = {r.session for r in last.values() if r.name not in objective.companions}
    shown = [r for r in last.values() if r.session in sessions]
    return sorted(shown, key=objective.order)


def as_markdown(objective: AnyObjective, records: Sequence[Record]) -> str:
    """A section per place: where it was measured, a short table, and why rows have no time.

    A place is a device, or a number of threads on one that was used with several.
    """
    sections = []
    for place in dict.fromkeys(r.place for r in records):
        own = [r for r in records if r.place == place]
        lines = [f"## {_place(own[0], records)}", "", *provenance(own), ""]
        lines += _with_introduction(
            objective, own, text := table.as_text(objective.short_rows(own))
        )
        notes = [*([table.NOISE] if " ~ " in text else []), *objective.notes(own)]
        if notes:
            lines += ["", *(f"* {note}" for note in notes)]
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def as_summary(objective: AnyObjective, records: Sequence[Record]) -> str:
    """A row per case, and which methods are not their authors' code."""
    note = f"\n\n{table.NOT_INTERLEAVED}." if table.runs(records) else ""
    text = f"Times are medians in us.\n\n{table.as_text(summary_rows(objective, records))}"
    return "\n".join(_with_introduction(objective, records, text)) + note + "\n"


def summary_rows(objective: AnyObjective, records: Sequence[Record]) -> list[dict[str, str]]:
    """A row per case: every method's time in us, and the best of the others' over ours.

    The last two columns are of the first call: our time in us, and the best of the others' over it.
    """
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if record.median_ms is not None:
            cases.setdefault(record.case, []).append(record)
    used = list(dict.fromkeys(r.name for own in cases.values() for r in own))
    several = len({r.place for own in cases.values() for r in own}) > 1
    labels, run, ours = table.short_labels(objective, records), table.runs(records), objective.ours
    rows = []
    for own in cases.values():
        us = {r.name: 1e3 * (r.median_ms or 0.0) for r in own}
        row = {"device": _place(own[0], records)} if several else {}
        row |= labels[own[0].case]
        cells = {r.name: f"{_us(us[r.name])} {run.get(r.key, '')}".strip() for r in own}
        row |= {method: cells.get(method, "") for method in used}
        first_us = {r.name: 1e3 * t for r in own if (t := r.median_first_call_ms) is not None}
        row[f"best other / {ours}"] = _lead(us, ours)
        row["first call"] = _us(first_us[ours]) if ours in first_us else ""
        row[f"first call, best other / {ours}"] = _lead(first_us, ours)
        rows.append(row)
    return rows


def _with_introduction(objective: AnyObjective, records: Sequence[Record], text: str) -> list[str]:
    """A table's lines under the sentence that says whose methods it shows."""
    sentence = introduction((r.name for r in records), objective.reimplemented)
    return [sentence, "", text] if sentence else [text]


def _lead(us: Mapping[str, float], ours: str) -> str:
    """The least of the others' times over ours, if both are there."""
    others = [time for method, time in us.items() if method != ours]
    return f"{min(others) / us[ours]:.2f}" if ours in us and others else ""


def _us(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def provenance(records: Sequence[Record]) -> list[str]:
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
    return [line + _span({day for day in dates if day}) for line, dates in days.items()]


def _span(days: set[str]) -> str:
    if not days:
        return ""
    first, last = min(days), max(days)
    return f"; measured {first}" + (f" to {last}" if last != first else "")


def _place(r: Record, records: Sequence[Record]) -> str:
    """The device; with the number of threads where records of several are shown."""
    device = r.place[0]
    return r.place_name if len({s.place for s in records if s.place[0] == device}) > 1 else device


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
