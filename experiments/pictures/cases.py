"""The numbers behind the pictures: what is compared with what, and why records are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.bench.errors import ExperimentError
from experiments.bench.record import Record
from experiments.pictures.methods import Look, looks

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

# The reference of a speed-up where none is named: the fastest peer of each case.
BEST_PEER = "the fastest peer"
DRAWN_ROLES = ("ours", "peer")


@dataclass(frozen=True)
class Pair:
    """A record and the one that it is compared with, of the same case."""

    record: Any
    reference: Any

    @property
    def ratio(self) -> float:
        """The median time of the reference over the record's: above 1 the record is faster."""
        return float(self.reference.median_ms / self.record.median_ms)


def require_reference(objective: AnyObjective, records: Iterable[Record], reference: str) -> None:
    """Raise ExperimentError if no record of this method has a time; "" stands for the best peer."""
    names = list(dict.fromkeys(r.name for r in timed(objective, records)))
    if reference and reference not in names:
        valid = f"one of {', '.join(names)}" if names else "left out, as no record has a time"
        raise ExperimentError(f"reference must be {valid}, got {reference!r}")


def timed(objective: AnyObjective, records: Iterable[Record]) -> list[Any]:
    """The records of ours and of the peers that have a time above 0, in their order."""
    return [r for r in records if objective.role(r) in DRAWN_ROLES and r.median_ms]


def pairs(objective: AnyObjective, records: Iterable[Record], reference: str = "") -> list[Pair]:
    """Each record of ours and of the peers with its reference; a case without one gives none.

    reference: a method, or "" for the fastest peer of the case. A reference of the record's own
    session counts, where there is one.
    """
    records = timed(objective, records)
    of_case = grouped(records, lambda r: r.case)
    found = []
    for r in records:
        candidates = [other for other in of_case[r.case] if refers(objective, other, reference)]
        own_session = [other for other in candidates if other.session == r.session]
        if candidates:
            nearest = own_session or candidates
            found.append(Pair(r, min(nearest, key=lambda other: (other.median_ms, other.name))))
    return found


def leads(objective: AnyObjective, records: Sequence[Record], reference: str = "") -> list[Pair]:
    """Our record of every case with that of the reference, "" being the fastest peer."""
    found = pairs(objective, records, reference)
    return [p for p in found if p.record.name == objective.ours and p.reference is not p.record]


def refers(objective: AnyObjective, record: Record, reference: str) -> bool:
    """Whether speed-ups over `reference`, or over the fastest peer, may refer to the record."""
    return record.name == reference if reference else objective.role(record) == "peer"


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """The items of each key, in their order."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def looks_of(objective: AnyObjective, names: Iterable[str]) -> dict[str, Look]:
    """The look of each of these methods, in the objective's order."""
    order = list(objective.names())
    return looks(sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n)))


def left_out(objective: AnyObjective, records: Iterable[Record]) -> str:
    """A sentence on records that have no time or one of 0; empty if there are none."""
    drawn = [r for r in records if objective.role(r) in DRAWN_ROLES]
    unserved = sum(r.median_ms is None for r in drawn)
    zero = sum(r.median_ms == 0 for r in drawn)
    parts = [f"{unserved} records have no time (skipped or failed)"] if unserved else []
    parts += [f"{zero} have a time of 0"] if zero else []
    return f"Not drawn: {' and '.join(parts)}; report.md says why." if parts else ""


def places(records: Iterable[Record]) -> int:
    """How many devices, or numbers of threads, the records are of."""
    return len({r.place for r in records})


def density(r: Any) -> float:
    """The part of the entries that are nonzeros; 0 for a matrix without entries."""
    return r.nnz / (r.m * r.n) if r.m * r.n else 0.0
