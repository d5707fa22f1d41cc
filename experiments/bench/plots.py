"""Plots of records. Importing this module needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bench.objective import AnyObjective
from experiments.bench.record import Record
from experiments.bench.table import speedups


@dataclass(frozen=True)
class Axis:
    """A quantity of a record that a plot has on its x axis."""

    label: str
    value_of: Callable[[Any], float]
    format_value: Callable[[float], str]


def draw_speedups(
    objective: AnyObjective,
    records: Sequence[Record],
    axes: dict[str, Axis],
    panel_of: Callable[[Any], tuple[str, ...]],
    output: Path,
) -> list[Path]:
    """speedup_over_NAME as PNG and SVG for each axis; returns what was written.

    A panel holds one place and what panel_of(record) says; every method has a line through the
    geometric means of its speed-ups over the baseline, and a span where other quantities vary.
    """
    written = []
    for name, axis in axes.items():
        figure = _speedup_figure(objective, records, axis, panel_of)
        written += save(figure, output, f"speedup_over_{name}")
    return written


def _speedup_figure(
    objective: AnyObjective,
    records: Sequence[Record],
    axis: Axis,
    panel_of: Callable[[Any], tuple[str, ...]],
) -> Figure:
    speedup = speedups(records, objective.baseline)
    timed = [r for r in records if r.key in speedup]
    panels = list(dict.fromkeys((r.place, panel_of(r)) for r in timed))
    places = {place for place, _ in panels}
    columns = min(3, max(1, len(panels)))
    rows = math.ceil(max(1, len(panels)) / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(4.6 * columns, 3.4 * rows), squeeze=False, layout="constrained"
    )
    for ax in grid.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, panel in zip(grid.flat, panels, strict=False):
        own = [r for r in timed if (r.place, panel_of(r)) == panel]
        ticks = sorted({axis.value_of(r) for r in own})
        for index, method in enumerate(objective.names()):
            mine = [r for r in own if r.name == method]
            points = [[speedup[r.key] for r in mine if axis.value_of(r) == x] for x in ticks]
            _line(ax, points, method, f"C{index}")
        title = ", ".join(panel[1])
        if len(places) > 1:
            title = f"{own[0].place_name}\n{title}"
        ax.set_title(title, fontsize=10)
        ax.set_xticks(range(len(ticks)), [axis.format_value(x) for x in ticks], fontsize=8)
        ax.set_xlabel(axis.label)
        ax.set_ylabel(f"speed-up over {objective.baseline}")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
        ax.yaxis.set_minor_formatter(lambda y, _: f"{y:g}x" if f"{y:.0e}"[0] in "25" else "")
        ax.grid(alpha=0.3, which="both")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _line(ax: Axes, ratios: Sequence[Sequence[float]], method: str, color: str) -> None:
    """The geometric mean of the ratios at each tick, and their span."""
    points = [
        (position, np.exp(np.mean(np.log(own))), min(own), max(own))
        for position, own in enumerate(ratios)
        if own
    ]
    if not points:
        return
    x, mean, low, high = zip(*points, strict=True)
    ax.plot(x, mean, marker="o", markersize=4, color=color, label=method)
    ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)


@dataclass(frozen=True)
class Bars:
    """A panel of horizontal bars: (name, value, color) from top to bottom."""

    title: str
    label: str
    bars: Sequence[tuple[str, float, str]]


def draw_bars(panels: Sequence[Bars], output: Path, name: str) -> list[Path]:
    """The panels below each other as PNG and SVG; returns what was written."""
    heights = [len(panel.bars) + 3 for panel in panels]
    figure, grid = plt.subplots(
        len(panels), 1, figsize=(9, 0.21 * sum(heights)), squeeze=False,
        height_ratios=heights, layout="constrained",
    )  # fmt: skip
    for ax, panel in zip(grid.flat, panels, strict=True):
        names, values, colors = zip(*panel.bars, strict=True)
        # A tuple of two would be one color and its alpha.
        drawn = ax.barh(range(len(names)), values, color=list(colors))
        ax.bar_label(drawn, [f"{value:.1f}" for value in values], fontsize=6, padding=2)
        ax.set_yticks(range(len(names)), names, fontsize=6)
        ax.invert_yaxis()
        ax.margins(y=0.01)
        ax.set_xlabel(panel.label, fontsize=8)
        ax.set_title(panel.title, fontsize=9)
    return save(figure, output, name)


def save(figure: Figure, output: Path, name: str) -> list[Path]:
    """Write PNG and SVG without a date: the same records give the same bytes."""
    paths = [output / f"{name}.png", output / f"{name}.svg"]
    figure.savefig(paths[0], dpi=120, bbox_inches="tight")
    with matplotlib.rc_context({"svg.hashsalt": name}):  # else ids differ from run to run
        figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return paths
