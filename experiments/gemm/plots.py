"""The ladder drawn: speed of each rung at each section's largest square shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from experiments.bench.plots import save
from experiments.gemm.record import GemmRecord


def draw(sections: Sequence[Sequence[GemmRecord]], output: Path) -> list[Path]:
    """ladder.png and ladder.svg; returns what was written."""
    panels = [_largest_square(section) for section in sections]
    heights = [len(panel) + 3 for panel in panels]
    figure, grid = plt.subplots(
        len(panels), 1, figsize=(9, 0.21 * sum(heights)), squeeze=False,
        height_ratios=heights, layout="constrained",
    )  # fmt: skip
    for ax, panel in zip(grid.flat, panels, strict=True):
        _panel(ax, panel)
    return save(figure, output, "ladder")


def _largest_square(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    largest = max(records, key=lambda r: (r.m == r.n == r.k, r.m * r.n * r.k))
    return [r for r in records if r.session == largest.session and r.tflops]


def _panel(ax: Axes, records: Sequence[GemmRecord]) -> None:
    names, speeds = [r.variant for r in records], [r.tflops or 0.0 for r in records]
    colors = ["0.6" if r.is_cublas else "C0" for r in records]
    bars = ax.barh(range(len(names)), speeds, color=colors)
    ax.bar_label(bars, [f"{speed:.1f}" for speed in speeds], fontsize=6, padding=2)
    ax.set_yticks(range(len(names)), names, fontsize=6)
    ax.invert_yaxis()
    ax.margins(y=0.01)
    ax.set_xlabel("TFLOP/s", fontsize=8)
    first = records[0]
    device = first.environment.get("device", "unknown device")
    ax.set_title(
        f"{device}, {first.shape}, {first.dtype}, sums in {first.accumulate}, "
        f"B in rows of {first.b_rows}",
        fontsize=9,
    )
