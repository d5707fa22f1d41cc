"""All pictures of an objective's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.bench.record import Record
from experiments.pictures import cases
from experiments.pictures.picture import Picture, style

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


def figures(
    objective: AnyObjective, records: Sequence[Record], reference: str = ""
) -> list[Picture]:
    """Every picture of the records, with its name, title, caption and figure.

    records: what `report.newest` gives. reference: the method that speed-ups refer to; "" for the
    fastest peer of each case. A picture that cannot be drawn of these records has no
    figure, and its caption says why.
    """
    cases.require_reference(objective, records, reference)
    with style():
        return objective.pictures(records, reference)
