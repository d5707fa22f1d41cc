"""The pictures of objectives on a sparse matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.bench.record import Record
from experiments.pictures import calls, first_call, leads, roofline, speedup
from experiments.pictures.picture import Picture

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective


def pictures(
    objective: AnyObjective, records: Sequence[Record], reference: str = ""
) -> dict[str, Callable[[], Picture]]:
    """What draws each of them, in the order of a report."""
    return {
        leads.NAME: partial(leads.draw, objective, records, reference),
        **speedup.pictures(objective, records, reference),
        roofline.NAME: partial(roofline.draw, objective, records),
        calls.NAME: partial(calls.draw, objective, records, reference),
        first_call.NAME: partial(first_call.draw, objective, records),
    }
