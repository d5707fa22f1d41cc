"""The report of a study of attention: ours beside its yardstick and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from experiments.attention.methods import FLEX, MASKS, OURS, REIMPLEMENTED, ROW_GATHER, YARDSTICKS
from experiments.attention.record import Record
from experiments.bench import table
from experiments.bench.methods import introduction
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

# How long attention may take: in times of row_gather, of the forward and with its gradients; and on
# masks of tiles in times of FlexAttention.
LIMIT, LIMIT_OF_STEP, LIMIT_ON_MASKS = 2.4, 8.5, 1.5
# What a training step may allocate besides its results.
MOST_BESIDES_MB = 64.0
# Below this a row is lost to a peer; above, a difference is that of two runs of one kernel.
LOST = 1 / 1.03
# The planner's choice over our fastest kernel, above which it is named.
MOST_REGRET = 1.1
# The name of K in this objective.
D = "d"
PEERS = (FLEX, "sdpa", "parts", "gather_scatter", "turbo_gnn")


@dataclass(frozen=True)
class Problem:
    """The records of one problem; its figures are in us, and None where nothing was measured."""

    ours: Record
    others: tuple[Record, ...]

    @property
    def us(self) -> float | None:
        return microseconds(self.ours.median_ms)

    def record_of(self, method: str) -> Record | None:
        return next((r for r in reversed(self.others) if r.method == method), None)

    def us_of(self, method: str) -> float | None:
        record = self.record_of(method)
        return microseconds(record.median_ms) if record else None

    def over_ours(self, method: str) -> float | None:
        """The time of a method over ours; below 1 we lose."""
        us = self.us_of(method)
        return us / self.us if us and self.us else None

    @property
    def yardstick(self) -> str:
        """What ours is compared with: FlexAttention on masks of tiles, where it was measured."""
        on_mask = self.ours.family in MASKS and self.us_of(FLEX) is not None
        return FLEX if on_mask else ROW_GATHER

    @property
    def limit(self) -> float:
        if self.yardstick == FLEX:
            return LIMIT_ON_MASKS
        return LIMIT_OF_STEP if self.ours.backward else LIMIT

    @property
    def over_yardstick(self) -> float | None:
        yardstick_us = self.us_of(self.yardstick)
        return self.us / yardstick_us if self.us and yardstick_us else None

    @property
    def is_over_limit(self) -> bool:
        return self.over_yardstick is not None and self.over_yardstick > self.limit

    @cached_property
    def best_kernel(self) -> Best | None:
        """Our fastest kernel, where they were measured; the choice itself if none is faster."""
        forced = least((r.method, microseconds(r.median_ms)) for r in self.others if r.is_forced)
        return forced and least([(self.ours.kernel, self.us), forced])

    @property
    def regret(self) -> float | None:
        """The time of the choice over that of our fastest kernel."""
        return self.us / self.best_kernel[1] if self.us and self.best_kernel else None

    @cached_property
    def best_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_ms)) for r in self._peers())

    @property
    def lead(self) -> float | None:
        """The time of the fastest peer over ours."""
        return self.best_peer[1] / self.us if self.us and self.best_peer else None

    @property
    def is_lost(self) -> bool:
        return self.lead is not None and self.lead < LOST

    @property
    def besides_mb(self) -> float | None:
        """What our training step allocates besides its results."""
        r = self.ours
        return None if r.peak_bytes is None else (r.peak_bytes - r.result_bytes) / 1e6

    @property
    def least_peer_bytes(self) -> int | None:
        sizes = [r.peak_bytes for r in self._peers() if r.peak_bytes is not None]
        return min(sizes) if sizes else None

    @property
    def flex_prepare_us(self) -> float | None:
        """FlexAttention's block mask and compilation."""
        record = self.record_of(FLEX)
        if record is None or record.prepare_ms is None:
            return None
        return microseconds(record.prepare_ms + (record.compile_ms or 0.0))

    @property
    def first_us(self) -> float | None:
        return microseconds(self.ours.median_first_call_ms)

    @cached_property
    def first_peer(self) -> Best | None:
        return least((r.method, microseconds(r.median_first_call_ms)) for r in self._peers())

    def _peers(self) -> list[Record]:
        return [r for r in self.others if not r.is_forced and r.method not in YARDSTICKS]


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
    return sorted(found, key=lambda problem: (problem.ours.backward, problem.ours.family))


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
    told = introduction((r.method for r in records), REIMPLEMENTED)
    with_steps = any(p.ours.backward for p in found)
    rows = [({"device": p.ours.place_name} if several else {}) | _row(p, with_steps) for p in found]
    return {
        "summary.md": as_summary(found),
        "report.md": "\n\n".join(
            (places(records), _LEGEND, told, table.as_text(rows), not_served(records))
        ),
        "report.csv": table.csv_text([_csv_row(problem) for problem in found]),
    }


_GROUPS = {
    CASE: PROBLEMS,
    "ours": {
        "status": "how our own call went",
        "chosen": "the kernel that the planner chose",
        "us": "its time, replayed from a CUDA graph, with the gradients where there is a backward",
        "predicted_us": "what the cost model predicted for its forward",
        "best_kernel": "the fastest of our kernels, each measured by its name",
        "best_us": "its time",
        "regret": "the choice over the fastest of our kernels",
    },
    "yardsticks": {
        "row_gather_us": "our SDDMM on the same pattern, by the kernel row_gather",
        "yardstick": "what ours is compared with: flex on masks of tiles, else row_gather",
        "over_yardstick": "our time over that",
        "limit": "what that ratio may be",
    },
    "peers": {
        "flex_us": "FlexAttention, compiled, on the block mask of S",
        "sdpa_us": "dense scaled_dot_product_attention, with a mask unless it is causal",
        "parts_us": "our sddmm, softmax and spmm, one after another",
        "gather_scatter_us": "rows gathered, softmax by scatter, as PyTorch Geometric does",
        "turbo_gnn_us": "turbo-gnn's graph_transformer_aggr",
        "best_peer": "the fastest of these",
        "peer_over_ours": "its time over ours; below 1 we lose",
    },
    "memory": {
        "peak_bytes": "memory that our training step allocates, with its results",
        "result_bytes": "what the results and a float32 of each row and head take",
        "besides_mb": "the rest of our step's memory, in MB",
        **{f"{name}_peak_bytes": f"memory that a step of {name} allocates" for name in PEERS},
    },
    "preparation": {
        "prepare_us": "what is done once per pattern",
        "flex_prepare_us": "FlexAttention's block mask and compilation, from its caches on disk",
    },
    "first call": {
        "first_us": "our whole first call on a pattern never seen",
        "first_peer": "the peer whose first call is shortest",
        "first_peer_us": "its first call, compiled before",
    },
}
_SHORT = SHORT | {
    *("device", "class", "chosen", "us", "over_yardstick", "best_peer"),
    *("peer_over_ours", "besides_mb", "first_us", "first_peer_us"),
}

_LEGEND = (
    "Times in us of whole attentions, or, with the backward, of training steps, replayed from a "
    "CUDA graph. `yardstick`: on masks of tiles FlexAttention, compiled, elsewhere our SDDMM on "
    "the same pattern, d and heads by `row_gather`; ours may take 1.5 times as long as the former, "
    "and 2.4 times as long as the latter, 8.5 with the backward. The columns of peers are their "
    "times over ours: below 1 we lose. `peak MB`: the memory that a training step allocates, with "
    "its results; `besides MB`: without them. `first`: the whole first call on a pattern never "
    "seen. Every column is in report.csv."
)


def as_summary(found: Sequence[Problem]) -> str:
    """The geometric means for each class of patterns and for all, and the rows that are lost."""
    over = [
        f"* {_name(p)}: {p.over_yardstick:.2f} of {p.limit}, "
        f"{p.ours.kernel} {time_cell(p.us)} us, {p.yardstick} {time_cell(p.us_of(p.yardstick))} us"
        for p in found
        if p.is_over_limit
    ]
    lost = [
        f"* {_name(p)}: {best_cell(p.best_peer)} us, ours {time_cell(p.us)}"
        for p in found
        if p.is_lost
    ]
    large = [
        f"* {_name(p)}: {p.besides_mb:,.1f} MB"
        for p in found
        if p.besides_mb is not None and p.besides_mb > MOST_BESIDES_MB
    ]
    regrets = [
        f"* {_name(p)}: {p.regret:.2f}, {p.ours.kernel} {time_cell(p.us)} us, "
        f"{best_cell(p.best_kernel)} us"
        for p in found
        if p.regret and p.regret > MOST_REGRET
    ]
    memory = (f"**More than {MOST_BESIDES_MB:g} MB besides the results** ({len(large)})", "")
    is_step = any(p.ours.backward for p in found)
    return "\n".join((
        table.as_text(_summary_rows(found)), "",
        f"**Above the limit** ({len(over)})", "", *over, "",
        f"**A peer is faster by more than 3 %** ({len(lost)})", "", *lost, "",
        f"**A regret above {MOST_REGRET}** ({len(regrets)})", "", *regrets, "",
        *((*memory, *large, "") if is_step else ()),
    ))  # fmt: skip


def _summary_rows(found: Sequence[Problem]) -> list[dict[str, str]]:
    """A row for each class of patterns, and one for all; none without problems."""
    families = dict.fromkeys(problem.ours.family for problem in found)
    rows = [_summary_row(name, [p for p in found if p.ours.family == name]) for name in families]
    return [*rows, _summary_row("all", found)] if found else []


def _summary_row(family: str, found: Sequence[Problem]) -> dict[str, str]:
    gathers = [1 / ratio for p in found if (ratio := p.over_ours(ROW_GATHER))]
    flex = [1 / ratio for p in found if (ratio := p.over_ours(FLEX))]
    leads = [p.lead for p in found if p.lead is not None]
    first = [p.first_peer[1] / p.first_us for p in found if p.first_peer and p.first_us]
    peers = {
        f"{name} / ours, mean": mean_cell([x for p in found if (x := p.over_ours(name))])
        for name in PEERS
        if name != FLEX
    }
    return {
        "class": family,
        "problems": str(len(found)),
        "ours / row_gather, mean": mean_cell(gathers),
        "ours / flex, mean": mean_cell(flex),
        "largest over limit": _largest(found),
        "above the limit": str(sum(p.is_over_limit for p in found)),
        **peers,
        "least": f"{min(leads):.2f}" if leads else "",
        "lost to a peer": str(sum(p.is_lost for p in found)),
        "first call, peer / ours, mean": mean_cell(first),
    }


def _largest(found: Sequence[Problem]) -> str:
    """The largest ratio to a yardstick over what it may be."""
    ratios = [p.over_yardstick / p.limit for p in found if p.over_yardstick is not None]
    return f"{max(ratios):.2f}" if ratios else ""


def _name(p: Problem) -> str:
    return problem_name(p.ours, D) + (", with gradients" if p.ours.backward else "")


def _row(p: Problem, with_steps: bool) -> dict[str, str]:
    """with_steps: whether the table has training steps, and so their columns."""
    r = p.ours
    memory = {
        "peak MB": _megabytes(r.peak_bytes),
        "besides MB": "" if p.besides_mb is None else f"{p.besides_mb:,.1f}",
        "least peer MB": _megabytes(p.least_peer_bytes),
    }
    return {
        "class": r.family, "matrix": r.matrix, "nnz": f"{r.nnz:,}",
        "d": str(r.k), "dtype": r.dtype, "heads": str(r.heads),
        **({"gradients": "with" if r.backward else ""} if with_steps else {}),
        "chosen": r.kernel or r.status, "us": time_cell(p.us), "regret": ratio_cell(p.regret),
        "yardstick": p.yardstick,
        "ours / yardstick": ratio_cell(p.over_yardstick),
        **{name: ratio_cell(p.over_ours(name)) for name in PEERS},
        **(memory if with_steps else {}),
        "prepare us": time_cell(microseconds(r.prepare_ms)),
        "first us": time_cell(p.first_us),
        "first peer us": time_cell(p.first_peer[1] if p.first_peer else None),
    }  # fmt: skip


def _csv_row(p: Problem) -> dict[str, object]:
    r = p.ours
    kernel, best, first = (x or ("", None) for x in (p.best_kernel, p.best_peer, p.first_peer))
    peaks = {name: p.record_of(name) for name in PEERS}
    return {
        "device": r.place_name,
        "class": r.family, "matrix": r.matrix, "m": r.m, "n": r.n, "nnz": r.nnz, "d": r.k,
        "dtype": r.dtype, "heads": r.heads, "backward": r.backward, "status": r.status,
        "chosen": r.kernel, "us": p.us, "predicted_us": r.predicted_us.get(r.kernel),
        "best_kernel": kernel[0], "best_us": kernel[1], "regret": p.regret,
        "row_gather_us": p.us_of(ROW_GATHER), "yardstick": p.yardstick,
        "over_yardstick": p.over_yardstick, "limit": p.limit,
        **{f"{name}_us": p.us_of(name) for name in PEERS},
        "best_peer": best[0], "peer_over_ours": p.lead,
        "peak_bytes": r.peak_bytes, "result_bytes": r.result_bytes, "besides_mb": p.besides_mb,
        **{f"{name}_peak_bytes": own.peak_bytes if own else None for name, own in peaks.items()},
        "prepare_us": microseconds(r.prepare_ms), "flex_prepare_us": p.flex_prepare_us,
        "first_us": p.first_us, "first_peer": first[0], "first_peer_us": first[1],
    }  # fmt: skip


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"
