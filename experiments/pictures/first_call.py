"""The first call on a pattern against the kernel's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from experiments.bench.record import Record
from experiments.pictures import cases, scatter, ticks
from experiments.pictures.methods import GREY
from experiments.pictures.picture import Picture
from experiments.pictures.scatter import Plot, Point

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

NAME = "first_call"


def draw(objective: AnyObjective, records: Sequence[Record]) -> Picture:
    """Every method on every case of which a first call was timed."""
    title = "First call on an unseen pattern, against the kernel alone"
    timed = cases.timed(objective, records)
    points = [
        Point(r, 1e3 * r.median_ms, 1e3 * first) for r in timed if (first := r.median_first_call_ms)
    ]
    if not points:
        return Picture(NAME, title, "no record has the time of a first call")
    without = len(timed) - len(points)
    explanation = (
        "A mark is a method on a case: medians of the kernel and of the whole first call (wall "
        "time, with checks, planning, preparation and allocation). On the dashed line a first call "
        "takes no longer than the kernel."
        + (f" Not drawn: {without} records without a first call." if without else "")
    )
    return scatter.draw(
        objective, points,
        Plot(NAME, title, "kernel, us", "first call, us", _diagonal, explanation),
    )  # fmt: skip


def _diagonal(ax: Axes, points: Sequence[Point]) -> None:
    ends = min(p.x for p in points), max(p.x for p in points)
    ax.plot(ends, ends, color=GREY, linewidth=1.2, linestyle=(0, (5, 2)), zorder=1.5)
    ticks.plain(ax.xaxis)
    ticks.plain(ax.yaxis)
