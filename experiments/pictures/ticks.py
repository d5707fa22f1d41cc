"""Ticks of logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

# Ratios, where the whole axis is within a factor of four.
_FINE = (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4)


def at_values(axis: Axis, values: Sequence[float]) -> None:
    """Ticks of an x axis at these values, turned where they would overlap."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    room = 0.1 * math.log(values[-1] / values[0])
    if any(math.log(b / a) < room for a, b in pairwise(values)):
        axis.set_tick_params(rotation=60)


def of_ratios(axis: Axis) -> None:
    """Ticks such as 0.5x, 1x and 2x."""
    low, high = axis.get_view_interval()
    if high / low < 4:
        axis.set_major_locator(FixedLocator(_FINE))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def plain(axis: Axis) -> None:
    """Ticks such as 0.1, 1 and 1,000, as numbers."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 50 else (1,)))
    axis.set_major_formatter(FuncFormatter(_number))


def _number(value: float, _: int | None = None) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
