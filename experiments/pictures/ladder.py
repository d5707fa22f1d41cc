"""The picture of the GEMM ladder: each rung that was faster than all rungs before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.gemm.record import GemmRecord
from experiments.pictures import cases
from experiments.pictures.methods import LOOKS
from experiments.pictures.picture import Picture, finish, marks, provenance

NAME, TITLE = "ladder", "The GEMM ladder: the rungs that are faster than all before them"
# How much faster than all rungs before it a rung must be to be drawn.
STEP = 1.03
_ROW = 0.19  # inches


def draw(sections: Sequence[Sequence[GemmRecord]], rank: Callable[[GemmRecord], int]) -> Picture:
    """A panel per device and arithmetic, at its largest square shape. rank: the ladder's order."""
    measured = [_largest_square(section) for section in sections]
    drawn = [sorted(own, key=rank) for own in measured if any(not r.is_cublas for r in own)]
    if not drawn:
        return Picture(NAME, TITLE, "no rung has a time")
    climbs = [_climb(own) for own in drawn]
    cublas = [[r for r in own if r.is_cublas] for own in drawn]
    heights = [len(c) + len(b) + 2.6 for c, b in zip(climbs, cublas, strict=True)]
    figure = Figure(figsize=(7.2, _ROW * sum(heights)))
    axes = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights, sharex=True)
    for ax, climb, base in zip(axes.flat, climbs, cublas, strict=True):
        _panel(ax, climb, base)
    axes.flat[-1].set_xlabel("TFLOP/s")
    rungs = sum(not r.is_cublas for own in drawn for r in own)
    caption = (
        f"{provenance([r for own in drawn for r in own])} Medians of verified runs, random normal "
        f"operands. On the right: TFLOP/s and the part of cuBLAS's (dashed) in the same session. "
        f"Of {rungs} rungs measured, the {sum(map(len, climbs))} that were faster by "
        f"{STEP - 1:.0%} or more than all rungs before them are drawn; report.md has the others."
    )
    return finish(figure, NAME, TITLE, caption)


def _largest_square(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    """The records that have a time, of the session of the largest square shape."""
    largest = max(records, key=lambda r: (r.m == r.n == r.k, r.m * r.n * r.k))
    return [
        r for r in records if r.case == largest.case and r.session == largest.session and r.tflops
    ]


def _climb(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    """The rungs that are faster than all before them by STEP; those of TF32 climb apart."""
    best: dict[str, float] = {}
    climb = []
    for r in sorted(records, key=lambda r: r.baseline):
        if not r.is_cublas and (r.tflops or 0.0) > STEP * best.get(r.baseline, 0.0):
            best[r.baseline] = r.tflops or 0.0
            climb.append(r)
    return climb


def _panel(ax: Axes, climb: Sequence[GemmRecord], cublas: Sequence[GemmRecord]) -> None:
    """A row for each rung, then one for each cuBLAS, whose line crosses the rows of its rungs."""
    first = climb[0]
    ax.set_title(
        f"{first.shape}, {first.dtype}, sums in {first.accumulate}, B in rows of {first.b_rows}",
        loc="left",
    )
    rows = [*climb, *cublas]
    base = {r.variant: r.tflops or 0.0 for r in cublas}
    for baseline, own in cases.grouped(enumerate(climb), lambda row: row[1].baseline).items():
        speeds, places = [r.tflops for _, r in own], [place for place, _ in own]
        ax.plot(speeds, places, **marks(LOOKS["ours"], line="-"))
        if baseline in base:
            ends = [places[0] - 0.5, [r.variant for r in rows].index(baseline)]
            ax.plot([base[baseline]] * 2, ends, color=LOOKS[baseline].color, linestyle=(0, (4, 2)))
    for place, r in enumerate(rows):
        if r.is_cublas:
            ax.plot(r.tflops, place, **marks(LOOKS[r.variant]))
        tflops, of = r.tflops or 0.0, None if r.is_cublas else base.get(r.baseline)
        share = f" ({tflops / of:.0%})" if of else ""
        ax.annotate(
            f"{tflops:.3g}{share}", (1.01, place), xycoords=("axes fraction", "data"),
            va="center", fontsize=7,
        )  # fmt: skip
    ax.set_yticks(range(len(rows)), [r.variant for r in rows], fontsize=7)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.tick_params(labelbottom=True)
    ax.grid(axis="y", visible=False)
