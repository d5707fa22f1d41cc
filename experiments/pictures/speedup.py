"""Pictures of speed-ups over K, over the number of nonzeros and over the density."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from experiments.bench.record import Record
from experiments.pictures import cases, ticks
from experiments.pictures.cases import Pair
from experiments.pictures.methods import Look
from experiments.pictures.picture import (
    Picture,
    finish,
    grid,
    handles,
    line_at_one,
    marks,
    provenance,
)

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

MOST_PANELS = 12


@dataclass(frozen=True)
class Quantity:
    """A quantity of a case on the x axis.

    in_octaves: whether cases are gathered by powers of two of it; else by its values.
    panel: what cases of one panel have in common, and the words for it.
    """

    name: str
    label: str
    value_of: Callable[[Any], float]
    in_octaves: bool
    panel: Callable[[Any], tuple[str, ...]]

    @property
    def picture(self) -> str:
        """The name of its picture."""
        return f"speedup_over_{self.name}"


def quantities(inner: str) -> tuple[Quantity, ...]:
    """The x axes. inner: the objective's name of K."""
    return (
        Quantity("nnz", "nonzeros (nnz)", lambda r: r.nnz, True, lambda r: (r.dtype,)),
        Quantity("k", inner, lambda r: r.k, False, lambda r: (r.matrix, r.dtype)),
        Quantity(
            "density", "density (nonzeros / entries)", cases.density, True, lambda r: (r.dtype,)
        ),
    )


def pictures(
    objective: AnyObjective, records: Sequence[Record], reference: str = ""
) -> dict[str, Callable[[], Picture]]:
    """What draws speedup_over_nnz, _k and _density."""
    pairs = cases.pairs(objective, records, reference)
    return {
        quantity.picture: partial(_picture, objective, records, pairs, quantity, reference)
        for quantity in quantities(objective.inner)
    }


def _picture(
    objective: AnyObjective,
    records: Sequence[Record],
    pairs: Sequence[Pair],
    x: Quantity,
    reference: str,
) -> Picture:
    title = (
        f"Speed-up over {reference or cases.BEST_PEER}, by {x.name if x.in_octaves else x.label}"
    )
    drawn = [p for p in pairs if x.value_of(p.record) > 0]
    panels = cases.grouped(drawn, lambda p: (p.record.place_name, x.panel(p.record)))
    several = {
        panel: own for panel, own in panels.items() if len({x.value_of(p.record) for p in own}) > 1
    }
    if not several:
        return Picture(x.picture, title, _nothing(pairs, x, reference))
    shown = dict(sorted(several.items(), key=lambda item: -len(item[1]))[:MOST_PANELS])
    shown = {panel: own for panel, own in several.items() if panel in shown}
    names = {p.record.name for own in shown.values() for p in own} - {reference}
    look = cases.looks_of(objective, names)
    figure, axes = grid(len(shown))
    one_place = cases.places(records) == 1
    for ax, ((place, words), own) in zip(axes, shown.items(), strict=True):
        _panel(ax, own, x, look)
        ax.set_title(", ".join(words) if one_place else f"{place}\n{', '.join(words)}")
        ax.set_xlabel(x.label)
    for ax in axes:
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("reference time / time")
    caption = " ".join(
        filter(
            None,
            (
                provenance([p.record for p in drawn]),
                _explanation(x, reference),
                _absent(x, len(panels) - len(several), len(several) - len(shown)),
                cases.left_out(objective, records),
            ),
        )
    )
    return finish(figure, x.picture, title, caption, handles(look))


def _explanation(x: Quantity, reference: str) -> str:
    against = (
        f"Above the line at 1 a method is faster than {reference}."
        if reference
        else "Above the line at 1 a method is faster than the fastest peer of each case."
    )
    gathered = (
        f"cases within a factor of two in {x.label}" if x.in_octaves else "cases at its value"
    )
    return (
        f"{against} A mark is the geometric mean of the {gathered}, its whisker reaches from the "
        f"least to the greatest of them (no whisker: they are alike, or there is one case); marks "
        f"of one place are set apart sideways. Kernel times are medians of verified runs."
    )


def _absent(x: Quantity, with_one_value: int, too_many: int) -> str:
    parts = []
    if with_one_value:
        parts.append(f"{with_one_value} with one value of {x.label} only")
    if too_many:
        parts.append(f"{too_many} with the fewest cases")
    return f"Panels left out: {' and '.join(parts)}; report.csv has them." if parts else ""


def _nothing(pairs: Sequence[Pair], x: Quantity, reference: str) -> str:
    if not pairs:
        return f"no case has times of two methods, one of them {reference or 'a peer'}"
    values = sorted({x.value_of(p.record) for p in pairs})
    if len(values) == 1:
        return f"all cases have {x.label} = {values[0]:g}"
    return f"no cases that agree in everything else differ in {x.label}"


def _panel(ax: Axes, pairs: Sequence[Pair], x: Quantity, look: dict[str, Look]) -> None:
    """Means and whiskers of every method."""
    ax.set_xscale("log", base=10 if x.in_octaves else 2)
    ax.set_yscale("log")
    line_at_one(ax)
    values = sorted({x.value_of(p.record) for p in pairs})
    step = min((b / a for a, b in pairwise(values)), default=2.0)
    spread = min(step, 2.0) ** 0.2  # of the marks of one value
    for index, (name, own_look) in enumerate(look.items()):
        shift = spread ** ((index + 0.5) / len(look) - 0.5)
        own = cases.grouped((p for p in pairs if p.record.name == name), lambda p: _bin(p, x))
        points = sorted(
            (
                cases.geometric_mean([x.value_of(p.record) for p in group]) * shift,
                [p.ratio for p in group],
            )
            for group in own.values()
        )
        if not points:
            continue
        places = [place for place, _ in points]
        means = [cases.geometric_mean(ratios) for _, ratios in points]
        ax.vlines(
            places, [min(r) for _, r in points], [max(r) for _, r in points],
            color=own_look.color, linewidth=1.0, alpha=0.7,
        )  # fmt: skip
        ax.plot(places, means, **marks(own_look, line="-"), linewidth=0.7)
    if not x.in_octaves:
        ticks.at_values(ax.xaxis, values)
    ticks.of_ratios(ax.yaxis)
    ax.minorticks_off()


def _bin(p: Pair, x: Quantity) -> float:
    value = x.value_of(p.record)
    return math.floor(math.log2(value)) if x.in_octaves else value
