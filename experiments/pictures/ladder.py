"""The picture of the GEMM ladder: each rung that was faster than all rungs before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.gemm.record import GemmRecord
from experiments.gemm.report import of_cublas
from experiments.pictures import cases
from experiments.pictures.methods import LOOKS
from experiments.pictures.picture import Picture, finish, marks, provenance

NAME, TITLE = "ladder", "The GEMM ladder: the rungs that are faster than all before them"
# How much faster than all rungs before it a rung must be to be drawn.
STEP = 1.03
_ROW = 0.19  # inches


def draw(sections: Sequence[Sequence[GemmRecord]], rank: Callable[[GemmRecord], int]) -> Picture:
    """A panel per device and arithmetic, at the shape of most rungs. rank: the ladder's order."""
    measured = [at_the_case_of_most_rungs(section) for section in sections]
    drawn = [sorted(own, key=rank) for own in measured if any(r.is_rung for r in own)]
    if not drawn:
        return Picture(NAME, TITLE, "no rung has a time")
    climbs = [_climb(own) for own in drawn]
    cublas = [_cublas(own) for own in drawn]
    heights = [len(c) + len(b) + 2.6 for c, b in zip(climbs, cublas, strict=True)]
    figure = Figure(figsize=(7.2, _ROW * sum(heights)))
    axes = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights, sharex=True)
    part = of_cublas([r for own in drawn for r in own])
    for ax, climb, base in zip(axes.flat, climbs, cublas, strict=True):
        _panel(ax, climb, base, part)
    axes.flat[-1].set_xlabel("TFLOP/s")
    rungs = sum(r.is_rung for own in drawn for r in own)
    caption = (
        f"{provenance([r for own in drawn for r in own])} Medians of verified runs, random normal "
        f"operands. On the right: TFLOP/s and the part of cuBLAS's in the same session; dashed is "
        f"cuBLAS in the session of most rungs. Of {rungs} rungs measured, the "
        f"{sum(map(len, climbs))} that were faster by {STEP - 1:.0%} or more than all rungs before "
        f"them are drawn; report.md has the others."
    )
    return finish(figure, NAME, TITLE, caption)


def at_the_case_of_most_rungs(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    """The records that have a time, of the case with most rungs, the largest square among equals.

    Rungs may be of several sessions: each has its own cuBLAS beside it.
    """
    of_case = cases.grouped([r for r in records if r.tflops], lambda r: r.case)

    def size(own: Sequence[GemmRecord]) -> tuple[int, bool, int]:
        r = own[0]
        return sum(r.is_rung for r in own), r.m == r.n == r.k, r.m * r.n * r.k

    return max(of_case.values(), key=size, default=[])


def _cublas(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    """A record of each cuBLAS, of the session of most of these records."""
    rungs_of = Counter(r.session for r in records)
    cublas = cases.grouped([r for r in records if r.is_cublas], lambda r: r.variant)
    return [max(own, key=lambda r: rungs_of[r.session]) for own in cublas.values()]


def _climb(records: Sequence[GemmRecord]) -> list[GemmRecord]:
    """The rungs that are faster than all before them by STEP; those of TF32 climb apart."""
    best: dict[str, float] = {}
    climb = []
    for r in sorted(records, key=lambda r: r.baseline):
        if r.is_rung and (r.tflops or 0.0) > STEP * best.get(r.baseline, 0.0):
            best[r.baseline] = r.tflops or 0.0
            climb.append(r)
    return climb


def _panel(
    ax: Axes,
    climb: Sequence[GemmRecord],
    cublas: Sequence[GemmRecord],
    part: Mapping[str, float],
) -> None:
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
        share = f" ({part[r.key]:.0%})" if r.is_rung and r.key in part else ""
        ax.annotate(
            f"{r.tflops:.3g}{share}", (1.01, place), xycoords=("axes fraction", "data"),
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
