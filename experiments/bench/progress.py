"""Shows how far a run is: a bar on a terminal, a line per case elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column


@dataclass
class Clock:
    """How long measured cases took, from which follows the time that is left.

    cases: how many a run has, None where that is unknown. Cases out of the store take no time, and
    how many of those are left is unknown: the time that is left is an upper bound.
    """

    cases: int | None = None
    begun: int = 0
    measured: int = 0
    measured_s: float = 0.0

    def left(self, part: float = 0.0, part_s: float = 0.0) -> str:
        """The time left in words. part: what is done of the case at hand; part_s: since when."""
        done, spent_s = self.measured + part, self.measured_s + part_s
        if self.cases is None or done < 0.05:
            return ""
        left_s = spent_s / done * (self.cases - self.begun + 1 - part)
        return f"about {words(left_s)} left"


@dataclass
class CaseProgress:
    """The progress of one case; to be closed.

    Nothing is drawn but where a step begins: a bar that moves by itself would take the time that
    is measured.
    """

    clock: Clock
    label: str
    step: str = ""
    _begin: float = field(default_factory=time.monotonic)
    _bar: Progress | None = None

    def __post_init__(self) -> None:
        self.clock.begun += 1
        if not is_watched():
            if self.clock.cases != 1:  # whose table says what it is
                title = f"{self._number()}: {self.label}"
                parts = filter(None, [title, self.clock.left()])
                print(", ".join(parts), file=sys.stderr, flush=True)
            return
        self._bar = Progress(
            TextColumn("{task.fields[title]}"),
            BarColumn(bar_width=12, style="bright_black", complete_style="green"),
            TextColumn("{task.description}", table_column=_shrinking()),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("", total=1.0, title=self._number(), left="")
        self._bar.start()

    def say(self, step: str, part: float) -> None:
        """Show a step. part: the fraction of the case that is done before it."""
        if self._bar is not None:
            left = self.clock.left(part, time.monotonic() - self._begin)
            text = f"{step}: {self.label}"
            self._bar.update(self._task, completed=part, description=text, left=left)
            self._bar.refresh()

    def close(self, measured: bool) -> None:
        """Take the bar away. measured: the case took the time that its like will take."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if measured:
            self.clock.measured += 1
            self.clock.measured_s += time.monotonic() - self._begin

    def _number(self) -> str:
        of = f" of {self.clock.cases}" if self.clock.cases is not None else ""
        return f"case {self.clock.begun}{of}"


def is_watched() -> bool:
    """Whether a person looks at a terminal that shows all output; a pipe gets whole lines."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def words(seconds: float) -> str:
    """A duration to the precision of an estimate."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _shrinking() -> Column:
    return Column(ratio=1, no_wrap=True, overflow="ellipsis")
