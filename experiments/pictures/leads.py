"""The lead of ours over the fastest peer: a bar for every case, or a row for every class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bench.record import Record
from experiments.pictures import cases, classes, ticks
from experiments.pictures.cases import Pair
from experiments.pictures.methods import BLUE, VERMILLION
from experiments.pictures.picture import Picture, finish, line_at_one, provenance

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

NAME = "speedup"
# With more rows than this, cases are gathered by class.
MOST_ROWS = 24
_ROW = 0.3  # inches


def draw(objective: AnyObjective, records: Sequence[Record], reference: str = "") -> Picture:
    """The reference's time over that of ours, for every case that has both."""
    pairs = cases.leads(objective, records, reference)
    title = f"Speed-up of {objective.ours} over {reference or cases.BEST_PEER}"
    if not pairs:
        return Picture(NAME, title, f"no case has a time of {objective.ours} and of another method")
    rows = cases.grouped(pairs, lambda p: _row(p.record))
    if len(rows) > MOST_ROWS or any(p.record.family for p in pairs):
        return classes.draw(objective, records, pairs, reference, NAME, title)
    dtypes = list(dict.fromkeys(p.record.dtype for p in pairs))
    figure = Figure(figsize=(2.0 + 3.1 * len(dtypes), _ROW * len(rows) + 0.7))
    axes = figure.subplots(1, len(dtypes), squeeze=False, sharey=True).flat
    low, high = (pick(1.0, *(p.ratio for p in pairs)) for pick in (min, max))
    ends = 0.9 * low, 0.9 * low * max(3.0, (high / low) ** 1.7)  # with room for the names
    for ax, dtype in zip(axes, dtypes, strict=True):
        own = {
            index: p
            for index, row in enumerate(rows.values())
            for p in row
            if p.record.dtype == dtype
        }
        _panel(ax, own, len(rows), ends, objective)
        ax.set_title(dtype)
    first = [row[0].record for row in rows.values()]
    several = cases.places(first) > 1
    labels = [_label(r, objective.inner, several) for r in first]
    figure.axes[0].set_yticks(range(len(rows)), labels, fontsize=7.5)
    marked = any(p.reference.name in objective.reimplemented for p in pairs)
    ours, against = objective.ours, reference or cases.BEST_PEER
    caption = (
        f"{provenance([p.record for p in pairs])} Median kernel time of {against}, which is named, "
        f"over that of {ours}; hatched: {ours} is slower. Every method is verified against "
        f"float64, then timed in turns with the others on the same data; preparation and first "
        f"call are not in it." + (" * re-implemented by us from a description." if marked else "")
    )
    return finish(figure, NAME, title, caption)


def _row(r: Any) -> tuple[object, ...]:
    """What cases of one row have in common: all but the dtype."""
    return (r.place, r.matrix, r.m, r.n, r.nnz, r.k, r.heads, r.seed)


def _label(r: Any, inner: str, with_place: bool) -> str:
    heads = f", {r.heads} heads" if r.heads > 1 else ""
    place = f"{r.place_name}\n" if with_place else ""
    return f"{place}{r.matrix}, {inner} = {r.k}{heads}\n{r.m:,} x {r.n:,}, nnz {r.nnz:,}"


def _panel(
    ax: Axes, pairs: dict[int, Pair], rows: int, ends: tuple[float, float], objective: AnyObjective
) -> None:
    ax.set_xscale("log", base=2)
    line_at_one(ax, horizontal=False)
    for row, p in pairs.items():
        lost = p.ratio < 1
        ax.barh(
            row, p.ratio - 1, left=1, height=0.62, color="white" if lost else BLUE,
            edgecolor=VERMILLION if lost else BLUE, hatch="////" if lost else None, zorder=2.5,
        )  # fmt: skip
        star = "*" if p.reference.name in objective.reimplemented else ""
        ax.annotate(
            f"{p.ratio:.2f}x  {p.reference.name}{star}", (max(1, p.ratio), row), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=7.5,
        )  # fmt: skip
    for row in set(range(rows)) - pairs.keys():
        ax.annotate(
            "not measured", (1, row), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=7.5, color="#707070",
        )  # fmt: skip
    ax.set_xlim(*ends)
    ax.set_ylim(rows - 0.4, -0.6)
    ax.set_xlabel("reference time / our time")
    ax.grid(axis="y", visible=False)
    ticks.of_ratios(ax.xaxis)
