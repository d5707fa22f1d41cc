"""Prints text with tables so that no table is wider than the terminal."""

from __future__ import annotations

import os
import re
import sys
import textwrap

from rich.console import Console
from rich.text import Text

from experiments.bench.record import BAD
from experiments.bench.table import KEYS

_CELLS = re.compile(r"(?<!\\)\|")
# No table is made narrower.
_NARROWEST = 40
# The columns that the first of several tables has, if they fit.
_FIRST = re.compile(r"status|time ms|p20-p80|vs .*|ratio|TFLOP/s|of cuBLAS|ours|best other / .*")
_LAST = re.compile(r"error|run|registers|shared KiB|spilled|nnz|sparsity")
# The columns that say what a row is about, and often follow from the others.
_IMPLIED = ("sparsity", "nnz")


def show(text: str) -> None:
    """Print a text, fitted to the width of the terminal.

    COLUMNS counts before the terminal's own width. A pipe or a file gets the tables whole.
    """
    limit = width()
    if limit is not None:
        text = fitted(text, limit)
    if sys.stdout.isatty():
        Console(highlight=False, soft_wrap=True).print(_styled(text))
    else:
        print(text, flush=True)


def width() -> int | None:
    """The characters of a line; None where a line may have any number."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(_NARROWEST, int(columns))
    if not sys.stdout.isatty():
        return None
    return max(_NARROWEST, os.get_terminal_size(sys.stdout.fileno()).columns)


def fitted(text: str, limit: int) -> str:
    """The text with its prose wrapped, and every Markdown table that is too wide cut."""
    lines, table = [], list[str]()
    for line in [*text.split("\n"), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            lines += _cut(table, limit) if len(table[0]) > limit else table
            table = []
        # A command is copied whole: the terminal breaks it, and no newline does.
        is_prose = len(line) > limit and not line.startswith("Next: ")
        lines += textwrap.wrap(line, limit, break_on_hyphens=False) if is_prose else [line]
    return "\n".join(lines[:-1])


def _cut(lines: list[str], limit: int) -> list[str]:
    """A line with what all rows have in common, then as many tables as the columns need."""
    cells = [_CELLS.split(line)[1:-1] for line in lines]
    if len(lines) < 3 or len({len(row) for row in cells}) > 1:  # no table
        return lines
    columns = dict(zip((name.strip() for name in cells[0]), zip(*cells, strict=True), strict=True))
    keys = [name for name in columns if name in KEYS] or list(columns)[:1]
    constant = [name for name in keys[:-1] if len(set(columns[name][2:])) == 1]
    common = ", ".join(f"{name} {columns[name][2].strip()}" for name in constant)
    keys = [name for name in keys if name not in constant]
    for name in _IMPLIED:  # one column of what follows from the others is enough
        others = [key for key in keys if key != name]
        if name in keys and _distinct(columns, others) == _distinct(columns, keys):
            keys = others
    rest = [name for name in columns if name not in (*keys, *constant)]
    waiting = sorted(rest, key=lambda name: (_LAST.fullmatch(name) is not None,
                                             _FIRST.fullmatch(name) is None))  # fmt: skip
    cut = [common] if common else []
    while waiting:
        chosen = list(keys)
        for name in waiting:
            if chosen == keys or _width(columns, [*chosen, name]) <= limit:
                chosen.append(name)
        waiting = [name for name in waiting if name not in chosen]
        order = [name for name in columns if name in chosen]
        rows = zip(*(columns[name] for name in order), strict=True)
        cut += [*([""] if cut else []), *(f"|{'|'.join(row)}|" for row in rows)]
    return cut


def _distinct(columns: dict[str, tuple[str, ...]], names: list[str]) -> int:
    return len(set(zip(*(columns[name] for name in names), strict=True)))


def _width(columns: dict[str, tuple[str, ...]], names: list[str]) -> int:
    return 1 + sum(len(columns[name][0]) + 1 for name in names)


def _styled(text: str) -> Text:
    """Bold heads of tables, and rows without a right result in red: both read on any ground."""
    lines, inside = [], False
    for line in text.split("\n"):
        style = ""
        if line.startswith("|"):
            is_bad = any(cell.strip() in BAD for cell in _CELLS.split(line))
            style = "bold" if not inside else "red" if is_bad else ""
        inside = line.startswith("|")
        lines.append(Text(line, style))
    return Text("\n").join(lines)
