"""The report of the study of regret: the planner's choice beside our best kernel and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.bench import table
from experiments.bench.page.tables import CASE, Table
from experiments.sddmm.columns import PROBLEMS, SHORT
from experiments.sddmm.methods import OURS
from experiments.sddmm.record import Record
from experiments.sddmm.report_cells import (
    Best,
    best_cell,
    least,
    mean_cell,
    microseconds,
    not_served,
    places,
    problem_name,
    ratio_cell,
    time_cell,
)

# From this many nonzeros on, a first call must not be slower than a peer's.
FIRST_CALL_NNZ = 300_000


@dataclass(frozen=True)
class Problem:
    """The records of one problem; its figures are in us, and None where nothing was measured."""

    ours: Record
    kernels: tuple[Record, ...]
    peers: tuple[Record, ...]

    @property
    def us(self) -> float | None:
        return microseconds(self.ours.median_ms)

    @cached_property
    def best(self) -> Best | None:
        """Our fastest kernel; it is the choice itself if none is faster."""
        return least(
            [
                (self.ours.kernel, self.us),
                *((r.method, microseconds(r.median_ms)) for r in self.kernels),
            ]
        )

    @cached_property
    def best_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_ms)) for r in self.peers)

    @property
    def first_us(self) -> float | None:
        return microseconds(self.ours.median_first_call_ms)

    @cached_property
    def first_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_first_call_ms)) for r in self.peers)

    @property
    def regret(self) -> float | None:
        """The time of the choice over that of our fastest kernel."""
        return self.us / self.best[1] if self.us and self.best else None

    @property
    def lead(self) -> float | None:
        """The time of the fastest peer over ours."""
        return self.best_peer[1] / self.us if self.us and self.best_peer else None

    @property
    def first_lead(self) -> float | None:
        """The first call of the fastest peer over ours."""
        return self.first_peer[1] / self.first_us if self.first_us and self.first_peer else None


def problems(records: Iterable[Record]) -> list[Problem]:
    """The problems of these records, by class, where there is a record of ours."""
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    found = []
    for own in cases.values():
        ours = [r for r in own if r.method == OURS]
        forced = tuple(r for r in own if r.is_forced)
        peers = tuple(r for r in own if r.method != OURS and not r.is_forced)
        found += [Problem(r, forced, peers) for r in ours[-1:]]
    return sorted(found, key=lambda problem: problem.ours.family)


def tables(records: Sequence[Record]) -> list[Table]:
    """The tables of the HTML page: the classes of patterns, and a row per problem."""
    found = problems(records)
    rows = [_csv_row(problem) for problem in found]
    return [
        Table("Classes", _summary_rows(found)),
        Table("Problems", rows, _GROUPS, _SHORT, note=_LEGEND),
    ]


def pages(records: Sequence[Record]) -> dict[str, str]:
    """The files of the report by name."""
    found = problems(records)
    several = len({p.ours.place for p in found}) > 1
    rows = [({"device": p.ours.place_name} if several else {}) | _row(p) for p in found]
    return {
        "summary.md": as_summary(found),
        "report.md": "\n\n".join(
            (places(records), _LEGEND, table.as_text(rows), not_served(records))
        ),
        "report.csv": table.csv_text([_csv_row(problem) for problem in found]),
    }


_GROUPS = {
    CASE: PROBLEMS,
    "ours": {
        "status": "how our own call went",
        "chosen": "the kernel that the planner chose",
        "us": "kernel time of the choice",
        "predicted_us": "what the cost model predicted for it",
        "best_kernel": "the fastest of our kernels, each measured by its name",
        "best_us": "its time",
        "regret": "the choice over the fastest of our kernels",
    },
    "peers": {
        "best_peer": "the fastest peer",
        "peer_us": "its time",
        "peer_over_ours": "the fastest peer's time over ours; below 1 we lose",
    },
    "first call": {
        "first_us": "our whole first call on a pattern never seen",
        "first_peer": "the peer whose first call is shortest",
        "first_peer_us": "its first call",
        "first_peer_over_ours": "that call over our first call; below 1 we lose",
    },
}
_SHORT = SHORT | {
    *("device", "class", "chosen", "us", "regret", "best_peer", "peer_us", "peer_over_ours"),
    *("first_us", "first_peer_over_ours"),
}

_LEGEND = (
    "Times in us. `regret`: the planner's choice over the fastest of our kernels, each of which is "
    "measured by its name in the same run. `peer / ours`: above 1 ours is faster. `first`: the "
    "whole first call on a pattern never seen; `torch_float32` is `torch_csr` with operands that "
    "were float32 before. Every column is in report.csv."
)


def as_summary(found: Sequence[Problem]) -> str:
    """Regret and the rows that a peer wins, for each class of patterns and for all."""
    rows = _summary_rows(found)
    lost = [
        f"* {problem_name(p.ours)}: {best_cell(p.best_peer)} us, ours {time_cell(p.us)}"
        for p in found
        if p.lead is not None and p.lead < 1
    ]
    lost_first = [
        f"* {problem_name(p.ours)}: {best_cell(p.first_peer)} us, ours {time_cell(p.first_us)}"
        for p in found
        if _is_lost_first(p)
    ]
    regretted = sorted(
        (p for p in found if p.regret and p.regret > 1.15), key=lambda p: -(p.regret or 0)
    )
    regrets = [
        f"* {problem_name(p.ours)}: {p.regret:.2f}, {p.ours.kernel} {time_cell(p.us)} us, "
        f"{best_cell(p.best)} us"
        for p in regretted
    ]
    return "\n".join((
        table.as_text(rows), "",
        f"**A regret above 1.15** ({len(regrets)})", "", *regrets, "",
        f"**A peer is faster** ({len(lost)})", "", *lost, "",
        f"**A peer's first call is faster**, of {FIRST_CALL_NNZ:,} nonzeros or more "
        f"({len(lost_first)})", "", *lost_first, "",
    ))  # fmt: skip


def _summary_rows(found: Sequence[Problem]) -> list[dict[str, str]]:
    """A row for each class of patterns, and one for all; none without problems."""
    families = dict.fromkeys(problem.ours.family for problem in found)
    rows = [_summary_row(name, [p for p in found if p.ours.family == name]) for name in families]
    return [*rows, _summary_row("all", found)] if found else []


def _summary_row(family: str, found: Sequence[Problem]) -> dict[str, str]:
    regrets = [p.regret for p in found if p.regret is not None]
    leads = [p.lead for p in found if p.lead is not None]
    first_leads = [
        p.first_lead for p in found if p.ours.nnz >= FIRST_CALL_NNZ and p.first_lead is not None
    ]
    return {
        "class": family,
        "problems": str(len(found)),
        "regret, mean": mean_cell(regrets),
        "regret, largest": f"{max(regrets):.2f}" if regrets else "",
        "peer / ours, mean": mean_cell(leads),
        "lost to a peer": str(sum(lead < 1 for lead in leads)),
        "first call, peer / ours, mean": mean_cell(first_leads),
        "first calls lost": str(sum(_is_lost_first(p) for p in found)),
    }


def _is_lost_first(p: Problem) -> bool:
    return p.ours.nnz >= FIRST_CALL_NNZ and p.first_lead is not None and p.first_lead < 1


def _row(p: Problem) -> dict[str, str]:
    r = p.ours
    return {
        "class": r.family, "matrix": r.matrix, "nnz": f"{r.nnz:,}",
        "K": str(r.k), "dtype": r.dtype, "heads": str(r.heads), "chosen": r.kernel or r.status,
        "us": time_cell(p.us), "regret": ratio_cell(p.regret),
        "best peer": p.best_peer[0] if p.best_peer else "", "peer / ours": ratio_cell(p.lead),
        "first us": time_cell(p.first_us),
        "first peer / ours": ratio_cell(p.first_lead),
    }  # fmt: skip


def _csv_row(p: Problem) -> dict[str, object]:
    r = p.ours
    best, peer, first = (each or ("", None) for each in (p.best, p.best_peer, p.first_peer))
    return {
        "device": r.place_name,
        "class": r.family, "matrix": r.matrix, "m": r.m, "n": r.n, "nnz": r.nnz, "k": r.k,
        "dtype": r.dtype, "heads": r.heads, "status": r.status, "chosen": r.kernel, "us": p.us,
        "predicted_us": r.predicted_us.get(r.kernel), "best_kernel": best[0], "best_us": best[1],
        "regret": p.regret, "best_peer": peer[0], "peer_us": peer[1], "peer_over_ours": p.lead,
        "first_us": p.first_us, "first_peer": first[0], "first_peer_us": first[1],
        "first_peer_over_ours": p.first_lead,
    }  # fmt: skip
