"""Useful GFLOP/s over the density, with the limits of gathering rows and of dense tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from experiments.bench.record import Record
from experiments.pictures import cases, scatter, ticks
from experiments.pictures.picture import Picture
from experiments.pictures.scatter import Plot, Point
from sddmm.backends.cuda.device_model import (
    H200_L2_BYTES,
    H200_MEASUREMENT,
    H200_MEMORY_BYTES,
)

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

NAME = "roofline"
_MODELLED = "H200"  # the device of the rates above
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_L2, _MEMORY, _TENSOR = "-", (0, (5, 2)), (0, (1, 1.2))


def draw(objective: AnyObjective, records: Sequence[Record]) -> Picture:
    """The picture of the methods that compute the whole objective."""
    title = "Useful GFLOP/s over density, with the limits of each strategy"
    timed = cases.timed(objective, records)
    points = [
        Point(r, cases.density(r), r.gflops * objective.products)
        for r in timed
        if r.gflops and cases.density(r)
    ]
    if not points:
        return Picture(NAME, title, "no record has a time and a nonzero")
    inner, products = objective.inner, objective.products
    product = "the product" if products == 1 else f"each of the {products} products"
    limits = (
        f"Gathering: {product} reads a row of {inner} elements of the panel's dtype per nonzero, "
        f"out of L2 at {H200_L2_BYTES / 1e12:g} TB/s or out of memory at "
        f"{H200_MEMORY_BYTES / 1e12:g} TB/s. Tensor cores, half types only: all entries are "
        f"computed, at the {H200_MEASUREMENT.mm_flops / 1e12:g} TFLOP/s of a dense product. The "
        f"rates are those of the package's device model of an NVIDIA H200. A limit is that of one "
        f"strategy on a uniform pattern, not the device's: kernels that keep rows in registers or "
        f"shared memory, or skip empty tiles, pass it."
    )
    is_modelled = any(_MODELLED in p.record.place_name for p in points)
    if not is_modelled:
        limits = "No limits: the package's device model has rates of an NVIDIA H200 only."
    count = f"{2 * products} nnz {inner} heads" if products > 1 else f"2 nnz {inner} heads"
    explanation = f"A mark is a method on a case: {count} over the median time. {limits}"
    legend = [
        scatter.line("gather, L2", _L2),
        scatter.line("gather, memory", _MEMORY),
        scatter.line("tensor cores", _TENSOR),
    ]
    return scatter.draw(
        objective, points,
        Plot(
            NAME, title, "density (nnz / entries)", "useful GFLOP/s", _limits,
            " ".join(filter(None, (explanation, cases.left_out(objective, records)))),
            legend if is_modelled else (),
        ),
    )  # fmt: skip


def gather_gflops(dtype: str, bytes_per_second: float) -> float:
    """The GFLOP/s of two operations for every element of a row that is read."""
    return 2e-9 * bytes_per_second / _BYTES[dtype]


def tensor_gflops(density: float) -> float:
    """The useful GFLOP/s of dense tiles in half types, of which this part is nonzeros."""
    return 1e-9 * H200_MEASUREMENT.mm_flops * density


def _limits(ax: Axes, points: Sequence[Point]) -> None:
    first = points[0].record
    if _MODELLED in first.place_name and first.dtype in _BYTES:
        low, high = min(p.x for p in points), max(p.x for p in points)
        black = {"color": "black", "linewidth": 1.2, "zorder": 2}
        for rate, style in ((H200_L2_BYTES, _L2), (H200_MEMORY_BYTES, _MEMORY)):
            ax.axhline(gather_gflops(first.dtype, rate), linestyle=style, **black)
        if _BYTES[first.dtype] == 2:
            floor = min(p.y for p in points)
            start = max(low, floor / tensor_gflops(1.0))
            densities = np.array([start, max(high, 2 * start)])
            ax.plot(densities, tensor_gflops(densities), linestyle=_TENSOR, **black)
    ticks.plain(ax.yaxis)
