"""GEMM as an objective: every variant of gemm_core against cuBLAS, which each session has."""

from __future__ import annotations

import fnmatch
import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from experiments.bench.columns import measurements
from experiments.bench.digest import Code, file_of
from experiments.bench.errors import ExperimentError, unknown
from experiments.bench.objective import Objective
from experiments.bench.page.tables import Table
from experiments.bench.table import csv_text
from experiments.bench.verify import Trial
from experiments.gemm import report, verify
from experiments.gemm.case import Case, make_case
from experiments.gemm.config import GemmConfig
from experiments.gemm.methods import ALL, CUBLAS, CUBLAS_TF32, GemmMethod, Variant
from experiments.gemm.record import GemmRecord
from experiments.gemm.verify import References
from gemm_core.ladder import choose, registry
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER
from gemm_core.runtime.compile import compile_all

if TYPE_CHECKING:
    from experiments.pictures.picture import Picture

# The option b_rows names the rows of B as they are stored: n rows of k elements, or k rows of n.
_B_LAYOUT = {"n": "nk", "k": "kn"}
# A run of fewer variants than that names them to be repeated; without names it measures all.
_NAMED_VARIANTS = 8


class Gemm(Objective[GemmConfig, GemmMethod, Case, GemmRecord]):
    """gemm_core's variants beside cuBLAS."""

    title = "The GEMM ladder"
    command, report_command = "gemm", "ladder"
    columns, short = report.COLUMNS, report.SHORT
    record_type = GemmRecord
    baseline = CUBLAS
    companions = frozenset({CUBLAS, CUBLAS_TF32})
    times_preparation = False
    measuring = tuple(file_of(thing) for thing in (Case, References))
    # The list of the variants, so that a new one leaves the others' records alone.
    unmeasured = tuple(file_of(thing) for thing in (GemmConfig, registry, choose))

    def names(self) -> Sequence[str]:
        return list(ALL)

    def methods(self, config: GemmConfig) -> Mapping[str, GemmMethod]:
        """cuBLAS, and the variants that compute this dtype with these sums, in ladder order."""
        if not torch.cuda.is_available():
            raise ExperimentError("gemm compares GPU kernels, but torch sees no CUDA device")
        return variants(config)

    def device(self, config: GemmConfig) -> str:
        return "cuda"

    def label(self, config: GemmConfig, choices: Mapping[str, str]) -> str:
        return config.shape

    def identity(self, config: GemmConfig) -> dict[str, Any]:
        names = ("shape", "dtype", "accumulate", "b_rows", "seed")
        return {name: getattr(config, name) for name in names}

    def method_identity(self, method: GemmMethod) -> dict[str, Any]:
        spec = method.spec
        if isinstance(method, Variant) and spec is None:
            code = Code((file_of(choose),), measuring=()).digest()
            return {"precision": method.precision, "spec": repr(KERNELS), "choice": code}
        # choose() ranks by h200_tflops; it has no other effect.
        return {
            "precision": method.precision,
            "spec": repr(spec and replace(spec, h200_tflops=0.0)),
        }

    def sources(self, method: GemmMethod) -> list[Path]:
        if isinstance(method, Variant):
            specs = KERNELS.values() if method.spec is None else [method.spec]
            return [file_of(Variant), *(KERNEL_FOLDER / spec.source for spec in specs)]
        return [file_of(Variant)]

    def make_case(self, label: str, config: GemmConfig, identity: Mapping[str, Any]) -> Case:
        return make_case(config)

    def case_fields(self, case: Case) -> dict[str, Any]:
        m, n, k = case.config.sizes
        names = ("dtype", "accumulate", "b_rows")
        return {"m": m, "n": n, "k": k, **{name: getattr(case.config, name) for name in names}}

    def method_fields(self, name: str, method: GemmMethod) -> dict[str, Any]:
        in_tf32 = isinstance(method, Variant) and method.precision == "tf32"
        return {"variant": name, "baseline": CUBLAS_TF32 if in_tf32 else CUBLAS}

    def annotate(self, record: GemmRecord, method: GemmMethod, case: Case) -> None:
        if isinstance(method, Variant):
            resources = method.resources(case)
            record.registers, record.spill_bytes = resources.registers, resources.spill_bytes
            spec = method.kernel(case)
            record.shared_bytes, record.kernel = spec.shared_bytes, spec.name

    def reference(self, case: Case) -> References:
        return References.of(case)

    def compile(self, methods: Mapping[str, GemmMethod], case: Case) -> None:
        """Compile by all cores what is not refused, instead of one after the other."""
        served = [m for m in methods.values() if isinstance(m, Variant) and not m.refuses(case)]
        compile_all([method.compile_arguments(case) for method in served])

    def trials(
        self, method: GemmMethod, case: Case, run: Any, reference: References
    ) -> Sequence[Trial]:
        return verify.trials(method, case, reference)

    def heading(self, config: GemmConfig) -> str:
        return (
            f"{config.shape} {config.dtype}, sums in {config.accumulate}, "
            f"b in rows of {config.b_rows}"
        )

    @property
    def default_records(self) -> str:
        return GemmConfig().records

    def case_title(self, label: str, config: GemmConfig) -> str:
        return self.heading(config)

    def summary(self, records: Sequence[GemmRecord]) -> str:
        return report.as_summary(records)

    def role(self, record: GemmRecord) -> str:
        return "peer" if record.is_cublas else "ours"

    def labels(self, records: Sequence[GemmRecord]) -> dict[tuple[object, ...], dict[str, str]]:
        return {
            r.case: {"shape": r.shape, "dtype": r.dtype, "sums": r.accumulate, "B rows": r.b_rows}
            for r in records
        }

    def rows(
        self, records: Sequence[GemmRecord], cached: Sequence[str] = ()
    ) -> list[dict[str, str]]:
        return report.rows(records)

    def notes(self, records: Sequence[GemmRecord]) -> list[str]:
        return report.notes(records)

    def pages(self, records: Sequence[GemmRecord]) -> dict[str, str]:
        return {
            "summary.md": report.as_summary(records),
            "report.md": report.as_markdown(records),
            "report.csv": csv_text(self.csv_lines(records)),
        }

    def csv_lines(self, records: Sequence[GemmRecord]) -> list[dict[str, object]]:
        return report.csv_lines(records)

    def tables(self, records: Sequence[GemmRecord]) -> list[Table]:
        return [*report.tables(records), measurements(self, records, folded=True)]

    def commands(self, records: Sequence[GemmRecord]) -> list[str]:
        """A line for each case; it names the variants where they are few."""
        cases: dict[tuple[object, ...], list[GemmRecord]] = {}
        for r in records:
            cases.setdefault(r.case, []).append(r)
        lines = []
        for r, own in ((own[0], own) for own in cases.values()):
            keys = {key: getattr(r, key) for key in ("shape", "dtype", "accumulate", "b_rows")}
            variants = dict.fromkeys(each.variant for each in own if not each.is_cublas)
            if 0 < len(variants) <= _NAMED_VARIANTS:
                keys["variants"] = f"[{','.join(variants)}]"
            words = [f"{key}={value}" for key, value in keys.items()]
            lines.append(shlex.join(["python", "-m", "experiments", "gemm", *words]))
        return list(dict.fromkeys(lines))

    def pictures(
        self, records: Sequence[GemmRecord], reference: str
    ) -> dict[str, Callable[[], Picture]]:
        from experiments.pictures import climb, ladder

        order = {name: index for index, name in enumerate(self.names())}

        def rank(r: GemmRecord) -> int:
            return order.get(r.variant, len(order))

        return {
            drawn.NAME: functools.partial(drawn.draw, report.sections(records), rank)
            for drawn in (climb, ladder)
        }


def variants(config: GemmConfig) -> dict[str, GemmMethod]:
    """cuBLAS, and the variants that compute this dtype with these sums, in the ladder's order."""
    serving = {
        name: method
        for name, method in ALL.items()
        if isinstance(method, Variant) and _may_serve(method, config)
    }
    for name in config.variants:
        if not fnmatch.filter(serving, name):
            kind = f"variant of {config.dtype} with sums in {config.accumulate}"
            raise ExperimentError(unknown(kind, name, serving))
    chosen = {
        name: method
        for name, method in serving.items()
        if not config.variants or any(fnmatch.fnmatch(name, asked) for asked in config.variants)
    }
    in_tf32 = any(method.precision == "tf32" for method in chosen.values())
    cublas = [CUBLAS, *([CUBLAS_TF32] if in_tf32 else [])]
    return {**{name: ALL[name] for name in cublas}, **chosen}


def _may_serve(method: Variant, config: GemmConfig) -> bool:
    """Whether a variant computes this dtype with these sums and reads this layout of B."""
    dtype, spec = getattr(torch, config.dtype), method.spec
    if spec is None:
        return method.precision == "ieee" or dtype == torch.float32
    return (
        dtype in spec.dtypes
        and config.accumulate in spec.accumulates
        and _B_LAYOUT[config.b_rows] in spec.b_layouts
    )


GEMM = Gemm()
