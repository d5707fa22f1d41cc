"""The tables of a report as LaTeX and as Parquet, through pandas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from experiments.bench.config import FORMATS
from experiments.bench.errors import ExperimentError
from experiments.bench.page.tables import Table, text_of

_NEEDS = {"tex": ("pandas", "jinja2"), "parquet": ("pandas", "pyarrow")}
# A table of more rows goes over several pages.
_LONGEST_ON_A_PAGE = 40
_LATEX = str.maketrans({
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "`": "",
})  # fmt: skip


def require(formats: Sequence[str]) -> None:
    """Raise ExperimentError for a format that is unknown or whose libraries are not installed."""
    for name in formats:
        if name not in FORMATS:
            raise ExperimentError(f"formats must be of {', '.join(FORMATS)}, got {name!r}")
        missing = [library for library in _NEEDS[name] if find_spec(library) is None]
        if missing:
            raise ExperimentError(
                f"formats={name} needs {' and '.join(missing)}: pip install 'sddmm[exports]'"
            )


def write(
    tables: Sequence[Table],
    formats: Sequence[str],
    folder: Path,
    caption: str = "",
    provenance: Sequence[str] = (),
) -> list[Path]:
    """Write each table in each format, as TITLE.tex and TITLE.parquet; returns the paths.

    A table of text alone, whose figures stand in another one, has no Parquet file. caption: what
    every caption ends with. provenance: the comments that a LaTeX file begins with.
    """
    written: list[Path] = []
    names: set[str] = set()
    for table in tables:
        name = _slug(table.title)
        while name in names:
            name += "_"
        names.add(name)
        if "tex" in formats and table.rows:
            written.append(folder / f"{name}.tex")
            written[-1].write_text(as_latex(table, caption, provenance), encoding="utf-8")
        if "parquet" in formats and _has_numbers(table):
            written.append(folder / f"{name}.parquet")
            _frame(table).to_parquet(written[-1], index=False)
    return written


def as_latex(table: Table, caption: str = "", provenance: Sequence[str] = ()) -> str:
    """The columns that a page shows first, as a table of booktabs, or of longtable."""
    import pandas as pd

    columns = [column for column in table.columns if not column.is_extra]
    cells = [[text_of(row[column.name]) for column in columns] for row in table.rows]
    text = pd.DataFrame(cells, columns=[column.name for column in columns]).to_latex(
        index=False, escape=True, longtable=len(cells) > _LONGEST_ON_A_PAGE,
        column_format="".join("r" if column.is_number else "l" for column in columns),
        caption=" ".join(filter(None, (f"{table.title}.", table.note, caption))).translate(_LATEX),
        label=f"tab:{_slug(table.title)}",
    )  # fmt: skip
    head = ["needs the packages booktabs and longtable", *provenance]
    return "".join(f"% {' '.join(line.split())}\n" for line in head) + text


def _frame(table: Table):  # type: ignore[no-untyped-def] # pandas may be absent
    """The rows with a type for each column; empty cells are missing."""
    import pandas as pd

    rows = [
        {name: None if cell == "" else cell for name, cell in row.items()} for row in table.rows
    ]
    frame = pd.DataFrame(rows).convert_dtypes()
    for name in frame.columns:
        if frame[name].dtype == object:  # of several types, which Parquet has no column for
            frame[name] = [None if pd.isna(cell) else str(cell) for cell in frame[name]]
    return frame


def _has_numbers(table: Table) -> bool:
    return any(isinstance(cell, int | float) for row in table.rows for cell in row.values())


def _slug(title: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", title.lower()))
