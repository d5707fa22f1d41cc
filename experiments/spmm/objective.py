"""SpMM as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from experiments.bench.digest import file_of
from experiments.bench.methods import Method
from experiments.bench.timing import elapsed_ms
from experiments.sddmm import case as sddmm_case
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.explanation import note_choice
from experiments.spmm import report
from experiments.spmm.case import Case, make_case
from experiments.spmm.forced import forced_kernels
from experiments.spmm.methods import BASELINE, METHODS, OURS, YARDSTICKS
from experiments.spmm.on_sampled import OnSampled
from experiments.spmm.prepared import new_product
from experiments.spmm.record import Record
from experiments.spmm.verify import Reference
from sddmm import testing
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pattern_layouts import PatternLayouts

_VIEWS = 3


class Spmm(OnSampled[Case, Record]):
    """This package's SpMM beside its peers and its yardsticks."""

    title, name = "SpMM", "spmm"
    report_command = "report objective=spmm"
    record_type = Record
    draw_case = staticmethod(make_case)
    ours, baseline, inner = OURS, BASELINE, report.D
    folder, yardsticks, study = METHODS, YARDSTICKS, report.REPORT
    flag, flag_cell = "transpose", "T"
    measuring = tuple(
        file_of(thing)
        for thing in (
            Case, Reference, sddmm_case.Case, sddmm_verify.Reference, testing.spmm_error_bound,
            testing.poisoned_outputs,
        )
    )  # fmt: skip

    def forced_kernels(self) -> Mapping[str, Method]:
        return forced_kernels()

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the planner's choice, how a library is called, and what the column view takes."""
        if (variant := getattr(method, "variant", None)) is not None:
            record.variant = variant(case)
        if record.method != OURS:
            return
        note_choice(record, "\n".join(new_product(case).notes))
        if case.transpose:
            record.column_view_ms = statistics.median(_column_view_ms(case) for _ in range(_VIEWS))

    def reference(self, case: Case) -> Reference:
        columns = case.m if case.transpose else case.n
        return Reference(case.view, columns, case.weights, case.dense, case.seed)


def _column_view_ms(case: Case) -> float:
    """The time of grouping a pattern by column that nothing has seen, as the kernels read it."""
    pattern = case.with_unseen_indices().pattern
    if not case.device.startswith("cuda"):
        return elapsed_ms(lambda: pattern.by_column, case.device)
    device = loader.runtime.device(loader.runtime.current_device())
    return elapsed_ms(PatternLayouts(pattern.T, device).by_row, case.device)


SPMM = Spmm()
