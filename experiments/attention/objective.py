"""Attention as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from experiments.attention import report
from experiments.attention.case import Case, make_case
from experiments.attention.forced import ForcedKernel, forced_kernels
from experiments.attention.methods import BASELINE, METHODS, OURS, REIMPLEMENTED, YARDSTICKS
from experiments.attention.record import Record
from experiments.attention.verify import Reference
from experiments.bench.columns import measurements
from experiments.bench.digest import file_of
from experiments.bench.methods import Method, Run
from experiments.bench.page.tables import Table
from experiments.bench.verify import Trial
from experiments.sddmm import case as sddmm_case
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.config import Config
from experiments.sddmm.explanation import chosen_kernel, predictions
from experiments.sddmm.on_pattern import OnPattern
from experiments.spmm import verify as spmm_verify
from sddmm import testing
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionOperands, select_attention_backend

if TYPE_CHECKING:
    from experiments.pictures.picture import Picture


class Attention(OnPattern[Case, Record]):
    """Sparse attention, forward alone or with its gradients, beside its peers and its yardstick."""

    title, name = "Attention", "attention"
    report_command = "report objective=attention"
    record_type = Record
    ours, baseline, inner = OURS, BASELINE, report.D
    reimplemented = REIMPLEMENTED
    products = 2  # of the forward; rooflines are drawn of it alone
    measuring = tuple(
        file_of(thing)
        for thing in (
            Case, Reference, sddmm_case.Case, sddmm_verify.Reference, spmm_verify.Reference,
            testing.attention_error_bound, testing.poisoned_outputs,
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
            from experiments.attention import ahead

            ahead.warm_caches(configs)

    def identity(self, config: Config) -> dict[str, Any]:
        return {**super().identity(config), "backward": config.backward}

    def method_identity(self, method: Method) -> dict[str, Any]:
        return {"kernel": method.kernel} if isinstance(method, ForcedKernel) else {}

    def make_case(self, label: str, config: Config, identity: Mapping[str, Any]) -> Case:
        return make_case(label, config, identity["definition"])

    def case_fields(self, case: Case) -> dict[str, Any]:
        own = {"backward": case.backward, "result_bytes": case.result_bytes}
        return {**super().case_fields(case), **own}

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the planner's choice, what compiling took, and the memory of a training step."""
        if (compile_ms := getattr(method, "compile_ms", None)) is not None:
            record.compile_ms = compile_ms(case)
        if record.method == OURS:
            explanation = _explain(case)
            record.kernel = chosen_kernel(explanation)
            record.predicted_us = predictions(explanation)
        if case.backward and case.device.startswith("cuda") and not _is_yardstick(method):
            record.peak_bytes = _peak_bytes(method.prepare(case))

    def reference(self, case: Case) -> Reference:
        return Reference(case)

    def trials(self, method: Method, case: Case, run: Run, reference: Reference) -> Sequence[Trial]:
        yardstick = getattr(method, "reference", None)
        if yardstick is not None:
            return sddmm_verify.trials(lambda: run, run, yardstick(case))[-1:]
        is_peer = getattr(method, "IS_PEER", False)
        calls = [run]
        if self.times_first_call(method):
            calls.insert(0, lambda: self.first_call(method, case)())
        return [
            Trial(sddmm_verify.poisoned(call), lambda step: reference.check(step, is_peer))
            for call in calls
        ]

    def times_first_call(self, method: Method) -> bool:
        """Neither a kernel by its name nor a yardstick is a call that a user makes once."""
        return not isinstance(method, ForcedKernel) and not _is_yardstick(method)

    def first_call(self, method: Method, case: Case) -> Run:
        """The method's public call, or prepare and run, on a copy of the indices."""
        unseen = case.with_unseen_indices()
        public_call = getattr(method, "public_call", None)
        if public_call is not None:
            return cast(Run, public_call(unseen))
        return lambda: method.prepare(unseen)()

    def labels(self, records: Sequence[Record]) -> dict[tuple[object, ...], dict[str, str]]:
        """The labels of an SDDMM case, with d for K, and the backward where there are both."""
        both = len({r.backward for r in records}) > 1
        backwards = {r.case: "with" if r.backward else "" for r in records}
        return {
            case: {"d" if name == "K" else name: cell for name, cell in cells.items()}
            | ({"backward": backwards[case]} if both else {})
            for case, cells in super().labels(records).items()
        }

    def role(self, record: Record) -> str:
        return "yardstick" if record.method in YARDSTICKS else super().role(record)

    def csv_case(self, record: Record) -> dict[str, object]:
        return {**super().csv_case(record), "backward": record.backward}

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        return report.REPORT.pages(records)

    def tables(self, records: Sequence[Record]) -> list[Table]:
        return [*report.REPORT.tables(records), measurements(self, records, folded=True)]

    def pictures(
        self, records: Sequence[Record], reference: str
    ) -> dict[str, Callable[[], Picture]]:
        from experiments.pictures import roofline

        drawn = super().pictures(records, reference)
        if any(r.backward for r in records):
            del drawn[roofline.NAME]
        return drawn


def _is_yardstick(method: Method) -> bool:
    return hasattr(method, "reference")


def _explain(case: Case) -> str:
    """What the planner says of the kernel that it chooses for the case."""
    pattern = case.with_unseen_indices().pattern
    problem = attention_problem(pattern, AttentionOperands(*case.inputs, None, case.scale))
    backend = select_attention_backend(problem)
    if backend is None:
        return ""
    return "\n".join(backend.prepare_attention(pattern, problem).notes)


def _peak_bytes(run: Run) -> int:
    """The memory that a run allocates at most, beside what is allocated before."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before


ATTENTION = Attention()
