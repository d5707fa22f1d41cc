"""The report of a study: a row for each problem and for each class, and the problems to look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic

from experiments.bench import table
from experiments.bench.page.tables import Groups, Table
from experiments.sddmm.report_cells import (
    best_cell,
    mean_cell,
    not_served,
    places,
    ratio_cell,
    time_cell,
)
from experiments.sddmm.study_problem import HeldToYardstick, Problem, ProblemT, RecordT, problems

AnyProblem = Problem[Any]

LOST = 1 / 1.03
"""Below this a row is lost to a peer; above, a difference is that of two runs of one kernel."""
MOST_REGRET = 1.1
"""The planner's choice over our fastest kernel, above which it is named."""

_FIRST_CALL = {
    "first call": {
        "first_us": "our whole first call, or first training step, on a pattern never seen",
        "first_peer": "the peer whose first call is shortest",
        "first_peer_us": "its first call",
        "first_peer_over_ours": "that call over our first call; below 1 we lose",
    },
}
_SHORT = frozenset({"first_us", "first_peer_over_ours"})


class StudyReport(ABC, Generic[RecordT, ProblemT]):
    """The tables of a study's records; a subclass says what is compared."""

    problem: type[ProblemT]
    # The sentences above the table of problems.
    legend: ClassVar[str]
    # What the columns of csv_row mean, and which of them the HTML page shows first.
    groups: ClassVar[Groups]
    short: ClassVar[frozenset[str]]

    @abstractmethod
    def means(self, own: Sequence[ProblemT], found: Sequence[ProblemT]) -> dict[str, str]:
        """The cells of a class of patterns, or of all problems.

        found: all problems of the table, which have the same columns.
        """

    @abstractmethod
    def lists(self, found: Sequence[ProblemT]) -> Mapping[str, Sequence[str]]:
        """The problems that the summary names, a line each, by the title of their list."""

    @abstractmethod
    def rows(self, found: Sequence[ProblemT]) -> list[dict[str, str]]:
        """The cells of each problem, after those that name it."""

    @abstractmethod
    def csv_row(self, p: ProblemT) -> dict[str, object]:
        """The columns of a problem in report.csv, after those that name it."""

    def problems(self, records: Iterable[RecordT]) -> list[ProblemT]:
        return problems(self.problem, records)

    def introduction(self, records: Sequence[RecordT]) -> list[str]:
        """The paragraphs above the table of problems."""
        return [self.legend]

    def tables(self, records: Sequence[RecordT]) -> list[Table]:
        """The tables of the HTML page: the classes of patterns, and a row per problem."""
        found = self.problems(records)
        return [
            Table("Classes", self._classes(found)),
            Table(
                "Problems",
                self._csv_rows(found),
                {**self.groups, **_FIRST_CALL},
                self.short | _SHORT,
                note=self.legend,
            ),
        ]

    def pages(self, records: Sequence[RecordT]) -> dict[str, str]:
        """The files of the report by name."""
        found = self.problems(records)
        cells = [row | _first_cells(p) for p, row in zip(found, self.rows(found), strict=True)]
        rows = named_rows(found, cells)
        shown = [places(records), *self.introduction(records), table.as_text(rows)]
        return {
            "summary.md": self._summary(found),
            "report.md": "\n\n".join([*shown, not_served(records)]),
            "report.csv": table.csv_text(self._csv_rows(found)),
        }

    def _summary(self, found: Sequence[ProblemT]) -> str:
        """The means for each class of patterns and for all, and the problems to look at."""
        parts = [table.as_text(self._classes(found)), ""]
        lists = {**self.lists(found), "**A peer's first call is faster**": _lost_first_lines(found)}
        for title, lines in lists.items():
            parts += [f"{title} ({len(lines)})", "", *lines, ""]
        return "\n".join(parts)

    def _classes(self, found: Sequence[ProblemT]) -> list[dict[str, str]]:
        """A row for each class of patterns, and one for all; none without problems."""
        families = dict.fromkeys(p.ours.family for p in found)
        classes = [(name, [p for p in found if p.ours.family == name]) for name in families]
        if found:
            classes.append(("all", list(found)))
        return [
            {
                "class": name,
                "problems": str(len(own)),
                **self.means(own, found),
                "first call, peer / ours, mean": mean_cell(p.first_lead for p in own),
                "first calls lost": str(sum(p.is_lost_first for p in own)),
            }
            for name, own in classes
        ]

    def _csv_rows(self, found: Sequence[ProblemT]) -> list[dict[str, object]]:
        return [_case_columns(p) | self.csv_row(p) | _first_columns(p) for p in found]


def named_rows(found: Sequence[AnyProblem], rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of problems, each after the cells that name its problem."""
    several = len({p.ours.place for p in found}) > 1
    return [
        ({"device": p.ours.place_name} if several else {}) | _case_cells(p) | row
        for p, row in zip(found, rows, strict=True)
    ]


def _case_cells(p: AnyProblem) -> dict[str, str]:
    r = p.ours
    return {
        "class": r.family, "matrix": r.matrix, "nnz": f"{r.nnz:,}",
        p.size: str(r.k), "dtype": r.dtype, "heads": str(r.heads),
    }  # fmt: skip


def _case_columns(p: AnyProblem) -> dict[str, object]:
    r = p.ours
    return {
        "device": r.place_name,
        "class": r.family, "matrix": r.matrix, "m": r.m, "n": r.n, "nnz": r.nnz,
        p.size.lower(): r.k, "dtype": r.dtype, "heads": r.heads,
    }  # fmt: skip


def _first_cells(p: AnyProblem) -> dict[str, str]:
    return {"first us": time_cell(p.first_us), "first peer / ours": ratio_cell(p.first_lead)}


def _first_columns(p: AnyProblem) -> dict[str, object]:
    peer, us = p.first_peer or ("", None)
    return {
        "first_us": p.first_us, "first_peer": peer, "first_peer_us": us,
        "first_peer_over_ours": p.first_lead,
    }  # fmt: skip


def over_limit_lines(found: Iterable[HeldToYardstick[Any]]) -> list[str]:
    """The problems on which ours takes longer than its yardstick allows."""
    return [
        f"* {p.name}: {ratio_cell(p.over_yardstick)} of {p.limit}, {p.ours.kernel} "
        f"{time_cell(p.us)} us, {p.yardstick} {time_cell(p.us_of(p.yardstick))} us"
        for p in found
        if p.is_over_limit
    ]


def lost_lines(found: Iterable[AnyProblem]) -> list[str]:
    """The problems that a peer computes faster."""
    return [
        f"* {p.name}: {best_cell(p.best_peer)} us, ours {time_cell(p.us)}"
        for p in found
        if p.is_lost
    ]


def _lost_first_lines(found: Iterable[AnyProblem]) -> list[str]:
    """The problems whose first call a peer makes faster."""
    return [
        f"* {p.name}, {p.ours.nnz:,} nonzeros: {best_cell(p.first_peer)} us, "
        f"ours {time_cell(p.first_us)}"
        for p in found
        if p.is_lost_first
    ]


def regret_lines(found: Iterable[AnyProblem], above: float) -> list[str]:
    """The problems on which the choice takes more than `above` times our fastest kernel's time."""
    return [
        f"* {p.name}: {p.regret:.2f}, {p.ours.kernel} {time_cell(p.us)} us, "
        f"{best_cell(p.best_kernel)} us"
        for p in found
        if p.regret is not None and p.regret > above
    ]
