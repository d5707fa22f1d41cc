"""The report of the study of regret: the planner's choice beside our best kernel and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.bench import table
from experiments.bench.page.tables import CASE
from experiments.sddmm.columns import PROBLEMS, SHORT
from experiments.sddmm.record import Record
from experiments.sddmm.report_cells import (
    mean_cell,
    present,
    ratio_cell,
    time_cell,
)
from experiments.sddmm.study_problem import Problem, problems
from experiments.sddmm.study_report import (
    StudyReport,
    lost_lines,
    named_rows,
    regret_lines,
)

# The planner's choice over our fastest kernel, above which it is named.
MOST_REGRET = 1.15


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
}
_SHORT = SHORT | {
    *("device", "class", "chosen", "us", "regret", "best_peer", "peer_us", "peer_over_ours"),
}

_LEGEND = (
    "Times in us. `regret`: the planner's choice over the fastest of our kernels, each of which is "
    "measured by its name in the same run. `peer / ours`: above 1 ours is faster. `first`: the "
    "whole first call on a pattern never seen; `torch_float32` is `torch_csr` with operands that "
    "were float32 before. Every column is in report.csv."
)


class RegretReport(StudyReport[Record, Problem[Record]]):
    """Beside what all studies have, kernel_times.md: the time of every kernel of ours, in us."""

    problem, groups, short, legend = Problem[Record], _GROUPS, _SHORT, _LEGEND

    def problems(self, records: Iterable[Record]) -> list[Problem[Record]]:
        """The problems with our kernels and the peers of any session, not of ours alone."""
        return problems(self.problem, records, of_any_session=True)

    def lists(self, found: Sequence[Problem[Record]]) -> Mapping[str, Sequence[str]]:
        by_regret = sorted(found, key=lambda p: -(p.regret or 0))
        return {
            f"**A regret above {MOST_REGRET}**": regret_lines(by_regret, MOST_REGRET),
            "**A peer is faster**": lost_lines(found),
        }

    def means(
        self, own: Sequence[Problem[Record]], found: Sequence[Problem[Record]]
    ) -> dict[str, str]:
        return {
            "regret, mean": mean_cell(p.regret for p in own),
            "regret, largest": ratio_cell(max(present(p.regret for p in own), default=None)),
            "peer / ours, mean": mean_cell(p.lead for p in own),
            "lost to a peer": str(sum(p.is_lost for p in own)),
        }

    def rows(self, found: Sequence[Problem[Record]]) -> list[dict[str, str]]:
        return [
            {
                "chosen": p.ours.kernel or p.ours.status,
                "us": time_cell(p.us),
                "regret": ratio_cell(p.regret),
                "best peer": p.best_peer[0] if p.best_peer else "",
                "peer / ours": ratio_cell(p.lead),
            }
            for p in found
        ]

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        found = self.problems(records)
        names = sorted({r.method for p in found for r in p.kernels})
        times = [{name: time_cell(p.us_of(name)) for name in names} for p in found]
        return super().pages(records) | {"kernel_times.md": table.as_text(named_rows(found, times))}

    def csv_row(self, p: Problem[Record]) -> dict[str, object]:
        r = p.ours
        kernel, peer = (best or ("", None) for best in (p.best_kernel, p.best_peer))
        return {
            "status": r.status, "chosen": r.kernel, "us": p.us,
            "predicted_us": r.predicted_us.get(r.kernel),
            "best_kernel": kernel[0], "best_us": kernel[1], "regret": p.regret,
            "best_peer": peer[0], "peer_us": peer[1], "peer_over_ours": p.lead,
        }  # fmt: skip


REGRET = RegretReport()
