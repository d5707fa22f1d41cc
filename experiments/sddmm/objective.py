"""SDDMM as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.columns import measurements
from experiments.bench.digest import file_of
from experiments.bench.methods import Method, Run
from experiments.bench.page.tables import Table
from experiments.bench.table import figure
from experiments.bench.verify import Trial
from experiments.sddmm import published, verify
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.explanation import note_choice
from experiments.sddmm.forced import forced_kernels
from experiments.sddmm.methods import BASELINE, METHODS, OURS, REIMPLEMENTED, ours
from experiments.sddmm.on_pattern import OnPattern
from experiments.sddmm.record import Record
from experiments.sddmm.regret import REGRET
from experiments.sddmm.scaled import ThenScaled, then_scaled
from experiments.sddmm.verify import Reference
from sddmm import testing


class Sddmm(OnPattern[Case, Record]):
    """This package's SDDMM beside its peers."""

    title, name = "SDDMM", "sddmm"
    record_type = Record
    draw_case = staticmethod(make_case)
    ours, baseline, folder = OURS, BASELINE, METHODS
    measuring = tuple(
        file_of(thing) for thing in (Case, Reference, testing.error_bound, testing.poisoned_outputs)
    )
    reimplemented = REIMPLEMENTED

    def methods(self, config: Config) -> Mapping[str, Method]:
        methods = super().methods(config)
        return then_scaled(methods) if config.scaled else methods

    def forced_kernels(self) -> Mapping[str, Method]:
        return forced_kernels()

    def sources(self, method: Method) -> list[Path]:
        own = super().sources(method)
        return [*own, file_of(ThenScaled)] if isinstance(method, ThenScaled) else own

    def identity(self, config: Config) -> dict[str, Any]:
        return super().identity(config) | ({"scaled": True} if config.scaled else {})

    def case_fields(self, case: Case) -> dict[str, Any]:
        return super().case_fields(case) | {"scaled": case.values is not None}

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the planner's choice and its predictions."""
        if record.method == OURS:
            note_choice(record, ours.new_plan(case).explain())

    def reference(self, case: Case) -> Reference:
        return Reference(case)

    def trials(self, method: Method, case: Case, run: Run, reference: Reference) -> Sequence[Trial]:
        first_call = functools.partial(self.first_call, method, case)
        roundings = getattr(method, "extra_roundings", 0)
        trials = verify.trials(first_call, run, reference, roundings)
        return trials if self.times_first_call(method) else trials[-1:]

    def figures(self, record: Record) -> dict[str, str]:
        return {"GFLOP/s": figure(record.gflops)}

    def csv_figures(self, record: Record) -> dict[str, object]:
        return {"gflops": record.gflops}

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        if any(r.is_forced for r in records):
            return REGRET.pages(records)
        beside_published = published.as_markdown(records)
        return super().pages(records) | (
            {"published.md": beside_published} if beside_published else {}
        )

    def tables(self, records: Sequence[Record]) -> list[Table]:
        if any(r.is_forced for r in records):
            return [*REGRET.tables(records), measurements(self, records, folded=True)]
        return super().tables(records)


SDDMM = Sddmm()
