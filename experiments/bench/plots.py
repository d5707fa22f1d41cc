"""Plots of speed-up over the published baseline. Importing this module needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bench.record import Record
from experiments.bench.table import shown_names, speedups
from experiments.sddmm import methods
from experiments.sddmm.methods import BASELINE


def draw(records: list[Record], output: Path) -> list[Path]:
    """speedup_over_k and speedup_over_sparsity as PNG and SVG; returns what was written."""
    axes: dict[str, tuple[str, Callable[[Record], float], Callable[[float], str]]] = {
        "k": ("K", lambda r: r.k, lambda k: f"{k:g}"),
        "sparsity": ("sparsity", lambda r: r.sparsity, lambda s: f"{round(s * 100, 4):g}%"),
    }
    written = []
    for name, (label, value_of, format_value) in axes.items():
        figure = _figure(records, label, value_of, format_value)
        written += save(figure, output, f"speedup_over_{name}")
    return written


def _figure(
    records: list[Record],
    label: str,
    value_of: Callable[[Record], float],
    format_value: Callable[[float], str],
) -> Figure:
    """A panel per place, matrix and dtype: each method's geometric mean over the other axis."""
    speedup = speedups(records)
    names = shown_names(records)

    def panel_of(r: Record) -> tuple[tuple[str, int | None], str, str]:
        return r.place, names[r.case], r.dtype

    panels = list(dict.fromkeys(panel_of(r) for r in records if r.key in speedup))
    places = {place for place, _, _ in panels}
    columns = min(3, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(4.6 * columns, 3.4 * rows), squeeze=False, layout="constrained"
    )
    for ax in grid.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, panel in zip(grid.flat, panels, strict=False):
        own = [r for r in records if panel_of(r) == panel and r.key in speedup]
        ticks = sorted({value_of(r) for r in own})
        for index, method in enumerate(methods.names()):
            _line(
                ax, [r for r in own if r.method == method], method, index, ticks, value_of, speedup
            )
        title = ", ".join(panel[1:])
        if len(places) > 1:
            title = f"{own[0].place_name}\n{title}"
        ax.set_title(title, fontsize=10)
        ax.set_xticks(range(len(ticks)), [format_value(x) for x in ticks], fontsize=8)
        ax.set_xlabel(label)
        ax.set_ylabel(f"speed-up over {BASELINE}")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
        ax.yaxis.set_minor_formatter(lambda y, _: f"{y:g}x" if f"{y:.0e}"[0] in "25" else "")
        ax.grid(alpha=0.3, which="both")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _line(
    ax: Axes,
    own: list[Record],
    method: str,
    index: int,
    ticks: list[float],
    value_of: Callable[[Record], float],
    speedup: dict[str, float],
) -> None:
    """Geometric mean at each tick, and the span where the other axis varies."""
    points = []
    for position, tick in enumerate(ticks):
        found = [speedup[r.key] for r in own if value_of(r) == tick]
        if found:
            points.append((position, np.exp(np.mean(np.log(found))), min(found), max(found)))
    if not points:
        return
    x, mean, low, high = zip(*points, strict=True)
    color = f"C{index}"
    ax.plot(x, mean, marker="o", markersize=4, color=color, label=method)
    ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)


def save(figure: Figure, output: Path, name: str) -> list[Path]:
    """As PNG and SVG, without a date: the same records give the same bytes."""
    paths = [output / f"{name}.png", output / f"{name}.svg"]
    figure.savefig(paths[0], dpi=120, bbox_inches="tight")
    with matplotlib.rc_context({"svg.hashsalt": name}):  # else ids differ from run to run
        figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return paths
