"""Calls until a preparation pays: its time over the time that each call then saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from experiments.bench.record import Record
from experiments.pictures import cases, scatter, ticks
from experiments.pictures.methods import GREY
from experiments.pictures.picture import Picture
from experiments.pictures.scatter import Plot, Point

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

NAME = "calls_until_preparation_pays"


def draw(objective: AnyObjective, records: Sequence[Record], reference: str = "") -> Picture:
    """Every method against `reference`, or against the fastest of the other peers of its case."""
    against = reference or "the fastest of the other peers"
    title = f"Calls until a preparation pays, against {reference or 'the fastest other peer'}"
    timed = cases.timed(objective, records)
    of_case = cases.grouped(timed, lambda r: r.case)
    needed = [
        (r, calls_until_paid(r, other))
        for r in timed
        if r.nnz
        and r.prepare_ms is not None
        and (other := _other(objective, r, of_case[r.case], reference)) is not None
    ]
    if not needed:
        return Picture(NAME, title, "no case has a preparation and the time of another method")
    finite = [count for _, count in needed if count < math.inf]
    never = 10.0 ** (math.ceil(math.log10(max(finite, default=10))) + 0.7)
    points = [Point(r, r.nnz, min(count, never)) for r, count in needed]

    def decorate(ax: Axes, _: Sequence[Point]) -> None:
        ax.axhline(never / 10**0.35, color=GREY, linewidth=0.8)
        ax.set_ylim(0.7, never * 2)
        ticks.plain(ax.yaxis)
        places = [10.0**power for power in range(math.ceil(math.log10(never)))]
        ax.set_yticks([*places, never], [*(f"{place:,.0f}" for place in places), "never"])

    lost = sum(count == math.inf for _, count in needed)
    without = sum(r.prepare_ms is None for r in timed)
    explanation = (
        f"A mark is a method on a case: the time of its preparation over what each call then "
        f"saves against {against}, whose own preparation does not count; 1: from the first call "
        f"on. Never ({lost} of {len(needed)}): it is not faster at all."
        + (f" Not drawn: {without} records whose preparation was not timed." if without else "")
    )
    return scatter.draw(
        objective, points, Plot(NAME, title, "nonzeros (nnz)", "calls", decorate, explanation)
    )


def calls_until_paid(record: Any, other: Any) -> float:
    """The first number of calls after which preparing has cost no more time; may be infinite."""
    saved_ms = other.median_ms - record.median_ms
    return max(1.0, math.ceil(record.prepare_ms / saved_ms)) if saved_ms > 0 else math.inf


def _other(
    objective: AnyObjective, record: Record, of_case: Sequence[Record], reference: str
) -> Record | None:
    """The fastest record of the case that the method is compared with, best of its session."""
    others = [
        r
        for r in of_case
        if r.name != record.name
        and (r.name == reference if reference else objective.role(r) == "peer")
    ]
    own_session = [r for r in others if r.session == record.session]
    return min(own_session or others, key=lambda r: (r.median_ms, r.name), default=None)
