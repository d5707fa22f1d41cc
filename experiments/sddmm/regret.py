"""The report of the study of regret: the planner's choice beside our best kernel and the peers."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.bench import report, table
from experiments.sddmm.methods import OURS
from experiments.sddmm.record import Record

# From this many nonzeros on, a first call must not be slower than a peer's.
FIRST_CALL_NNZ = 300_000

# A number of so many digits is a size.
_SIZE = re.compile(r"\d{6,}")

Best = tuple[str, float]


@dataclass(frozen=True)
class Problem:
    """The records of one problem; its figures are in us, and None where nothing was measured."""

    ours: Record
    kernels: tuple[Record, ...]
    peers: tuple[Record, ...]

    @property
    def us(self) -> float | None:
        return _us(self.ours.median_ms)

    @cached_property
    def best(self) -> Best | None:
        """Our fastest kernel; it is the choice itself if none is faster."""
        return _least(
            [(self.ours.kernel, self.us), *((r.method, _us(r.median_ms)) for r in self.kernels)]
        )

    @cached_property
    def best_peer(self) -> Best | None:
        return _least((r.method, _us(r.median_ms)) for r in self.peers)

    @property
    def first_us(self) -> float | None:
        return _us(self.ours.median_first_call_ms)

    @cached_property
    def first_peer(self) -> Best | None:
        return _least((r.method, _us(r.median_first_call_ms)) for r in self.peers)

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
    """The problems of these records, in their order, where there is a record of ours."""
    cases: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    found = []
    for own in cases.values():
        ours = [r for r in own if r.method == OURS]
        forced = tuple(r for r in own if r.is_forced)
        peers = tuple(r for r in own if r.method != OURS and not r.is_forced)
        found += [Problem(r, forced, peers) for r in ours[-1:]]
    return found


def pages(records: Sequence[Record]) -> dict[str, str]:
    """The files of the report by name."""
    found = sorted(problems(records), key=lambda problem: problem.ours.family)
    rows = [_row(problem) for problem in found]
    return {
        "summary.md": as_summary(found),
        "report.md": "\n\n".join(
            (_places(records), _LEGEND, table.as_text(rows), _not_served(records))
        ),
        "report.csv": table.csv_text([_csv_row(problem) for problem in found]),
    }


_LEGEND = (
    "Times in us. `regret`: the planner's choice over the fastest of our kernels, each of which is "
    "measured by its name in the same run. `peer / ours`: above 1 ours is faster. `first`: the "
    "whole first call on a pattern never seen; `torch_float32` is `torch_csr` with operands that "
    "were float32 before."
)


def as_summary(found: Sequence[Problem]) -> str:
    """Regret and the rows that a peer wins, for each class of patterns and for all."""
    families = dict.fromkeys(problem.ours.family for problem in found)
    rows = [
        _summary_row(family, [p for p in found if p.ours.family == family]) for family in families
    ]
    rows.append(_summary_row("all", found))
    lost = [
        f"* {_name(p)}: {_shown(p.best_peer)} us, ours {_time(p.us)}"
        for p in found
        if p.lead is not None and p.lead < 1
    ]
    lost_first = [
        f"* {_name(p)}: {_shown(p.first_peer)} us, ours {_time(p.first_us)}"
        for p in found
        if _is_lost_first(p)
    ]
    regretted = sorted(
        (p for p in found if p.regret and p.regret > 1.15), key=lambda p: -(p.regret or 0)
    )
    regrets = [
        f"* {_name(p)}: {p.regret:.2f}, {p.ours.kernel} {_time(p.us)} us, {_shown(p.best)} us"
        for p in regretted
    ]
    return "\n".join((
        table.as_text(rows), "",
        f"**A regret above 1.15** ({len(regrets)})", "", *regrets, "",
        f"**A peer is faster** ({len(lost)})", "", *lost, "",
        f"**A peer's first call is faster**, of {FIRST_CALL_NNZ:,} nonzeros or more "
        f"({len(lost_first)})", "", *lost_first, "",
    ))  # fmt: skip


def _summary_row(family: str, found: Sequence[Problem]) -> dict[str, str]:
    regrets = [p.regret for p in found if p.regret is not None]
    leads = [p.lead for p in found if p.lead is not None]
    first_leads = [
        p.first_lead for p in found if p.ours.nnz >= FIRST_CALL_NNZ and p.first_lead is not None
    ]
    return {
        "class": family,
        "problems": str(len(found)),
        "regret, mean": _mean(regrets),
        "regret, largest": f"{max(regrets):.2f}" if regrets else "",
        "peer / ours, mean": _mean(leads),
        "lost to a peer": str(sum(lead < 1 for lead in leads)),
        "first call, peer / ours, mean": _mean(first_leads),
        "first calls lost": str(sum(_is_lost_first(p) for p in found)),
    }


def _is_lost_first(p: Problem) -> bool:
    return p.ours.nnz >= FIRST_CALL_NNZ and p.first_lead is not None and p.first_lead < 1


def _row(p: Problem) -> dict[str, str]:
    r = p.ours
    return {
        "class": r.family, "matrix": r.matrix,
        "m": f"{r.m:,}", "n": f"{r.n:,}", "nnz": f"{r.nnz:,}",
        "K": str(r.k), "dtype": r.dtype, "heads": str(r.heads), "chosen": r.kernel or r.status,
        "us": _time(p.us), "best of ours": p.best[0] if p.best else "",
        "best us": _time(p.best[1] if p.best else None), "regret": _ratio(p.regret),
        "best peer": p.best_peer[0] if p.best_peer else "",
        "peer us": _time(p.best_peer[1] if p.best_peer else None), "peer / ours": _ratio(p.lead),
        "first us": _time(p.first_us), "first peer": p.first_peer[0] if p.first_peer else "",
        "first peer us": _time(p.first_peer[1] if p.first_peer else None),
        "first peer / ours": _ratio(p.first_lead),
    }  # fmt: skip


def _csv_row(p: Problem) -> dict[str, object]:
    r = p.ours
    best, peer, first = (each or ("", None) for each in (p.best, p.best_peer, p.first_peer))
    return {
        "class": r.family, "matrix": r.matrix, "m": r.m, "n": r.n, "nnz": r.nnz, "k": r.k,
        "dtype": r.dtype, "heads": r.heads, "status": r.status, "chosen": r.kernel, "us": p.us,
        "predicted_us": r.predicted_us.get(r.kernel), "best_kernel": best[0], "best_us": best[1],
        "regret": p.regret, "best_peer": peer[0], "peer_us": peer[1], "peer_over_ours": p.lead,
        "first_us": p.first_us, "first_peer": first[0], "first_peer_us": first[1],
        "first_peer_over_ours": p.first_lead,
    }  # fmt: skip


def _places(records: Sequence[Record]) -> str:
    """The devices and, a line each, the environments of the records."""
    devices = ", ".join(dict.fromkeys(record.place_name for record in records))
    return "\n".join([f"## {devices}", "", *report.provenance(records)])


def _not_served(records: Sequence[Record]) -> str:
    """Why methods have no time, with the number of problems of each reason.

    Sizes, which differ from problem to problem, are left out.
    """
    reasons: dict[str, int] = {}
    for r in records:
        if r.status != "ok":
            text = f"{r.method}: {r.status}: {_SIZE.sub('...', r.reason)}"
            reasons[text] = reasons.get(text, 0) + 1
    return "".join(f"* {text} ({count})\n" for text, count in sorted(reasons.items()))


def _name(p: Problem) -> str:
    r = p.ours
    heads = f", {r.heads} heads" if r.heads > 1 else ""
    return f"{r.matrix} K={r.k} {r.dtype}{heads}"


def _shown(best: Best | None) -> str:
    return f"{best[0]} {_time(best[1])}" if best else ""


def _least(times: Iterable[tuple[str, float | None]]) -> Best | None:
    measured = [(name, us) for name, us in times if us is not None]
    return min(measured, key=lambda pair: pair[1]) if measured else None


def _us(ms: float | None) -> float | None:
    return None if ms is None else 1e3 * ms


def _time(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _mean(values: Sequence[float]) -> str:
    """The geometric mean."""
    return f"{math.exp(statistics.fmean(map(math.log, values))):.3f}" if values else ""
