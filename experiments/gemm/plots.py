"""Draws the ladder: the speed of each rung at each section's largest square shape.

Importing this module needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.bench.plots import Bars, draw_bars
from experiments.gemm.record import GemmRecord


def draw(sections: Sequence[Sequence[GemmRecord]], output: Path) -> list[Path]:
    """ladder.png and ladder.svg; returns what was written."""
    return draw_bars([_panel(_largest_square(s)) for s in sections], output, "ladder")


def _largest_square(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    largest = max(records, key=lambda r: (r.m == r.n == r.k, r.m * r.n * r.k))
    return [r for r in records if r.session == largest.session and r.tflops]


def _panel(records: Sequence[GemmRecord]) -> Bars:
    first = records[0]
    device = first.environment.get("device", "unknown device")
    title = (
        f"{device}, {first.shape}, {first.dtype}, sums in {first.accumulate}, "
        f"B in rows of {first.b_rows}"
    )
    bars = [(r.variant, r.tflops or 0.0, "0.6" if r.is_cublas else "C0") for r in records]
    return Bars(title, "TFLOP/s", bars)
