"""SpMM as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, cast

from experiments.bench.columns import measurements
from experiments.bench.digest import file_of
from experiments.bench.methods import Method, Run
from experiments.bench.page.tables import Table
from experiments.bench.timing import elapsed_ms
from experiments.bench.verify import Trial
from experiments.sddmm import case as sddmm_case
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.config import Config
from experiments.sddmm.explanation import chosen_kernel, predictions
from experiments.sddmm.on_pattern import OnPattern
from experiments.spmm import report
from experiments.spmm.case import Case, make_case
from experiments.spmm.forced import ForcedKernel, forced_kernels
from experiments.spmm.methods import BASELINE, METHODS, OURS, YARDSTICKS
from experiments.spmm.prepared import new_product
from experiments.spmm.record import Record
from experiments.spmm.verify import Reference
from sddmm import testing
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pattern_layouts import PatternLayouts

_VIEWS = 3


class Spmm(OnPattern[Case, Record]):
    """This package's SpMM beside its peers and its yardsticks."""

    title, name = "SpMM", "spmm"
    report_command = "report objective=spmm"
    record_type = Record
    ours, baseline, inner = OURS, BASELINE, report.D
    measuring = tuple(
        file_of(thing)
        for thing in (
            Case, Reference, sddmm_case.Case, sddmm_verify.Reference, testing.spmm_error_bound,
            testing.poisoned_outputs,
        )
    )  # fmt: skip
    # sddmm/__init__.py names sddmm.testing, so the digest follows it, but no time depends on it.
    unmeasured = tuple(file_of(testing).parent.glob("*.py"))

    def names(self) -> Sequence[str]:
        return METHODS.names()

    def methods(self, config: Config) -> Mapping[str, Method]:
        kernels = forced_kernels() if config.kernels else {}
        return {**METHODS.select(list(config.methods)), **kernels}

    def warm_caches(self, configs: Sequence[Config]) -> None:
        if len(configs) > 1 and configs[0].warm:
            from experiments.spmm import ahead

            ahead.warm_caches(configs)

    def identity(self, config: Config) -> dict[str, Any]:
        return {**super().identity(config), "transpose": config.transpose}

    def method_identity(self, method: Method) -> dict[str, Any]:
        return {"kernel": method.kernel} if isinstance(method, ForcedKernel) else {}

    def make_case(self, label: str, config: Config, identity: Mapping[str, Any]) -> Case:
        return make_case(label, config, identity["definition"])

    def case_fields(self, case: Case) -> dict[str, Any]:
        return {**super().case_fields(case), "transpose": case.transpose}

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the planner's choice, how a library is called, and what the column view takes."""
        if (variant := getattr(method, "variant", None)) is not None:
            record.variant = variant(case)
        if (reorder_ms := getattr(method, "reorder_ms", None)) is not None:
            record.reorder_ms = reorder_ms(case)
        if record.method != OURS:
            return
        explanation = "\n".join(new_product(case).notes)
        record.kernel = chosen_kernel(explanation)
        record.predicted_us = predictions(explanation)
        if case.transpose:
            record.column_view_ms = statistics.median(_column_view_ms(case) for _ in range(_VIEWS))

    def reference(self, case: Case) -> Reference:
        columns = case.m if case.transpose else case.n
        return Reference(case.view, columns, case.weights, case.dense, case.seed)

    def trials(self, method: Method, case: Case, run: Run, reference: Reference) -> Sequence[Trial]:
        yardstick = getattr(method, "reference", None)
        if yardstick is not None:
            return sddmm_verify.trials(lambda: run, run, yardstick(case))[-1:]
        rounds = getattr(method, "PARTIAL_SUMS_ROUND", False)
        calls = [run]
        if self.times_first_call(method):
            calls.insert(0, lambda: self.first_call(method, case)())
        return [
            Trial(sddmm_verify.poisoned(call), lambda result: reference.check(result, rounds))
            for call in calls
        ]

    def times_first_call(self, method: Method) -> bool:
        """Neither a kernel by its name nor a yardstick is a call that a user makes once."""
        return not isinstance(method, ForcedKernel) and not hasattr(method, "reference")

    def first_call(self, method: Method, case: Case) -> Run:
        """The method's public call, or prepare and run, on a copy of the indices."""
        unseen = case.with_unseen_indices()
        public_call = getattr(method, "public_call", None)
        if public_call is not None:
            return cast(Run, public_call(unseen))
        return lambda: method.prepare(unseen)()

    def labels(self, records: Sequence[Record]) -> dict[tuple[object, ...], dict[str, str]]:
        """The labels of an SDDMM case, with d for K, and the transpose where there are both."""
        both = len({r.transpose for r in records}) > 1
        transposes = {r.case: "T" if r.transpose else "" for r in records}
        return {
            case: {"d" if name == "K" else name: cell for name, cell in cells.items()}
            | ({"transpose": transposes[case]} if both else {})
            for case, cells in super().labels(records).items()
        }

    def role(self, record: Record) -> str:
        return "yardstick" if record.method in YARDSTICKS else super().role(record)

    def csv_case(self, record: Record) -> dict[str, object]:
        return {**super().csv_case(record), "transpose": record.transpose}

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        return report.REPORT.pages(records)

    def tables(self, records: Sequence[Record]) -> list[Table]:
        return [*report.REPORT.tables(records), measurements(self, records, folded=True)]


def _column_view_ms(case: Case) -> float:
    """The time of grouping a pattern by column that nothing has seen, as the kernels read it."""
    pattern = case.with_unseen_indices().pattern
    if not case.device.startswith("cuda"):
        return elapsed_ms(lambda: pattern.by_column, case.device)
    device = loader.runtime.device(loader.runtime.current_device())
    return elapsed_ms(PatternLayouts(pattern.T, device).by_row, case.device)


SPMM = Spmm()
