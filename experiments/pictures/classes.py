"""A study in one picture: a row for every class of patterns, a mark for every case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.bench.record import Record
from experiments.pictures import cases, ticks
from experiments.pictures.cases import Pair
from experiments.pictures.methods import Look
from experiments.pictures.picture import (
    Picture,
    finish,
    handles,
    line_at_one,
    marks,
    provenance,
)

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

_FIRST = "first call: reference time / ours"
_REGRET = "regret: ours / our fastest kernel"
_ROW = 0.26  # inches
# A classless study's rows are its matrices; of more than these the ones where ours leads least.
MOST_ROWS = 60


@dataclass(frozen=True)
class Ratio:
    """A ratio on one case, and the method whose look its mark has."""

    row: str
    value: float
    method: str


def draw(
    objective: AnyObjective,
    records: Sequence[Record],
    pairs: Sequence[Pair],
    reference: str,
    name: str,
    title: str,
) -> Picture:
    """Panels side by side: kernels, first calls and, where kernels were forced, regret."""
    of_case = cases.grouped(records, lambda r: r.case)
    panels = {
        "kernel: reference time / ours": [
            Ratio(_row(p.record), p.ratio, p.reference.name) for p in pairs
        ],
        _FIRST: [
            ratio
            for p in pairs
            if (ratio := _first_call(objective, p.record, of_case[p.record.case], reference))
        ],
        _REGRET: [
            ratio for p in pairs if (ratio := _regret(objective, p.record, of_case[p.record.case]))
        ],
    }
    panels = {label: ratios for label, ratios in panels.items() if ratios}
    by_row = cases.grouped(next(iter(panels.values())), lambda ratio: ratio.row)
    rows = list(by_row)
    if len(rows) > MOST_ROWS:
        mean = {row: cases.geometric_mean([r.value for r in by_row[row]]) for row in rows}
        kept = set(sorted(rows, key=mean.__getitem__)[:MOST_ROWS])
        rows = [row for row in rows if row in kept]
    look = cases.looks_of(objective, {r.method for own in panels.values() for r in own})
    width = 1.4 + 2.9 * len(panels)
    figure = Figure(figsize=(max(6.2, width), _ROW * len(rows) + 0.6))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).flat
    for ax, (label, ratios) in zip(axes, panels.items(), strict=True):
        _panel(ax, label, ratios, rows, look)
    figure.axes[0].set_yticks(range(len(rows)), [f"{row} ({len(by_row[row])})" for row in rows])
    mean_mark = Line2D(
        [], [], color="black", marker="|", markersize=10, linestyle="none", label="geometric mean"
    )
    is_cut = len(by_row) > len(rows)
    left_out = f" Of {len(by_row)} rows the {len(rows)} where ours leads least." if is_cut else ""
    missing = "" if _FIRST in panels else " First calls were not recorded."
    regret = (
        "; in the panel of regret it is slower than the fastest of our kernels"
        if _REGRET in panels
        else ""
    )
    caption = (
        f"{provenance([p.record for p in pairs])} A mark is a case; its look is that of the "
        f"method that ours is compared with. Right of the line at 1 ours is faster{regret}. In "
        f"brackets: the number of cases, whose marks are set apart upwards. Medians of verified "
        f"runs.{missing}{left_out}"
    )
    return finish(figure, name, title, caption, [*handles(look), mean_mark])


def _first_call(
    objective: AnyObjective, ours: Any, of_case: Sequence[Any], reference: str
) -> Ratio | None:
    """The least first call of the methods that ours is compared with over that of ours."""
    others = [
        (first, r.name)
        for r in of_case
        if cases.refers(objective, r, reference) and (first := r.median_first_call_ms)
    ]
    own = ours.median_first_call_ms
    if not own or not others:
        return None
    least, name = min(others)
    return Ratio(_row(ours), least / own, name)


def _regret(objective: AnyObjective, ours: Any, of_case: Sequence[Any]) -> Ratio | None:
    """The time of the planner's choice over the fastest of our kernels, each called by its name."""
    kernels = [r.median_ms for r in of_case if objective.role(r) == "kernel" and r.median_ms]
    if not kernels:
        return None
    return Ratio(_row(ours), ours.median_ms / min(ours.median_ms, *kernels), ours.name)


def _row(r: Any) -> str:
    return str(r.family or r.matrix)


def _panel(
    ax: Axes, label: str, ratios: Sequence[Ratio], rows: Sequence[str], look: dict[str, Look]
) -> None:
    ax.set_xscale("log")
    line_at_one(ax, horizontal=False)
    of_row = cases.grouped(sorted(ratios, key=lambda r: r.value), lambda r: r.row)
    places = {
        id(r): index + (0.13 * (place % 5 - 2) if len(of_row[row]) > 1 else 0.0)
        for index, row in enumerate(rows)
        for place, r in enumerate(of_row.get(row, ()))
    }
    for method, own_look in look.items():
        own = [r for r in ratios if r.method == method and id(r) in places]
        style = marks(own_look) | {"markersize": 4, "markeredgewidth": 0.8}
        heights = [places[id(r)] for r in own]
        ax.plot([r.value for r in own], heights, **style, alpha=0.85, zorder=2.5)
    means = [
        (cases.geometric_mean([r.value for r in of_row[row]]), index)
        for index, row in enumerate(rows)
        if row in of_row
    ]
    ax.plot(
        *zip(*means, strict=True),
        color="black",
        linestyle="none",
        marker="|",
        markersize=13,
        markeredgewidth=1.5,
        zorder=3,
    )
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(label)
    ticks.of_ratios(ax.xaxis)
