"""Tables of the HTML page: their columns in groups, a short set shown first, cells as text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from experiments.bench.record import BAD, NOISY

Groups = Mapping[str, Mapping[str, str]]
"""The meaning of each column, by the group that it is shown and folded with."""

# The group of the columns that name a row, and that of the columns that have no meaning given.
CASE, OTHER = "case", "other"
# A choice among more values than this is left to the search.
_MOST_CHOICES, _MOST_NUMBERS, _MOST_SELECTS = 40, 12, 6
_LONGEST_CHOICE = 40


@dataclass(frozen=True)
class Column:
    """A column. is_extra: it is folded at first. choices: the values that rows can be chosen by."""

    name: str
    group: str
    meaning: str
    is_number: bool
    is_extra: bool
    choices: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A table of the page.

    rows: with equal keys, whose order is that of the columns within a group. short: the columns
    that are shown at first; None for all. note: the sentences above the table. folded: a reader
    opens it first. flagged: names a column and the value above which its cells carry a mark.
    """

    title: str
    rows: Sequence[Mapping[str, object]]
    groups: Groups = field(default_factory=dict)
    short: Collection[str] | None = None
    note: str = ""
    folded: bool = False
    flagged: Mapping[str, float] = field(default_factory=lambda: {"p80_over_p20": NOISY})

    @cached_property
    def columns(self) -> list[Column]:
        """The columns, group by group; what names a row and never changes is folded."""
        present = list(self.rows[0]) if self.rows else []
        grouped = [(group, name) for group, names in self.groups.items() for name in names]
        known = {name for _, name in grouped}
        order = [pair for pair in grouped if pair[1] in present]
        order += [(OTHER, name) for name in present if name not in known]
        columns: list[Column] = []
        for group, name in order:
            columns.append(self._column(group, name, is_first=not columns))
        selects = [column.name for column in columns if column.choices][:_MOST_SELECTS]
        return [c if c.name in selects else replace(c, choices=()) for c in columns]

    @property
    def constants(self) -> str:
        """The folded cells that every row has in common, of the columns that name a row."""
        cells = {
            column.name: text_of(self.rows[0][column.name])
            for column in self.columns
            if self._is_constant(column.group, column.name)
        }
        return ", ".join(f"{name} {cell}" for name, cell in cells.items() if cell)

    @property
    def extras(self) -> dict[str, int]:
        """The number of folded columns of each group that has some."""
        counts: dict[str, int] = {}
        for column in self.columns:
            if column.is_extra:
                counts[column.group] = counts.get(column.group, 0) + 1
        return counts

    @property
    def meanings(self) -> dict[str, list[Column]]:
        """The columns that are explained, by group."""
        found: dict[str, list[Column]] = {}
        for column in self.columns:
            if column.meaning:
                found.setdefault(column.group, []).append(column)
        return found

    def mark(self, name: str, value: object) -> str:
        """What is wrong with a cell, in a word, if anything is."""
        if name == "status" and value in BAD:
            return "bad"
        limit = self.flagged.get(name)
        return "noisy" if limit and isinstance(value, float) and value > limit else ""

    def _column(self, group: str, name: str, is_first: bool) -> Column:
        values = [row[name] for row in self.rows]
        is_number = _are_numbers(values)
        is_constant = not is_first and self._is_constant(group, name)
        is_short = self.short is None or name in self.short
        texts = sorted({text_of(value) for value in values} - {""}, key=_by_number)
        can_choose = (
            (group == CASE or not is_number)
            and not any(isinstance(value, float) for value in values)
            and 2 <= len(texts) <= (_MOST_NUMBERS if is_number else _MOST_CHOICES)
            and 2 * len(texts) <= len(self.rows)
            and max(map(len, texts)) <= _LONGEST_CHOICE
            and is_short
        )
        return Column(
            name, group, self.groups.get(group, {}).get(name, ""), is_number,
            is_extra=is_constant or not is_short, choices=texts if can_choose else (),
        )  # fmt: skip

    def _is_constant(self, group: str, name: str) -> bool:
        if group != CASE or len(self.rows) < 2 or name == next(iter(self.rows[0])):
            return False
        return len({text_of(row[name]) for row in self.rows}) == 1


def text_of(value: object) -> str:
    """A cell: a number with four significant digits, everything else as it is."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def _are_numbers(values: Iterable[object]) -> bool:
    """Whether the cells that are not empty are numbers, with a unit perhaps."""
    texts = [text for value in values if (text := text_of(value))]
    return bool(texts) and all(_number(text) is not None for text in texts)


def _number(text: str) -> float | None:
    """The number that a text begins with, as the page's sorting reads it."""
    word = text.replace(",", "").split(" ")[0].rstrip("%x")
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _by_number(text: str) -> tuple[float, str]:
    number = _number(text)
    return (math.inf if number is None else number, text)
