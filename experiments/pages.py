"""The pages' tables and pictures, made from the committed records: `python -m experiments docs`.

A page marks a table by the file that holds it whole, and by the rows and columns that it shows:

    <!-- results: docs/results/h200/peers/summary.md where K=256; dtype=float16 without K; dtype -->
    ...
    <!-- end -->

`only` in place of `without` names the columns that are shown. `of "TITLE"` chooses among several
tables of one file, the one under the line **TITLE**; `a|b` stands for either value. A folder stands
for its report.md, `prediction` for the table of `experiments/distributed/prediction.py`.
`list of "TITLE"` shows, instead of a table, the list under the line **TITLE** (n). The source
`records` is a table of the committed records themselves. `<!-- variables -->` marks the table of
environment variables, which comes from the code. In place of a table of a study that has no records
yet stands a sentence that says so.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

from experiments import call_picture, kernel_picture, ladder_picture
from experiments.attention.objective import ATTENTION
from experiments.bench import report, table
from experiments.bench.config import ReportConfig
from experiments.bench.digest import ROOT
from experiments.bench.errors import ExperimentError
from experiments.bench.objective import AnyObjective
from experiments.distributed import prediction
from experiments.distributed.objective import DISTRIBUTED
from experiments.gemm.objective import GEMM
from experiments.kernel_panels import PANELS
from experiments.sddmm.objective import SDDMM
from experiments.spmm.objective import SPMM
from experiments.training.objective import TRAINING
from gemm_core.runtime import variables

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/results/README.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if path.relative_to(ROOT / "docs").parts[0] not in ("results", "_build")
    ),
)
RESULTS: dict[str, AnyObjective] = {
    "docs/results/cpu": SDDMM,
    "docs/results/cpu_ranks": DISTRIBUTED,
    "docs/results/h200/peers": SDDMM,
    "docs/results/h200/published": SDDMM,
    "docs/results/h200/regret": SDDMM,
    "docs/results/h200/scaled": SDDMM,
    "docs/results/h200/small": SDDMM,
    "docs/results/h200/gemm": GEMM,
}
# Studies whose records are committed when they are measured.
STUDIES: dict[str, AnyObjective] = {
    "docs/results/h200/spmm": SPMM,
    "docs/results/h200/spmm_transposed": SPMM,
    "docs/results/h200/training": TRAINING,
    "docs/results/h200/attention": ATTENTION,
    "docs/results/h200/attention_training": ATTENTION,
    "docs/results/h200/ranks": DISTRIBUTED,
    "docs/results/h100/ranks": DISTRIBUTED,
}
RESULTS |= {
    folder: objective
    for folder, objective in STUDIES.items()
    if (ROOT / folder / "records.jsonl").is_file()
}
# The pictures of the committed records that pages show, by the folder of their records.
RECORD_PICTURES = {
    "docs/results/h200/peers": ("speedup", "first_call"),
    "docs/results/h200/published": ("speedup_over_k", "speedup_over_density"),
    "docs/results/h200/regret": (
        *("speedup", "speedup_over_nnz", "roofline", "calls_until_preparation_pays"),
    ),
    "docs/results/h200/spmm": ("speedup",),
    "docs/results/h200/spmm_transposed": ("speedup",),
    "docs/results/h200/training": ("speedup",),
    "docs/results/h200/attention": ("speedup",),
    "docs/results/h200/attention_training": ("speedup",),
    "docs/results/h200/gemm": ("climb", "ladder"),
    "docs/results/h200/ranks": ("efficiency",),
    "docs/results/h100/ranks": ("efficiency",),
}
RECORD_PICTURES = {folder: own for folder, own in RECORD_PICTURES.items() if folder in RESULTS}
_NOT_MEASURED = "\nThe study has not been measured yet.\n"
KERNEL_PICTURES = "docs/how_it_works/kernels"
CALL_PICTURE = "docs/how_it_works/call.svg"
LADDER_PICTURE = "docs/ladder_tiles.svg"

_BLOCK = re.compile(
    r"<!-- results:\s+(?P<marker>(?P<source>\S+)"
    r'(?:\s+(?P<list>list))?(?:\s+of\s+"(?P<title>[^"]+)")?'
    r"(?:\s+where\s+(?P<where>.+?))?"
    r"(?:\s+without\s+(?P<without>.+?))?(?:\s+only\s+(?P<only>.+?))?)\s+-->\n"
    r"(?P<shown>.*?)<!-- end -->",
    re.DOTALL,
)
_VARIABLES = re.compile(r"<!-- variables: (ours|others) -->\n.*?<!-- end -->", re.DOTALL)
_CELL_BORDER = re.compile(r"(?<!\\)\|")


def write_all(root: Path = ROOT) -> None:
    """Write under `root` the reports, the pictures and the pages, from the committed records."""
    for folder, objective in RESULTS.items():
        records = [str(ROOT / folder / "records.jsonl")]
        config = ReportConfig(records=records, output=str(root / folder), plots=False, html=False)
        report.report(objective, config)
    tables = {name: with_tables((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    for name, text in (pictures() | tables).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        report.write(root / name, text)


def pictures() -> dict[str, str]:
    """Every picture of the pages as SVG, by its path."""
    kernels = {f"{KERNEL_PICTURES}/{name}.svg": kernel_picture.draw(name) for name in PANELS}
    others = {CALL_PICTURE: call_picture.draw(), LADDER_PICTURE: ladder_picture.draw()}
    return {**others, **kernels, **record_pictures()}


def record_pictures() -> dict[str, str]:
    """The pictures of committed records, which need matplotlib."""
    if find_spec("matplotlib") is None:
        raise ExperimentError("docs draws with matplotlib: pip install 'sddmm[plots]'")
    from experiments.pictures.figures import figures

    drawn = {}
    for folder, names in RECORD_PICTURES.items():
        records = report.merge(RESULTS[folder], [str(ROOT / folder / "records.jsonl")])
        for picture in figures(RESULTS[folder], records, names=names):
            drawn[f"{folder}/{picture.name}.svg"] = picture.svg()
    return drawn


def with_tables(page: str) -> str:
    """The page's text with every marked table as its source has it now."""

    def block(match: re.Match[str]) -> str:
        marker = f"<!-- results: {match['marker']} -->"
        folder = match["source"].rpartition("/")[0]
        if folder in STUDIES and folder not in RESULTS:
            return f"{marker}\n{_NOT_MEASURED}\n<!-- end -->"
        return f"{marker}\n{_list(match) if match['list'] else _table(match)}\n<!-- end -->"

    return _VARIABLES.sub(_variables, _BLOCK.sub(block, page))


def _variables(match: re.Match[str]) -> str:
    """A marked table of environment variables."""
    others = [
        {"variable": f"`{name}`", "meaning": text} for name, text in variables.FOREIGN.items()
    ]
    rows = variables.rows() if match[1] == "ours" else others
    return f"<!-- variables: {match[1]} -->\n{table.as_text(rows)}\n<!-- end -->"


def _table(match: re.Match[str]) -> str:
    """The marked rows and columns of the source's table, as Markdown."""
    rows = _rows(match["source"], match["title"])
    for column, values in _conditions(match["where"]):
        _refuse_unknown(column, rows, match["source"])
        rows = [row for row in rows if row[column] in values]
    if not rows:
        raise ExperimentError(f"{match['source']} has no rows where {match['where']}")
    hidden, only = _names(match["without"]), _names(match["only"])
    for column in (*hidden, *only):
        _refuse_unknown(column, rows, match["source"])
    columns = only or [column for column in rows[0] if column not in hidden]
    return table.as_text([{column: row[column] for column in columns} for row in rows])


def _list(match: re.Match[str]) -> str:
    """The list under the marked title, as Markdown; or that there is nothing."""
    text = (ROOT / match["source"]).read_text(encoding="utf-8")
    found = re.search(
        rf"^\*\*{re.escape(match['title'])}\*\*.*\n\n((?:\* .*\n)*)", text, re.MULTILINE
    )
    if found is None:
        raise ExperimentError(f"{match['source']} has no list under **{match['title']}**")
    return f"\n{found[1] or '* none'}".rstrip() + "\n"


def _records() -> list[dict[str, str]]:
    """A row for each folder of committed records: whence they come, and how many there are."""
    rows = []
    for folder in RESULTS:
        lines = (ROOT / folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        environments = [record["environment"] for record in records]
        rows.append(
            {
                "folder": folder.removeprefix("docs/results/"),
                "records": f"{len(records):,}",
                "device": ", ".join(sorted({e["device"] for e in environments})),
                "commit": ", ".join(sorted({e["commit"][:7] for e in environments})),
                "day": ", ".join(sorted({r["date"][:10] for r in records if r.get("date")})),
            }
        )
    return rows


def _rows(source: str, title: str | None) -> list[dict[str, str]]:
    """The rows of the first table of a file, or of the first one under its title."""
    if source == "records":
        return _records()
    if source == "prediction":
        return prediction.rows()
    path = ROOT / source
    text = (path / "report.md" if path.is_dir() else path).read_text(encoding="utf-8")
    if title is not None:
        _, heading, text = text.partition(f"**{title}**\n")
        if not heading:
            raise ExperimentError(f"{source} has no table under **{title}**")
    _, bar, text = f"\n{text}".partition("\n|")
    lines = (bar.strip() + text).split("\n\n")[0].strip().splitlines()
    header, _, *body = [_cells(line) for line in lines if line.startswith("|")]
    return [dict(zip(header, cells, strict=True)) for cells in body]


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELL_BORDER.split(line)[1:-1]]


def _conditions(where: str | None) -> list[tuple[str, list[str]]]:
    parts = [part.partition("=") for part in _names(where)]
    return [(column.strip(), [v.strip() for v in values.split("|")]) for column, _, values in parts]


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(";")] if text else []


def _refuse_unknown(column: str, rows: list[dict[str, str]], source: str) -> None:
    if rows and column not in rows[0]:
        raise ExperimentError(f"{source} has no column {column!r}; it has {', '.join(rows[0])}")
