"""The report of the study of regret: the planner's choice beside our best kernel and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.bench import table
from experiments.bench.page.tables import CASE
from experiments.sddmm.columns import PROBLEMS, SHORT
from experiments.sddmm.record import Record
from experiments.sddmm.report_cells import (
    mean_cell,
    microseconds,
    present,
    ratio,
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
# What our first call in half precision may take, in times of torch's on the same operands in
# float32, from so many nonzeros up.
_FLOAT32 = "torch_float32"
_MOST_OF_FLOAT32, _FROM_NNZ = 0.9, 300_000


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


class RegretProblem(Problem[Record]):
    """A problem whose first call in half precision is held to torch's in float32."""

    @property
    def float32_first_us(self) -> float | None:
        """torch's first call on half operands that were float32 before; None in other types."""
        record = self.record_of(_FLOAT32)
        return microseconds(record.median_first_call_ms) if record else None

    @property
    def first_over_float32(self) -> float | None:
        """Our first call over torch's in float32; None with fewer than _FROM_NNZ nonzeros."""
        is_held = self.ours.nnz >= _FROM_NNZ
        return ratio(self.first_us, self.float32_first_us) if is_held else None

    @property
    def is_over_float32(self) -> bool:
        return self.first_over_float32 is not None and self.first_over_float32 > _MOST_OF_FLOAT32


class RegretReport(StudyReport[Record, RegretProblem]):
    """Beside what all studies have, kernel_times.md: the time of every kernel of ours, in us."""

    problem, groups, short, legend = RegretProblem, _GROUPS, _SHORT, _LEGEND

    def problems(self, records: Iterable[Record]) -> list[RegretProblem]:
        """The problems with our kernels and the peers of any session, not of ours alone."""
        return problems(self.problem, records, of_any_session=True)

    def lists(self, found: Sequence[RegretProblem]) -> Mapping[str, Sequence[str]]:
        by_regret = sorted(found, key=lambda p: -(p.regret or 0))
        return {
            f"**A regret above {MOST_REGRET}**": regret_lines(by_regret, MOST_REGRET),
            "**A peer is faster**": lost_lines(found),
            f"**A first call in half precision takes more than {_MOST_OF_FLOAT32} times that of "
            f"`{_FLOAT32}`, from {_FROM_NNZ:,} nonzeros up**": _over_float32_lines(found),
        }

    def means(self, own: Sequence[RegretProblem], found: Sequence[RegretProblem]) -> dict[str, str]:
        return {
            "regret, mean": mean_cell(p.regret for p in own),
            "regret, largest": ratio_cell(max(present(p.regret for p in own), default=None)),
            "peer / ours, mean": mean_cell(p.lead for p in own),
            "lost to a peer": str(sum(p.is_lost for p in own)),
            f"first calls above {_MOST_OF_FLOAT32} of {_FLOAT32}": str(
                sum(p.is_over_float32 for p in own)
            ),
        }

    def rows(self, found: Sequence[RegretProblem]) -> list[dict[str, str]]:
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

    def csv_row(self, p: RegretProblem) -> dict[str, object]:
        r = p.ours
        kernel, peer = (best or ("", None) for best in (p.best_kernel, p.best_peer))
        return {
            "status": r.status, "chosen": r.kernel, "us": p.us,
            "predicted_us": r.predicted_us.get(r.kernel),
            "best_kernel": kernel[0], "best_us": kernel[1], "regret": p.regret,
            "best_peer": peer[0], "peer_us": peer[1], "peer_over_ours": p.lead,
        }  # fmt: skip


def _over_float32_lines(found: Sequence[RegretProblem]) -> list[str]:
    """The problems whose first call in half precision takes too large a part of torch's."""
    return [
        f"* {p.name}, {p.ours.nnz:,} nonzeros: {ratio_cell(p.first_over_float32)}, "
        f"ours {time_cell(p.first_us)} us, {_FLOAT32} {time_cell(p.float32_first_us)} us"
        for p in found
        if p.is_over_float32
    ]


REGRET = RegretReport()
