"""The picture of several ranks: efficiency over the average degree, beside the prediction."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, PercentFormatter

from experiments.distributed.expected import expected_efficiency
from experiments.distributed.record import CALLS, Record
from experiments.pictures import cases, ticks
from experiments.pictures.methods import GREY, looks
from experiments.pictures.picture import Picture, finish, grid, handles, marks, provenance

NAME, TITLE = "efficiency", "Efficiency of several ranks over the average degree"


def draw(records: Sequence[Record]) -> Picture:
    """For each number of ranks a panel of single calls, and one of calls back to back if those were
    measured; of each operation and matrix, the fastest way."""
    timed = [r for r in records if r.speedup is not None and r.m]
    if not timed:
        return Picture(NAME, TITLE, "no case has the times of one process and of several")
    by_ranks = cases.grouped(sorted(timed, key=lambda r: r.ranks), lambda r: r.ranks)
    panels = [
        (_fastest(own, of), of)
        for own in by_ranks.values()
        for of, efficiency in _EFFICIENCIES.items()
        if any(map(efficiency, own))
    ]
    shown = looks(r.method for r in timed)
    figure, axes = grid(len(panels))
    for ax, (own, of) in zip(axes, panels, strict=True):
        _panel(ax, own, of, {name: marks(look, "-") for name, look in shown.items()})
    predicted = Line2D([], [], label="predicted", color=GREY, linestyle=(0, (4, 2)))
    caption = (
        f"{provenance(timed)} Efficiency: one process's time over that of p ranks, "
        f"over p, in the same run; of several ways of a case, the fastest. A call begins when all "
        f"ranks are idle; back to back, {CALLS} follow each other. Predicted: from one process's "
        f"time and the predicted time of the messages, which overlap as the steps allow; on GPUs "
        f"with overheads that were fitted to two and four H200."
    )
    return finish(figure, NAME, TITLE, caption, [*handles(shown), predicted])


def _fastest(records: Sequence[Record], of: str) -> list[Record]:
    """The records of the fastest way of each operation and matrix."""
    best: dict[tuple[object, ...], Record] = {}
    for r in filter(_EFFICIENCIES[of], records):
        case = (r.method, r.m, r.n, r.nnz, r.k, r.heads, r.dtype)
        if case not in best or _EFFICIENCIES[of](r) > _EFFICIENCIES[of](best[case]):
            best[case] = r
    return list(best.values())


def _panel(
    ax: Axes, records: Sequence[Record], of: str, styles: dict[str, dict[str, object]]
) -> None:
    efficiency = _EFFICIENCIES[of]
    for method, own in cases.grouped(records, lambda r: r.method).items():
        ordered = sorted(own, key=_degree)
        degrees = [_degree(r) for r in ordered]
        ax.plot(degrees, [efficiency(r) for r in ordered], **styles[method])
        expected = [
            expected_efficiency(r, is_back_to_back=efficiency is _back_to_back) or float("nan")
            for r in ordered
        ]
        color = styles[method]["color"]
        ax.plot(degrees, expected, color=color, linestyle=(0, (4, 2)), marker="none")
    ax.set_title(f"{records[0].ranks} ranks, {of}")
    ax.set_xscale("log")
    ticks.at_values(ax.xaxis, sorted({round(_degree(r), 1) for r in records}))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, max(1.05, *(1.05 * efficiency(r) for r in records)))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("nonzeros per row")
    ax.set_ylabel("efficiency")


def _degree(r: Record) -> float:
    return r.nnz / r.m


def _efficiency(r: Record) -> float:
    return r.efficiency or 0.0


def _back_to_back(r: Record) -> float:
    return r.back_to_back_efficiency or 0.0


# By the words of a panel's title; 0 where it was not measured.
_EFFICIENCIES = {"one call": _efficiency, "back to back": _back_to_back}
