"""The report of a study of training steps: ours beside its yardsticks and the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.bench.page.tables import CASE
from experiments.sddmm import study_problem
from experiments.sddmm.columns import PROBLEMS, SHORT
from experiments.sddmm.report_cells import (
    mean_cell,
    megabytes_cell,
    present,
    ratio,
    ratio_cell,
    time_cell,
)
from experiments.sddmm.study_problem import least_peer_bytes
from experiments.sddmm.study_report import StudyReport, lost_lines
from experiments.spmm.methods.sddmm_tiles import MASKS
from experiments.training.methods import FORWARD, OURS_EAGER, ROW_GATHER, YARDSTICKS
from experiments.training.record import Record

# How long a step may take: so many times row_gather, and launches; on masks, times the forward.
TIMES_ROW_GATHER, LAUNCHES_US, TIMES_FORWARD = 4.5, 60.0, 5.0


class Problem(study_problem.Problem[Record]):
    """The records of one training step."""

    beside_peers = (OURS_EAGER, *YARDSTICKS)

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
        return ratio(self.us, self.limit_us)

    @property
    def over_row_gather(self) -> float | None:
        return ratio(self.us, self.us_of(ROW_GATHER))


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
}
_SHORT = SHORT | {
    *("device", "class", "us", "over_limit", "best_peer", "best_peer_us", "peer_over_ours"),
}

_LEGEND = (
    "Times in us of the forward and the backward of sddmm together, replayed from a CUDA graph. "
    "`limit`: 4.5 times `row_gather` and 60 us, or on masks 5 times the forward. The times of "
    "`sampled_addmm`, in float32, are of calls where no graph captures it. `peak MB`: the memory "
    "that a step allocates, with its results. `first`: a whole first step on a pattern never seen. "
    "Every column is in report.csv."
)


class TrainingReport(StudyReport[Record, Problem]):
    problem, groups, short, legend = Problem, _GROUPS, _SHORT, _LEGEND

    def lists(self, found: Sequence[Problem]) -> Mapping[str, Sequence[str]]:
        over = [
            f"* {p.name}: {time_cell(p.us)} us of {time_cell(p.limit_us)}"
            for p in found
            if p.over_limit and p.over_limit > 1
        ]
        return {"**Above the limit**": over, "**A peer is faster**": lost_lines(found)}

    def means(self, own: Sequence[Problem], found: Sequence[Problem]) -> dict[str, str]:
        limits = present(p.over_limit for p in own)
        return {
            "ours / row_gather, mean": mean_cell(p.over_row_gather for p in own),
            "ours / limit, mean": mean_cell(limits),
            "largest": ratio_cell(max(limits, default=None)),
            "above the limit": str(sum(limit > 1 for limit in limits)),
            "peer / ours, mean": mean_cell(p.lead for p in own),
            "lost to a peer": str(sum(p.is_lost for p in own)),
        }

    def rows(self, found: Sequence[Problem]) -> list[dict[str, str]]:
        return [
            {
                "us": time_cell(p.us),
                "ours / limit": ratio_cell(p.over_limit),
                "best peer": p.best_peer[0] if p.best_peer else "",
                "peer / ours": ratio_cell(p.lead),
                "peak MB": megabytes_cell(p.ours.peak_bytes),
                "least peer MB": megabytes_cell(least_peer_bytes(p)),
            }
            for p in found
        ]

    def csv_row(self, p: Problem) -> dict[str, object]:
        best, best_us = p.best_peer or ("", None)
        names = (OURS_EAGER, ROW_GATHER, FORWARD, "sampled_addmm", "gather_sum")
        return {
            "status": p.ours.status, "us": p.us, **{f"{name}_us": p.us_of(name) for name in names},
            "limit_us": p.limit_us, "over_limit": p.over_limit,
            "best_peer": best, "best_peer_us": best_us, "peer_over_ours": p.lead,
            "peak_bytes": p.ours.peak_bytes, "least_peer_bytes": least_peer_bytes(p),
        }  # fmt: skip


REPORT = TrainingReport()
