"""The report of a study of attention: ours beside its yardstick and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from experiments.attention.methods import FLEX, MASKS, REIMPLEMENTED, ROW_GATHER, YARDSTICKS
from experiments.attention.record import Record
from experiments.bench.methods import introduction
from experiments.bench.page.tables import CASE
from experiments.sddmm.columns import PROBLEMS, SHORT
from experiments.sddmm.report_cells import (
    Best,
    least,
    mean_cell,
    megabytes_cell,
    microseconds,
    present,
    ratio,
    ratio_cell,
    time_cell,
)
from experiments.sddmm.study_problem import HeldToYardstick, least_peer_bytes, times_of
from experiments.sddmm.study_report import (
    LOST,
    MOST_REGRET,
    StudyReport,
    lost_lines,
    over_limit_lines,
    regret_lines,
)

# How long attention may take: in times of row_gather, of the forward and with its gradients; and on
# masks of tiles in times of FlexAttention.
LIMIT, LIMIT_OF_STEP, LIMIT_ON_MASKS = 2.4, 8.5, 1.5
# What a training step may allocate besides its results.
MOST_BESIDES_MB = 64.0
# The name of K in this objective.
D = "d"
PEERS = (FLEX, "sdpa", "parts", "gather_scatter", "turbo_gnn")


class Problem(HeldToYardstick[Record]):
    """The records of one attention, forward alone or with its gradients."""

    size, beside_peers, lost_below = D, YARDSTICKS, LOST

    @property
    def name(self) -> str:
        return super().name + (", with gradients" if self.ours.backward else "")

    def over_ours(self, method: str) -> float | None:
        """The time of a method over ours; below 1 we lose."""
        return ratio(self.us_of(method), self.us)

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

    @cached_property
    def best_kernel(self) -> Best | None:
        """Our fastest kernel, where they were measured; the choice itself if none is faster."""
        return super().best_kernel if least(times_of(self.kernels)) else None

    @property
    def besides_mb(self) -> float | None:
        """What our training step allocates besides its results."""
        r = self.ours
        return None if r.peak_bytes is None else (r.peak_bytes - r.result_bytes) / 1e6

    @property
    def flex_prepare_us(self) -> float | None:
        """FlexAttention's block mask and compilation."""
        record = self.record_of(FLEX)
        if record is None or record.prepare_ms is None:
            return None
        return microseconds(record.prepare_ms + (record.compile_ms or 0.0))


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
}
_SHORT = SHORT | {
    *("device", "class", "chosen", "us", "over_yardstick", "best_peer"),
    *("peer_over_ours", "besides_mb"),
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


class AttentionReport(StudyReport[Record, Problem]):
    problem, groups, short, legend = Problem, _GROUPS, _SHORT, _LEGEND

    def problems(self, records: Iterable[Record]) -> list[Problem]:
        """The problems by class, those with gradients after the others."""
        return sorted(super().problems(records), key=lambda p: p.ours.backward)

    def introduction(self, records: Sequence[Record]) -> list[str]:
        return [self.legend, introduction((r.method for r in records), REIMPLEMENTED)]

    def lists(self, found: Sequence[Problem]) -> Mapping[str, Sequence[str]]:
        large = [
            f"* {p.name}: {p.besides_mb:,.1f} MB"
            for p in found
            if p.besides_mb is not None and p.besides_mb > MOST_BESIDES_MB
        ]
        memory = {f"**More than {MOST_BESIDES_MB:g} MB besides the results**": large}
        return {
            "**Above the limit**": over_limit_lines(found),
            "**A peer is faster by more than 3 %**": lost_lines(found),
            f"**A regret above {MOST_REGRET}**": regret_lines(found, MOST_REGRET),
            **(memory if any(p.ours.backward for p in found) else {}),
        }

    def means(self, own: Sequence[Problem], found: Sequence[Problem]) -> dict[str, str]:
        limits = [p.over_yardstick / p.limit for p in own if p.over_yardstick is not None]
        others = [name for name in _measured(found) if name != FLEX]
        return {
            "ours / row_gather, mean": _mean_over(own, ROW_GATHER),
            "ours / flex, mean": _mean_over(own, FLEX),
            "largest over limit": ratio_cell(max(limits, default=None)),
            "above the limit": str(sum(p.is_over_limit for p in own)),
            **{
                f"{name} / ours, mean": mean_cell(p.over_ours(name) for p in own) for name in others
            },
            "least": ratio_cell(min(present(p.lead for p in own), default=None)),
            "lost to a peer": str(sum(p.is_lost for p in own)),
        }

    def rows(self, found: Sequence[Problem]) -> list[dict[str, str]]:
        with_steps = any(p.ours.backward for p in found)
        return [_row(p, _measured(found), with_steps) for p in found]

    def csv_row(self, p: Problem) -> dict[str, object]:
        r = p.ours
        kernel, peer = (best or ("", None) for best in (p.best_kernel, p.best_peer))
        beside = {name: p.record_of(name) for name in PEERS}
        return {
            "backward": r.backward, "status": r.status, "chosen": r.kernel, "us": p.us,
            "predicted_us": r.predicted_us.get(r.kernel),
            "best_kernel": kernel[0], "best_us": kernel[1], "regret": p.regret,
            "row_gather_us": p.us_of(ROW_GATHER), "yardstick": p.yardstick,
            "over_yardstick": p.over_yardstick, "limit": p.limit,
            **{f"{name}_us": p.us_of(name) for name in PEERS},
            "best_peer": peer[0], "peer_over_ours": p.lead,
            "peak_bytes": r.peak_bytes, "result_bytes": r.result_bytes,
            "besides_mb": p.besides_mb,
            **{f"{name}_peak_bytes": own and own.peak_bytes for name, own in beside.items()},
            "prepare_us": microseconds(r.prepare_ms), "flex_prepare_us": p.flex_prepare_us,
        }  # fmt: skip


def _mean_over(found: Sequence[Problem], yardstick: str) -> str:
    """The mean time of ours over that of a yardstick."""
    return mean_cell(1 / over for p in found if (over := p.over_ours(yardstick)))


def _measured(found: Sequence[Problem]) -> list[str]:
    """The peers that have a time here, in their order."""
    return [name for name in PEERS if any(p.us_of(name) is not None for p in found)]


def _row(p: Problem, peers: Iterable[str], with_steps: bool) -> dict[str, str]:
    """with_steps: whether the table has training steps, and so their columns."""
    r = p.ours
    memory = {
        "peak MB": megabytes_cell(r.peak_bytes),
        "besides MB": "" if p.besides_mb is None else f"{p.besides_mb:,.1f}",
        "least peer MB": megabytes_cell(least_peer_bytes(p)),
    }
    return {
        **({"gradients": "with" if r.backward else ""} if with_steps else {}),
        "chosen": r.kernel or r.status,
        "us": time_cell(p.us),
        "regret": ratio_cell(p.regret),
        "yardstick": p.yardstick,
        "ours / yardstick": ratio_cell(p.over_yardstick),
        **{name: ratio_cell(p.over_ours(name)) for name in peers},
        **(memory if with_steps else {}),
        "prepare us": time_cell(microseconds(r.prepare_ms)),
    }


REPORT = AttentionReport()
