"""What the columns of a report's CSV mean, a line each, in the groups that the HTML page folds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.bench.page.tables import CASE, Groups, Table
from experiments.bench.record import NOISY, Record

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective

_GROUPS: Groups = {
    CASE: {
        "device": "the processor that computed",
        "threads": "torch's threads on the host",
    },
    "result": {
        "method": "what was measured",
        "status": "ok; skipped (it refused the case); wrong, failed, out_of_memory, timeout",
        "reason": "why it was skipped, or what went wrong",
    },
    "times": {
        "median_ms": "median time of a run",
        "p20_ms": "time that a fifth of the samples do not exceed",
        "p80_ms": "time that four fifths of the samples do not exceed",
        "p80_over_p20": f"the spread of the samples; above {NOISY:g} the row is noisy",
        "samples": "number of timed runs",
        "prepare_ms": "what is done once per case, median",
        "first_call_ms": "a whole first call on data never seen, median of wall times",
    },
    "accuracy": {
        "error": "largest error against float64, relative as the objective defines it",
        "checked": "number of values that were compared",
    },
    "record": {
        "session": "rows of one session were interleaved",
        "date": "when the session began, UTC",
        "commit": "the commit that was measured",
    },
}
_SHORT = frozenset(
    {"device", "method", "status", "median_ms", "p80_over_p20", "first_call_ms"}
)  # fmt: skip


def measurements(objective: AnyObjective, records: Sequence[Record], folded: bool = False) -> Table:
    """Every record of a report: the lines of its CSV with one line per record."""
    lines = objective.csv_lines(records)
    rows = [{**line, "p80_over_p20": r.spread} for line, r in zip(lines, records, strict=True)]
    speedup = f"speedup_over_{objective.baseline}"
    groups = {
        group: {**objective.columns.get(group, {}), **meanings}
        for group, meanings in _GROUPS.items()
    }
    groups["times"][speedup] = f"median time of {objective.baseline} over that of the row"
    groups |= {name: own for name, own in objective.columns.items() if name not in groups}
    return Table(
        "Measurements", rows, groups, short=_SHORT | {speedup} | objective.short, folded=folded,
        note="A row for every method on every case, with the newest record of each.",
    )  # fmt: skip
