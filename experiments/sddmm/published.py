"""The published SDDMM log beside our times: runs and preparations of isratnisa and of zcx.

Our times of the two are those of our re-implementations; the log's are of the authors' code.

The log was taken on an RTX 4090, one pass without warming up: context, not comparison. Its author's
later system is https://github.com/CX9898/BSMR-SDDMM.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from experiments.bench import table
from experiments.bench.methods import introduction
from experiments.sddmm.methods import REIMPLEMENTED
from experiments.sddmm.record import Record

LOG = Path(__file__).with_name("published.csv")

_METHODS = ("ours", "isratnisa", "zcx")
_COLUMNS = ("isratnisa_sddmm_ms", "zcx_sddmm_ms", "isratnisa_other_ms", "zcx_other_ms")

_SOURCE = (
    "Times in ms; `other` is the preparation. `4090`: as published, by the authors' own code on an "
    "RTX 4090, one pass without warming up: context, not comparison.\nThe log is of the author of "
    "[BSMR-SDDMM](https://github.com/CX9898/BSMR-SDDMM); isratnisa there is "
    "[cuSDDMM](https://github.com/isratnisa/SDDMM_GPU)."
)

Case = tuple[int, int, int, int]


def published() -> dict[Case, dict[str, str]]:
    """The log's times by (m, n, k, nonzeros), of its last version and 16x16x16 tiles."""
    times: dict[Case, dict[str, str]] = {}
    with LOG.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["wmma"] == "16x16x16" and all(row[column] for column in _COLUMNS):
                case = (int(row["M"]), int(row["N"]), int(row["K"]), int(row["nnz"]))
                times[case] = {column: row[column] for column in _COLUMNS}
    return times


def as_markdown(records: Sequence[Record]) -> str:
    """A row for every case with ours, isratnisa and zcx; empty if there is none."""
    log = published()
    cases: dict[tuple[object, ...], dict[str, Record]] = {}
    for record in records:
        if record.method in _METHODS and record.median_ms is not None:
            cases.setdefault(record.case, {})[record.method] = record
    rows = []
    places = {record.place for own in cases.values() for record in own.values()}
    for by_method in cases.values():
        if len(by_method) < len(_METHODS):
            continue
        ours = by_method["ours"]
        row = {"device": ours.place_name} if len(places) > 1 else {}
        row |= {"matrix": ours.matrix, "nnz": f"{ours.nnz:,}", "K": str(ours.k)}
        for method in _METHODS:
            row[f"{method}_sddmm"] = _ms(by_method[method].median_ms)
            row[f"{method}_other"] = _ms(by_method[method].prepare_ms)
        figures = log.get((ours.m, ours.n, ours.k, ours.nnz), {})
        for method in _METHODS[1:]:
            for part in ("sddmm", "other"):
                figure = figures.get(f"{method}_{part}_ms")
                row[f"4090 {method}_{part}"] = _ms(float(figure)) if figure else ""
        rows.append(row)
    if not rows:
        return ""
    return f"{introduction(_METHODS, REIMPLEMENTED)}\n{_SOURCE}\n\n{table.as_text(rows)}\n"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
