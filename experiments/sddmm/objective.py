"""SDDMM as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from experiments.bench.arguments import is_file_option
from experiments.bench.digest import Code, file_of
from experiments.bench.environment import device_name
from experiments.bench.methods import Method, Run
from experiments.bench.objective import Objective
from experiments.bench.table import figure
from experiments.bench.verify import Trial
from experiments.sddmm import published, regret, verify
from experiments.sddmm.case import Case, definition, device_of, make_case, source_of
from experiments.sddmm.config import Config
from experiments.sddmm.explanation import chosen_kernel, predictions
from experiments.sddmm.facts import facts_of
from experiments.sddmm.forced import ForcedKernel, forced_kernels
from experiments.sddmm.labels import shown_names
from experiments.sddmm.methods import BASELINE, METHODS, OURS, REIMPLEMENTED, ours
from experiments.sddmm.problems import problems_of
from experiments.sddmm.record import Record
from experiments.sddmm.verify import Reference
from sddmm import testing


class Sddmm(Objective[Config, Method, Case, Record]):
    """This package's SDDMM beside its peers."""

    command = "run"
    record_type = Record
    ours, baseline = OURS, BASELINE
    measuring = tuple(
        file_of(thing) for thing in (Case, Reference, testing.error_bound, testing.poisoned_outputs)
    )
    # sddmm/__init__.py names sddmm.testing, so the digest follows it, but no time depends on it.
    unmeasured = tuple(file_of(testing).parent.glob("*.py"))
    reimplemented = REIMPLEMENTED
    implied = frozenset({"sparsity"})

    def names(self) -> Sequence[str]:
        return METHODS.names()

    def methods(self, config: Config) -> Mapping[str, Method]:
        kernels = forced_kernels() if config.kernels else {}
        return {**METHODS.select(list(config.methods)), **kernels}

    def cases(self, config: Config, choices: Mapping[str, str]) -> Sequence[tuple[str, Config]]:
        return problems_of(config) if config.problems else super().cases(config, choices)

    def warm_caches(self, configs: Sequence[Config]) -> None:
        if len(configs) > 1 and configs[0].warm:
            from experiments.sddmm import ahead

            ahead.warm_caches(configs)

    def device(self, config: Config) -> str:
        return device_of(config)

    def label(self, config: Config, choices: Mapping[str, str]) -> str:
        name = choices["matrix"]
        return str(config.matrix.path) if is_file_option(name) else name

    def identity(self, config: Config) -> dict[str, Any]:
        source = source_of(config)
        loader = Code((file_of(source.loader()),), measuring=())
        return {
            # A file is identified by its content, whatever its path.
            "definition": {key: v for key, v in definition(source).items() if key != "path"},
            "loader": loader.digest(),
            "k": config.k,
            "dtype": config.dtype,
            "heads": config.heads,
            "seed": config.seed,
        }

    def method_identity(self, method: Method) -> dict[str, Any]:
        return {"kernel": method.kernel} if isinstance(method, ForcedKernel) else {}

    def make_case(self, label: str, config: Config, identity: Mapping[str, Any]) -> Case:
        return make_case(label, config, identity["definition"])

    def case_fields(self, case: Case) -> dict[str, Any]:
        names = ("matrix", "definition", "m", "n", "nnz", "k", "dtype", "seed")
        return {name: getattr(case, name) for name in (*names, "heads", "family")}

    def method_fields(self, name: str, method: Method) -> dict[str, Any]:
        return {"method": name, "kernel": getattr(method, "kernel", "")}

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the planner's choice, its predictions, and the facts to which they refer."""
        if record.method == OURS:
            explanation = ours.new_plan(case).explain()
            record.kernel = chosen_kernel(explanation)
            record.predicted_us = predictions(explanation)
            if case.family:
                record.facts = facts_of(case.pattern)

    def reference(self, case: Case) -> Reference:
        return Reference(case)

    def trials(self, method: Method, case: Case, run: Run, reference: Reference) -> Sequence[Trial]:
        trials = verify.trials(lambda: self.first_call(method, case), run, reference)
        return trials if self.times_first_call(method) else trials[-1:]

    def times_first_call(self, method: Method) -> bool:
        """A kernel by its name is no call that a user makes once."""
        return not isinstance(method, ForcedKernel)

    def first_call(self, method: Method, case: Case) -> Run:
        """The method's public call, or prepare and run, on a copy of the indices."""
        unseen = case.with_unseen_indices()
        public_call = getattr(method, "public_call", None)
        if public_call is not None:
            return cast(Run, public_call(unseen))
        return lambda: method.prepare(unseen)()

    def renamed(self, record: Record, label: str) -> Record:
        """The record under the name `label`: its matrix may have been measured under another."""
        return replace(record, matrix=label)

    def heading(self, config: Config) -> str:
        return f"on {device_name(device_of(config))}"

    def labels(self, records: Sequence[Record]) -> dict[tuple[object, ...], dict[str, str]]:
        names = shown_names(records)
        several_heads = any(r.heads > 1 for r in records)
        return {
            r.case: {
                "matrix": names[r.case],
                "nnz": f"{r.nnz:,}",
                "sparsity": f"{r.sparsity * 100:.4f}".rstrip("0").rstrip(".") + "%",
                "K": str(r.k),
                "dtype": r.dtype,
                **({"heads": str(r.heads)} if several_heads else {}),
            }
            for r in records
        }

    def figures(self, record: Record) -> dict[str, str]:
        return {"GFLOP/s": figure(record.gflops)}

    def csv_case(self, record: Record) -> dict[str, object]:
        names = ("matrix", "m", "n", "nnz", "sparsity", "k", "dtype", "heads", "seed")
        return {name: getattr(record, name) for name in names}

    def csv_figures(self, record: Record) -> dict[str, object]:
        return {"gflops": record.gflops}

    def order(self, record: Record) -> tuple[Any, ...]:
        """By device, then size, then method."""
        r = record
        device, threads = r.place
        sizes = (r.m * r.n, r.matrix, r.dtype, -r.nnz, r.k, r.heads, r.seed)
        content = json.dumps(r.definition, sort_keys=True, default=str)
        names = self.names()
        rank = names.index(r.method) if r.method in names else len(names)
        return (device, threads or 0, *sizes, content, rank, r.method)

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        if any(r.is_forced for r in records):
            return regret.pages(records)
        beside_published = published.as_markdown(records)
        return super().pages(records) | (
            {"published.md": beside_published} if beside_published else {}
        )

    def draw(self, records: Sequence[Record], output: Path) -> list[Path]:
        from experiments.sddmm import plots

        return plots.draw(self, records, output)


SDDMM = Sddmm()
