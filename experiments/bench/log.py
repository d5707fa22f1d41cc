"""What a run or a sweep has measured so far, and its last words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from experiments.bench.progress import Clock
from experiments.bench.record import Record

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


@dataclass
class Log:
    """The records of the cases that are done, whether measured now or out of the store.

    kept: how many were measured and stored. cached: the dates of those out of the store. path: the
    file of records. Where a launcher runs jobs in other processes, the log here stays empty.
    """

    clock: Clock = field(default_factory=Clock)
    objective: AnyObjective | None = None
    path: str = ""
    records: list[Record] = field(default_factory=list)
    cached: list[str] = field(default_factory=list)
    kept: int = 0
    cases: int = 0

    def begin(self, objective: AnyObjective, path: str) -> None:
        self.objective, self.path = objective, path

    def add(self, records: Sequence[Record], cached: Sequence[Record]) -> None:
        """A case that is done."""
        self.records += records
        self.cached += [record.date for record in cached]
        self.cases += 1

    def last_words(self) -> list[str]:
        """What was found, where it is kept and what to do next; tables of several cases first."""
        if self.objective is None or not self.records:
            return []
        objective = self.objective
        words = [objective.summary(self.records)] if self.cases > 1 else []
        words += [objective.finding(self.records), self._kept_in()]
        default = f" records={self.path}" if self.path != objective.default_records else ""
        command = f"python -m experiments {objective.report_command}{default}"
        return [*words, f"Next: {command} (tables, pictures, one HTML page)"]

    def interruption(self) -> str:
        """What a person who ended the run is told."""
        if self.objective is None:
            return "interrupted"
        verb = "is" if self.kept == 1 else "are"
        return (
            f"interrupted: {_count(self.kept)} of this run {verb} kept in {self.path}; the same "
            f"command goes on from there"
        )

    def _kept_in(self) -> str:
        text = f"{_count(len(self.records))} in {self.path}"
        if not self.cached:
            return f"{text}, all measured now."
        dates = [date for date in self.cached if date]
        since = f" since {min(dates).replace('T', ' ').replace('Z', ' UTC')}" if dates else ""
        return f"{text}: {len(self.cached)} of them there before{since}; force=true measures again."


def _count(records: int) -> str:
    return f"{records} record{'' if records == 1 else 's'}"
