"""A scatter of cases: a panel for each place and dtype, a mark for each method and case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments.pictures import cases
from experiments.pictures.picture import Picture, finish, grid, handles, marks, provenance

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


@dataclass(frozen=True)
class Point:
    """Where a record's mark is; both coordinates are above 0, on logarithmic axes."""

    record: Any
    x: float
    y: float


@dataclass(frozen=True)
class Plot:
    """What a scatter shows. decorate: draws the lines and the ticks of a panel.

    legend: the entries of lines. explanation: the caption, but for provenance.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    decorate: Callable[[Axes, Sequence[Point]], None]
    explanation: str
    legend: Sequence[Line2D] = ()


def draw(objective: AnyObjective, points: Sequence[Point], plot: Plot) -> Picture:
    """The picture of these points, of which there is at least one."""
    look = cases.looks_of(objective, {p.record.name for p in points})
    panels = cases.grouped(points, lambda p: (p.record.place_name, p.record.dtype))
    figure, axes = grid(len(panels))
    one_place = cases.places(p.record for p in points) == 1
    for ax, ((place, dtype), own) in zip(axes, panels.items(), strict=True):
        ax.set_xscale("log")
        ax.set_yscale("log")
        for name, own_look in look.items():
            mine = [p for p in own if p.record.name == name]
            style = marks(own_look) | {"markersize": 4, "markeredgewidth": 0.8}
            ax.plot([p.x for p in mine], [p.y for p in mine], **style, alpha=0.85, zorder=2.5)
        ax.set_title(dtype if one_place else f"{place}\n{dtype}")
        ax.set_xlabel(plot.x_label)
        plot.decorate(ax, own)
        ax.minorticks_off()
    axes[0].set_ylabel(plot.y_label)
    caption = f"{provenance([p.record for p in points])} {plot.explanation}"
    return finish(figure, plot.name, plot.title, caption, [*handles(look), *plot.legend])


def line(label: str, style: Any, color: str = "black") -> Line2D:
    """The legend's entry of a line."""
    return Line2D([], [], color=color, linestyle=style, linewidth=1.2, label=label)
