"""A training step as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from experiments.bench.columns import measurements
from experiments.bench.digest import file_of
from experiments.bench.methods import Method, Run
from experiments.bench.page.tables import Table
from experiments.bench.verify import Trial
from experiments.sddmm import case as sddmm_case
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.config import Config
from experiments.sddmm.on_pattern import OnPattern
from experiments.spmm import verify as spmm_verify
from experiments.training import report
from experiments.training.case import Case, make_case
from experiments.training.methods import BASELINE, METHODS, OURS, OURS_EAGER, YARDSTICKS
from experiments.training.record import Record
from experiments.training.verify import Reference
from sddmm import testing


class Training(OnPattern[Case, Record]):
    """The forward and the backward of sddmm beside their peers and yardsticks."""

    title, name = "Training steps", "training"
    report_command = "report objective=training"
    record_type = Record
    ours, baseline = OURS, BASELINE
    products = 3  # the forward, and one for the gradient of each operand
    measuring = tuple(
        file_of(thing)
        for thing in (
            Case, Reference, sddmm_case.Case, sddmm_verify.Reference, spmm_verify.Reference,
            testing.spmm_error_bound, testing.poisoned_outputs,
        )
    )  # fmt: skip
    # sddmm/__init__.py names sddmm.testing, so the digest follows it, but no time depends on it.
    unmeasured = tuple(file_of(testing).parent.glob("*.py"))

    def names(self) -> Sequence[str]:
        return METHODS.names()

    def methods(self, config: Config) -> Mapping[str, Method]:
        return METHODS.select(list(config.methods))

    def warm_caches(self, configs: Sequence[Config]) -> None:
        if len(configs) > 1 and configs[0].warm:
            from experiments.training import ahead

            ahead.warm_caches(configs)

    def make_case(self, label: str, config: Config, identity: Mapping[str, Any]) -> Case:
        return make_case(label, config, identity["definition"])

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the memory of a second step, when nothing is prepared any more."""
        if case.device.startswith("cuda") and not hasattr(method, "reference"):
            record.peak_bytes = _peak_bytes(method.prepare(case))

    def reference(self, case: Case) -> Reference:
        return Reference(case)

    def trials(self, method: Method, case: Case, run: Run, reference: Reference) -> Sequence[Trial]:
        yardstick = getattr(method, "reference", None)
        if yardstick is not None:
            return sddmm_verify.trials(lambda: run, run, yardstick(case))[-1:]
        rounds = getattr(method, "PARTIAL_SUMS_ROUND", False)
        calls = [run]
        if self.times_first_call(method):
            calls.insert(0, lambda: self.first_call(method, case)())
        return [
            Trial(sddmm_verify.poisoned(call), lambda step: reference.check(step, rounds))
            for call in calls
        ]

    def times_first_call(self, method: Method) -> bool:
        """A yardstick is no call that a user makes once."""
        return not hasattr(method, "reference")

    def first_call(self, method: Method, case: Case) -> Run:
        """The method's public call, or prepare and run, on a copy of the indices."""
        unseen = case.with_unseen_indices()
        public_call = getattr(method, "public_call", None)
        if public_call is not None:
            return cast(Run, public_call(unseen))
        return lambda: method.prepare(unseen)()

    def role(self, record: Record) -> str:
        if record.method == OURS_EAGER:
            return "ours"
        return "yardstick" if record.method in YARDSTICKS else super().role(record)

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        return report.REPORT.pages(records)

    def tables(self, records: Sequence[Record]) -> list[Table]:
        return [*report.REPORT.tables(records), measurements(self, records, folded=True)]


def _peak_bytes(run: Run) -> int:
    """The memory that a run allocates at most, beside what is allocated before."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before


TRAINING = Training()
