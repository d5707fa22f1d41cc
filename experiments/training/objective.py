"""A training step as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

from experiments.bench.digest import file_of
from experiments.bench.memory import peak_bytes
from experiments.bench.methods import Method
from experiments.sddmm import case as sddmm_case
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.on_pattern import is_yardstick
from experiments.spmm import verify as spmm_verify
from experiments.spmm.on_sampled import OnSampled
from experiments.training import report
from experiments.training.case import Case, make_case
from experiments.training.methods import BASELINE, METHODS, OURS, OURS_EAGER, YARDSTICKS
from experiments.training.record import Record
from experiments.training.verify import Reference
from sddmm import testing


class Training(OnSampled[Case, Record]):
    """The forward and the backward of sddmm beside their peers and yardsticks."""

    title, name = "Training steps", "training"
    report_command = "report objective=training"
    record_type = Record
    draw_case = staticmethod(make_case)
    ours, baseline = OURS, BASELINE
    folder, yardsticks, study = METHODS, YARDSTICKS, report.REPORT
    products = 3  # the forward, and one for the gradient of each operand
    measuring = tuple(
        file_of(thing)
        for thing in (
            Case, Reference, sddmm_case.Case, sddmm_verify.Reference, spmm_verify.Reference,
            testing.spmm_error_bound, testing.poisoned_outputs,
        )
    )  # fmt: skip

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the memory of a second step, when nothing is prepared any more."""
        if case.device.startswith("cuda") and not is_yardstick(method):
            record.peak_bytes = peak_bytes(method.prepare(case))

    def reference(self, case: Case) -> Reference:
        return Reference(case)

    def role(self, record: Record) -> str:
        return "ours" if record.method == OURS_EAGER else super().role(record)


TRAINING = Training()
