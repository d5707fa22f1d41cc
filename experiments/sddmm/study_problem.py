"""One problem of a study: our record, and what was measured beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from experiments.sddmm.methods import OURS
from experiments.sddmm.record import Record
from experiments.sddmm.report_cells import Best, least, microseconds, problem_name, ratio

RecordT = TypeVar("RecordT", bound=Record)
ProblemT = TypeVar("ProblemT", bound="Problem[Any]")


@dataclass(frozen=True)
class Problem(Generic[RecordT]):
    """The records of one problem; its figures are in us, and None where nothing was measured."""

    ours: RecordT
    others: tuple[RecordT, ...]

    # What the objective calls K.
    size: ClassVar[str] = "K"
    # Methods that are neither a kernel of ours by its name nor a peer.
    beside_peers: ClassVar[tuple[str, ...]] = ()
    # If the time of the fastest peer over ours is below this, the problem is lost to a peer.
    lost_below: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        return problem_name(self.ours, self.size)

    @property
    def us(self) -> float | None:
        return microseconds(self.ours.median_ms)

    def record_of(self, method: str) -> RecordT | None:
        return next((r for r in reversed(self.others) if r.method == method), None)

    def us_of(self, method: str) -> float | None:
        record = self.record_of(method)
        return microseconds(record.median_ms) if record else None

    @property
    def kernels(self) -> list[RecordT]:
        """The records of our kernels, each by its name."""
        return [r for r in self.others if r.is_forced]

    @property
    def peers(self) -> list[RecordT]:
        return [r for r in self.others if not r.is_forced and r.method not in self.beside_peers]

    @cached_property
    def best_kernel(self) -> Best | None:
        """Our fastest kernel; it is the choice itself if none is faster."""
        return least([(self.ours.kernel, self.us), *times_of(self.kernels)])

    @property
    def regret(self) -> float | None:
        """The time of the choice over that of our fastest kernel."""
        return ratio(self.us, self.best_kernel and self.best_kernel[1])

    @cached_property
    def best_peer(self) -> Best | None:
        return least(times_of(self.peers))

    @property
    def lead(self) -> float | None:
        """The time of the fastest peer over ours."""
        return ratio(self.best_peer and self.best_peer[1], self.us)

    @property
    def is_lost(self) -> bool:
        return self.lead is not None and self.lead < self.lost_below

    @property
    def first_us(self) -> float | None:
        return microseconds(self.ours.median_first_call_ms)

    @cached_property
    def first_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_first_call_ms)) for r in self.peers)

    @property
    def first_lead(self) -> float | None:
        """The first call of the peer whose first call is shortest, over ours."""
        return ratio(self.first_peer and self.first_peer[1], self.first_us)

    @property
    def is_lost_first(self) -> bool:
        return self.first_lead is not None and self.first_lead < 1


class HeldToYardstick(Problem[RecordT]):
    """A problem on which ours may take so many times as long as its yardstick."""

    @property
    def yardstick(self) -> str:
        """The method with which ours is compared."""
        raise NotImplementedError

    @property
    def limit(self) -> float:
        """What the time of ours over that of the yardstick may be."""
        raise NotImplementedError

    @property
    def over_yardstick(self) -> float | None:
        return ratio(self.us, self.us_of(self.yardstick))

    @property
    def is_over_limit(self) -> bool:
        return self.over_yardstick is not None and self.over_yardstick > self.limit


def times_of(records: Iterable[Record]) -> list[tuple[str, float | None]]:
    """The method of each record, and its time in us."""
    return [(r.method, microseconds(r.median_ms)) for r in records]


def least_peer_bytes(problem: Problem[RecordT]) -> int | None:
    """The least memory that a peer's training step allocates."""
    sizes = [getattr(r, "peak_bytes", None) for r in problem.peers]
    return min((size for size in sizes if size is not None), default=None)


def problems(
    kind: type[ProblemT], records: Iterable[Record], of_any_session: bool = False
) -> list[ProblemT]:
    """The problems of these records, by class: our last record of each, and those beside it.

    of_any_session: whether records that were not interleaved with ours count too.
    """
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    found = []
    for own in cases.values():
        for ours in [r for r in own if r.method == OURS][-1:]:
            others = [r for r in own if r.method != OURS]
            beside = [r for r in others if of_any_session or r.session == ours.session]
            found.append(kind(ours, tuple(beside)))
    return sorted(found, key=lambda problem: problem.ours.family)
