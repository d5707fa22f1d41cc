"""All pictures of an objective's records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from experiments.bench.record import Record
from experiments.pictures import cases
from experiments.pictures.picture import Picture, style

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


def figures(
    objective: AnyObjective,
    records: Sequence[Record],
    reference: str = "",
    names: Collection[str] | None = None,
) -> list[Picture]:
    """Every picture of the records, or those of these names: title, caption and figure of each.

    records: what `report.newest` gives. reference: the method that speed-ups refer to; "" for the
    fastest peer of each case. A picture that cannot be drawn of these records has no figure, and
    its caption says why.
    """
    cases.require_reference(objective, records, reference)
    drawers = objective.pictures(records, reference)
    with style():
        return [draw() for name, draw in drawers.items() if names is None or name in names]
