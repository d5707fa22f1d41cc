"""The report of a study of SpMM: ours beside its yardstick, cuSPARSE and the other peers."""

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
from experiments.spmm.methods import OURS, ROW_GATHER, TILES, YARDSTICKS
from experiments.spmm.record import Record

# How long a product may take, in times of its yardstick: as it is, transposed, and on masks.
LIMIT, LIMIT_TRANSPOSED, LIMIT_ON_TILES = 1.35, 1.6, 1.6
# Below this a row is lost to a peer; above, a difference is that of two runs of one kernel.
LOST = 1 / 1.03
# The name of K in this objective.
D = "d"
_CUSPARSE = ("cusparse_alg2", "cusparse_alg3")


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

    def way_of(self, method: str) -> str:
        """How a library was called, where there are several ways."""
        return "".join(r.variant for r in self.others if r.method == method)

    @property
    def yardstick(self) -> str:
        """The SDDMM with which ours is compared: on masks that by tiles."""
        return ROW_GATHER if self.us_of(TILES) is None else TILES

    @property
    def limit(self) -> float:
        if self.yardstick == TILES:
            return LIMIT_ON_TILES
        return LIMIT_TRANSPOSED if self.ours.transpose else LIMIT

    @property
    def over_yardstick(self) -> float | None:
        yardstick_us = self.us_of(self.yardstick)
        return self.us / yardstick_us if self.us and yardstick_us else None

    @property
    def is_over_limit(self) -> bool:
        return self.over_yardstick is not None and self.over_yardstick > self.limit

    @cached_property
    def best_kernel(self) -> Best | None:
        """Our fastest kernel; it is the choice itself if none is faster."""
        forced = [(r.method, microseconds(r.median_ms)) for r in self.others if r.is_forced]
        return least([(self.ours.kernel, self.us), *forced])

    @property
    def regret(self) -> float | None:
        """The time of the choice over that of our fastest kernel."""
        return self.us / self.best_kernel[1] if self.us and self.best_kernel else None

    @cached_property
    def best_cusparse(self) -> Best | None:
        return least((name, self.us_of(name)) for name in _CUSPARSE)

    @cached_property
    def best_other(self) -> Best | None:
        """The fastest peer besides cuSPARSE called raw."""
        return least((r.method, microseconds(r.median_ms)) for r in self._peers(without=_CUSPARSE))

    @property
    def best_peer(self) -> Best | None:
        return least(filter(None, (self.best_cusparse, self.best_other)))

    @property
    def lead(self) -> float | None:
        """The time of the fastest algorithm of cuSPARSE over ours."""
        return self.best_cusparse[1] / self.us if self.us and self.best_cusparse else None

    @property
    def reorder_us(self) -> float | None:
        """What the fastest algorithm of cuSPARSE would need besides, of weights in S's order."""
        name = self.best_cusparse[0] if self.best_cusparse else ""
        times = [microseconds(r.reorder_ms) for r in self.others if r.method == name]
        return times[-1] if times else None

    @property
    def lead_with_reordering(self) -> float | None:
        if self.lead is None or not self.us:
            return None
        return self.lead + (self.reorder_us or 0.0) / self.us

    @property
    def other_lead(self) -> float | None:
        return self.best_other[1] / self.us if self.us and self.best_other else None

    @property
    def is_lost(self) -> bool:
        return any(lead is not None and lead < LOST for lead in (self.lead, self.other_lead))

    @property
    def first_us(self) -> float | None:
        return microseconds(self.ours.median_first_call_ms)

    @cached_property
    def first_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_first_call_ms)) for r in self._peers())

    def _peers(self, without: Sequence[str] = ()) -> list[Record]:
        excluded = (*YARDSTICKS, *without)
        return [r for r in self.others if not r.is_forced and r.method not in excluded]


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
        "status": "how our own call went",
        "chosen": "the kernel that the planner chose",
        "us": "kernel time of the choice",
        "predicted_us": "what the cost model predicted for it",
        "best_kernel": "the fastest of our kernels, each measured by its name",
        "best_us": "its time",
        "regret": "the choice over the fastest of our kernels",
    },
    "yardsticks": {
        "row_gather_us": "our SDDMM on the same pattern, by the kernel row_gather",
        "sddmm_tiles_us": "our SDDMM on a mask, by the kernel that the planner chooses",
        "over_yardstick": "our product over its yardstick",
        "limit": "what that ratio may be",
    },
    "peers": {
        "cusparse_alg2_us": "cusparseSpMM with CSR_ALG2, called raw",
        "cusparse_alg3_us": "cusparseSpMM with CSR_ALG3, called raw",
        "cusparse_alg2_way": "how it was called, the fastest way",
        "cusparse_alg3_way": "how it was called, the fastest way",
        "cusparse_over_ours": "the faster of the two over ours; below 1 we lose",
        "cusparse_reorder_us": "what it needs besides to put weights in the transpose's order",
        "torch_csr_us": "torch's CSR product",
        "gather_index_add_us": "rows gathered, then added by index_add",
        "other": "the faster of these two",
        "other_over_ours": "its time over ours; below 1 we lose",
    },
    "preparation": {
        "prepare_us": "what is done once per pattern",
        "column_view_us": "the part of it that checks the pattern and groups it by column",
    },
    "first call": {
        "first_us": "our whole first call on a pattern never seen",
        "first_peer": "the peer whose first call is shortest",
        "first_peer_us": "its first call",
    },
}
_SHORT = SHORT | {
    *("device", "class", "chosen", "us", "regret", "over_yardstick", "cusparse_over_ours"),
    *("other_over_ours", "first_us", "first_peer_us"),
}

_LEGEND = (
    "Kernel times in us. `yardstick`: our SDDMM on the same pattern, d and heads, by `row_gather`, "
    "and on masks by the kernel that the planner chooses. `cuSPARSE`: the faster of cusparseSpMM's "
    "CSR_ALG2 and CSR_ALG3, called raw and preprocessed. `other`: the faster of `torch_csr` and "
    "`gather_index_add`. `column view`: checking the pattern and grouping it by column, once. "
    "`first`: the whole first call on a pattern never seen. Every column is in report.csv."
)


def as_summary(found: Sequence[Problem]) -> str:
    """The geometric means for each class of patterns and for all, and the rows that are lost."""
    rows = _summary_rows(found)
    over = [
        f"* {problem_name(p.ours, 'd')}: {p.over_yardstick:.2f} of {p.limit}, {p.ours.kernel} "
        f"{time_cell(p.us)} us, {p.yardstick} {time_cell(p.us_of(p.yardstick))} us"
        for p in found
        if p.is_over_limit
    ]
    lost = [
        f"* {problem_name(p.ours, 'd')}: {best_cell(p.best_peer)} us, ours {time_cell(p.us)}"
        for p in found
        if p.is_lost
    ]
    regrets = [
        f"* {problem_name(p.ours, 'd')}: {p.regret:.2f}, {p.ours.kernel} {time_cell(p.us)} us, "
        f"{best_cell(p.best_kernel)} us"
        for p in found
        if p.regret and p.regret > 1.1
    ]
    return "\n".join((
        table.as_text(rows), "",
        f"**Above the limit** ({len(over)})", "", *over, "",
        f"**A peer is faster by more than 3 %** ({len(lost)})", "", *lost, "",
        f"**A regret above 1.1** ({len(regrets)})", "", *regrets, "",
    ))  # fmt: skip


def _summary_rows(found: Sequence[Problem]) -> list[dict[str, str]]:
    """A row for each class of patterns, and one for all; none without problems."""
    families = dict.fromkeys(problem.ours.family for problem in found)
    rows = [_summary_row(name, [p for p in found if p.ours.family == name]) for name in families]
    return [*rows, _summary_row("all", found)] if found else []


def _summary_row(family: str, found: Sequence[Problem]) -> dict[str, str]:
    ratios = [p.over_yardstick for p in found if p.over_yardstick is not None]
    leads = [p.lead for p in found if p.lead is not None]
    reordered = [p.lead_with_reordering for p in found if p.lead_with_reordering is not None]
    others = [p.other_lead for p in found if p.other_lead is not None]
    first = [p.first_peer[1] / p.first_us for p in found if p.first_peer and p.first_us]
    return {
        "class": family,
        "problems": str(len(found)),
        "ours / yardstick, mean": mean_cell(ratios),
        "largest": f"{max(ratios):.2f}" if ratios else "",
        "above the limit": str(sum(p.is_over_limit for p in found)),
        "cuSPARSE / ours, mean": mean_cell(leads),
        "least": f"{min(leads):.2f}" if leads else "",
        **({"with reordering, mean": mean_cell(reordered)} if found[0].ours.transpose else {}),
        "other / ours, mean": mean_cell(others),
        "lost to a peer": str(sum(p.is_lost for p in found)),
        "first call, peer / ours, mean": mean_cell(first),
    }


def _row(p: Problem) -> dict[str, str]:
    r = p.ours
    return {
        "class": r.family, "matrix": r.matrix, "nnz": f"{r.nnz:,}",
        "d": str(r.k), "dtype": r.dtype, "heads": str(r.heads), "chosen": r.kernel or r.status,
        "us": time_cell(p.us), "regret": ratio_cell(p.regret),
        "ours / yardstick": ratio_cell(p.over_yardstick),
        "cuSPARSE / ours": ratio_cell(p.lead), "other / ours": ratio_cell(p.other_lead),
        **({"column view us": time_cell(microseconds(r.column_view_ms))} if r.transpose else {}),
        "first us": time_cell(p.first_us),
        "first peer us": time_cell(p.first_peer[1] if p.first_peer else None),
    }  # fmt: skip


def _csv_row(p: Problem) -> dict[str, object]:
    r = p.ours
    best, other, first = (x or ("", None) for x in (p.best_kernel, p.best_other, p.first_peer))
    return {
        "device": r.place_name,
        "class": r.family, "matrix": r.matrix, "m": r.m, "n": r.n, "nnz": r.nnz, "d": r.k,
        "dtype": r.dtype, "heads": r.heads, "transpose": r.transpose, "status": r.status,
        "chosen": r.kernel, "us": p.us, "predicted_us": r.predicted_us.get(r.kernel),
        "best_kernel": best[0], "best_us": best[1], "regret": p.regret,
        "row_gather_us": p.us_of(ROW_GATHER), "sddmm_tiles_us": p.us_of(TILES),
        "over_yardstick": p.over_yardstick, "limit": p.limit,
        **{f"{name}_us": p.us_of(name) for name in (*_CUSPARSE, "torch_csr", "gather_index_add")},
        **{f"{name}_way": p.way_of(name) for name in _CUSPARSE},
        "cusparse_over_ours": p.lead, "cusparse_reorder_us": p.reorder_us,
        "other": other[0], "other_over_ours": p.other_lead,
        "prepare_us": microseconds(r.prepare_ms),
        "column_view_us": microseconds(r.column_view_ms), "first_us": p.first_us,
        "first_peer": first[0], "first_peer_us": first[1],
    }  # fmt: skip
