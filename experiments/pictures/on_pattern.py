"""The pictures of objectives on a sparse matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.bench.record import Record
from experiments.pictures import calls, first_call, leads, roofline, speedup
from experiments.pictures.picture import Picture

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


def pictures(
    objective: AnyObjective, records: Sequence[Record], reference: str = ""
) -> list[Picture]:
    """All of them, in the order of a report."""
    return [
        leads.draw(objective, records, reference),
        *speedup.draw(objective, records, reference),
        roofline.draw(objective, records),
        calls.draw(objective, records, reference),
        first_call.draw(objective, records),
    ]
