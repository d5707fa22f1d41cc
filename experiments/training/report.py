"""The report of a study of training steps: ours beside its yardsticks and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.bench import table
from experiments.bench.page.tables import CASE, Table
from experiments.sddmm.columns import PROBLEMS, SHORT
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
from experiments.spmm.methods.sddmm_tiles import MASKS
from experiments.training.methods import FORWARD, OURS, OURS_EAGER, ROW_GATHER, YARDSTICKS
from experiments.training.record import Record

# How long a step may take: so many times row_gather, and launches; on masks, times the forward.
TIMES_ROW_GATHER, LAUNCHES_US, TIMES_FORWARD = 4.5, 60.0, 5.0


@dataclass(frozen=True)
class Problem:
    """The records of one problem; its figures are in us, and None where nothing was measured."""

    ours: Record
    others: tuple[Record, ...]

    @property
    def us(self) -> float | None:
        return microseconds(self.ours.median_ms)

    def us_of(self, method: str) -> float | None:
        times = [microseconds(r.median_ms) for r in self.others if r.method == method]
        return times[-1] if times else None

    @property
    def limit_us(self) -> float | None:
        """What a step may take."""
        if self.ours.family in MASKS:
            us = self.us_of(FORWARD)
            return None if us is None else TIMES_FORWARD * us
        us = self.us_of(ROW_GATHER)
        return None if us is None else TIMES_ROW_GATHER * us + LAUNCHES_US

    @property
    def over_limit(self) -> float | None:
        """The time of a step over what it may take; above 1 it takes too long."""
        return self.us / self.limit_us if self.us and self.limit_us else None

    @property
    def over_row_gather(self) -> float | None:
        us = self.us_of(ROW_GATHER)
        return self.us / us if self.us and us else None

    @cached_property
    def best_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_ms)) for r in self._peers())

    @property
    def lead(self) -> float | None:
        """The time of the fastest peer over ours."""
        return self.best_peer[1] / self.us if self.us and self.best_peer else None

    @property
    def first_us(self) -> float | None:
        return microseconds(self.ours.median_first_call_ms)

    @cached_property
    def first_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_first_call_ms)) for r in self._peers())

    @property
    def least_peer_bytes(self) -> int | None:
        sizes = [r.peak_bytes for r in self._peers() if r.peak_bytes is not None]
        return min(sizes) if sizes else None

    def _peers(self) -> list[Record]:
        return [r for r in self.others if r.method not in (OURS_EAGER, *YARDSTICKS)]


def problems(records: Iterable[Record]) -> list[Problem]:
    """The problems of these records, by class: our last record of each, and those beside it."""
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    found = []
    for own in cases.values():
        for ours in [r for r in own if r.method == OURS][-1:]:
            beside = tuple(r for r in own if r.session == ours.session and r.method != OURS)
            found.append(Problem(ours, beside))
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
        "status": "how our own step went",
        "us": "the forward and the backward, replayed from a CUDA graph",
        "ours_eager_us": "the same with every call made by the host",
        "peak_bytes": "memory that a step allocates, with its results",
    },
    "yardsticks": {
        "row_gather_us": "our SDDMM on the same pattern, by the kernel row_gather",
        "forward_us": "the forward alone",
        "limit_us": "what a step may take",
        "over_limit": "our step over that; above 1 it takes too long",
    },
    "peers": {
        "sampled_addmm_us": "torch.sparse.sampled_addmm in float32 and its gradients",
        "gather_sum_us": "rows gathered, multiplied and summed, and the gradients",
        "best_peer": "the faster of the two",
        "best_peer_us": "its time",
        "peer_over_ours": "its time over ours; below 1 we lose",
        "least_peer_bytes": "the least memory that a peer's step allocates",
    },
    "first call": {
        "first_us": "our whole first step on a pattern never seen",
        "first_peer": "the peer whose first step is shortest",
        "first_peer_us": "its first step",
    },
}
_SHORT = SHORT | {
    *("device", "class", "us", "over_limit", "best_peer", "best_peer_us", "peer_over_ours"),
    *("first_us", "first_peer_us"),
}

_LEGEND = (
    "Times in us of the forward and the backward of sddmm together, replayed from a CUDA graph. "
    "`limit`: 4.5 times `row_gather` and 60 us, or on masks 5 times the forward. The times of "
    "`sampled_addmm`, in float32, are of calls where no graph captures it. `peak MB`: the memory "
    "that a step allocates, with its results. `first`: a whole first step on a pattern never seen. "
    "Every column is in report.csv."
)


def as_summary(found: Sequence[Problem]) -> str:
    """The geometric means for each class of patterns and for all, and the rows that are lost."""
    rows = _summary_rows(found)
    over = [
        f"* {problem_name(p.ours)}: {time_cell(p.us)} us of {time_cell(p.limit_us)}"
        for p in found
        if p.over_limit and p.over_limit > 1
    ]
    lost = [
        f"* {problem_name(p.ours)}: {best_cell(p.best_peer)} us, ours {time_cell(p.us)}"
        for p in found
        if p.lead and p.lead < 1
    ]
    return "\n".join((
        table.as_text(rows), "",
        f"**Above the limit** ({len(over)})", "", *over, "",
        f"**A peer is faster** ({len(lost)})", "", *lost, "",
    ))  # fmt: skip


def _summary_rows(found: Sequence[Problem]) -> list[dict[str, str]]:
    """A row for each class of patterns, and one for all; none without problems."""
    families = dict.fromkeys(problem.ours.family for problem in found)
    rows = [_summary_row(name, [p for p in found if p.ours.family == name]) for name in families]
    return [*rows, _summary_row("all", found)] if found else []


def _summary_row(family: str, found: Sequence[Problem]) -> dict[str, str]:
    gathers = [p.over_row_gather for p in found if p.over_row_gather]
    limits = [p.over_limit for p in found if p.over_limit]
    leads = [p.lead for p in found if p.lead]
    first = [p.first_peer[1] / p.first_us for p in found if p.first_peer and p.first_us]
    return {
        "class": family,
        "problems": str(len(found)),
        "ours / row_gather, mean": mean_cell(gathers),
        "ours / limit, mean": mean_cell(limits),
        "largest": f"{max(limits):.2f}" if limits else "",
        "above the limit": str(sum(limit > 1 for limit in limits)),
        "peer / ours, mean": mean_cell(leads),
        "lost to a peer": str(sum(lead < 1 for lead in leads)),
        "first step, peer / ours, mean": mean_cell(first),
    }


def _row(p: Problem) -> dict[str, str]:
    r = p.ours
    return {
        "class": r.family, "matrix": r.matrix, "nnz": f"{r.nnz:,}",
        "K": str(r.k), "dtype": r.dtype, "heads": str(r.heads),
        "us": time_cell(p.us), "ours / limit": ratio_cell(p.over_limit),
        "best peer": p.best_peer[0] if p.best_peer else "", "peer / ours": ratio_cell(p.lead),
        "peak MB": _megabytes(r.peak_bytes), "least peer MB": _megabytes(p.least_peer_bytes),
        "first us": time_cell(p.first_us),
        "first peer us": time_cell(p.first_peer[1] if p.first_peer else None),
    }  # fmt: skip


def _csv_row(p: Problem) -> dict[str, object]:
    r = p.ours
    best, first = (x or ("", None) for x in (p.best_peer, p.first_peer))
    names = (OURS_EAGER, ROW_GATHER, FORWARD, "sampled_addmm", "gather_sum")
    return {
        "device": r.place_name,
        "class": r.family, "matrix": r.matrix, "m": r.m, "n": r.n, "nnz": r.nnz, "k": r.k,
        "dtype": r.dtype, "heads": r.heads, "status": r.status, "us": p.us,
        **{f"{name}_us": p.us_of(name) for name in names},
        "limit_us": p.limit_us, "over_limit": p.over_limit, "best_peer": best[0],
        "best_peer_us": best[1], "peer_over_ours": p.lead, "peak_bytes": r.peak_bytes,
        "least_peer_bytes": p.least_peer_bytes, "first_us": p.first_us, "first_peer": first[0],
        "first_peer_us": first[1],
    }  # fmt: skip


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"
