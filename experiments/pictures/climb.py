"""The picture of the whole climb: every rung's part of cuBLAS's speed, first to last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.gemm.record import GemmRecord
from experiments.gemm.report import of_cublas
from experiments.pictures import cases
from experiments.pictures.ladder import at_the_case_of_most_rungs
from experiments.pictures.methods import FAMILIES, GREY
from experiments.pictures.picture import Picture, finish, handles, line_at_one, marks, provenance

NAME, TITLE = "climb", "The whole climb: every rung's part of cuBLAS's speed"
_ARITHMETIC = ("float16", "fp32")
_FAMILY_OF = {"hgemm": "CUDA cores", "wmma": "WMMA", "mma": "mma.sync", "wgmma": "wgmma"}
_ROW = 0.135  # inches


def draw(sections: Sequence[Sequence[GemmRecord]], rank: Callable[[GemmRecord], int]) -> Picture:
    """A panel per device: float16 with sums in float32, both layouts of B. rank: ladder's order."""
    halves = [own for own in sections if own[0].arithmetic[:2] == _ARITHMETIC]
    records = [r for own in halves for r in at_the_case_of_most_rungs(own)]
    part = of_cublas(records)
    rungs = sorted((r for r in records if r.is_rung and r.key in part), key=rank)
    if not rungs:
        return Picture(NAME, TITLE, "no rung of float16 with sums in fp32 has a time")
    panels = list(cases.grouped(rungs, lambda r: r.place).values())
    names = [list(dict.fromkeys(r.variant for r in own)) for own in panels]
    heights = [len(own) + 3 for own in names]
    figure = Figure(figsize=(7.2, _ROW * sum(heights)))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True)
    for ax, own, rows in zip(axes.flat, panels, names, strict=True):
        _panel(ax, own, rows, part)
    axes.flat[-1].set_xlabel("part of cuBLAS's speed in the same session")
    shapes = ", ".join(dict.fromkeys(r.shape for r in rungs))
    caption = (
        f"{provenance(rungs)} Medians of verified runs at {shapes}, float16 with sums in float32, "
        f"random normal operands. Full marks: B in rows of k; hollow marks: in rows of n. The line "
        f"joins the rungs with B in rows of k that are faster than all before them."
    )
    shown = {_family(r) for r in rungs}
    return finish(
        figure, NAME, TITLE, caption, handles({f: FAMILIES[f] for f in FAMILIES if f in shown})
    )


def _panel(
    ax: Axes, rungs: Sequence[GemmRecord], rows: Sequence[str], part: Mapping[str, float]
) -> None:
    """A row for each rung, a mark for each layout of B; the percentage of those that climb."""
    climb: list[tuple[float, int]] = []
    for r in rungs:
        look, share, row = FAMILIES[_family(r)], part[r.key], rows.index(r.variant)
        ax.plot(share, row, **marks(replace(look, hollow=r.b_rows == "n")))
        if r.b_rows == "k" and share > max(climb, default=(0.0, 0))[0]:
            climb.append((share, row))
    ax.plot([x for x, _ in climb], [y for _, y in climb], color=GREY, linewidth=0.8, zorder=1)
    for share, row in climb:
        ax.annotate(
            f"{share:.0%}", (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=6
        )
    line_at_one(ax, horizontal=False)
    ax.set_yticks(range(len(rows)), rows, fontsize=6)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", visible=False)


def _family(r: GemmRecord) -> str:
    return _FAMILY_OF.get(r.variant.partition("_")[0], "others")
