"""The pictures of objectives on a sparse matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.bench.record import Record
from experiments.pictures import speedup
from experiments.pictures.picture import Picture

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


def pictures(
    objective: AnyObjective, records: Sequence[Record], reference: str = ""
) -> list[Picture]:
    """All of them, in the order of a report."""
    return speedup.draw(objective, records, reference)
