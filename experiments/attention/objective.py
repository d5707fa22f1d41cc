"""Attention as an objective: how it is measured, and the columns of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.attention import report
from experiments.attention.case import Case, make_case
from experiments.attention.forced import forced_kernels
from experiments.attention.methods import (
    BASELINE,
    FLEX,
    METHODS,
    OURS,
    PARTS,
    REIMPLEMENTED,
    YARDSTICKS,
)
from experiments.attention.record import Record
from experiments.attention.verify import Reference
from experiments.bench.digest import file_of
from experiments.bench.memory import peak_bytes
from experiments.bench.methods import Method
from experiments.sddmm import case as sddmm_case
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.config import Config
from experiments.sddmm.explanation import note_choice
from experiments.sddmm.on_pattern import is_yardstick
from experiments.spmm import verify as spmm_verify
from experiments.spmm.on_sampled import OnSampled
from sddmm import testing
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionOperands
from sddmm.backends.selection import select_attention_backend

if TYPE_CHECKING:
    from experiments.pictures.picture import Picture


class Attention(OnSampled[Case, Record]):
    """Sparse attention, forward alone or with its gradients, beside its peers and its yardstick."""

    title, name = "Attention", "attention"
    report_command = "report objective=attention"
    record_type = Record
    draw_case = staticmethod(make_case)
    ours, baseline, inner = OURS, BASELINE, report.D
    folder, yardsticks, study = METHODS, YARDSTICKS, report.REPORT
    flag, flag_cell = "backward", "with"
    reimplemented = REIMPLEMENTED
    compiled_apart = frozenset({FLEX})
    products = 2  # of the forward; rooflines are drawn of it alone
    measuring = tuple(
        file_of(thing)
        for thing in (
            Case, Reference, sddmm_case.Case, sddmm_verify.Reference, spmm_verify.Reference,
            testing.attention_error_bound, testing.poisoned_outputs,
        )
    )  # fmt: skip

    def forced_kernels(self) -> Mapping[str, Method]:
        return forced_kernels()

    def compiled_ahead(self, config: Config) -> Sequence[str]:
        chosen = set(config.methods) or set(self.names())
        names = [name for name in (OURS, *YARDSTICKS, PARTS, FLEX) if name in chosen]
        return [*names, *(self.forced_kernels() if config.kernels else ())]

    def case_fields(self, case: Case) -> dict[str, Any]:
        return super().case_fields(case) | {"result_bytes": case.result_bytes}

    def annotate(self, record: Record, method: Method, case: Case) -> None:
        """Note the planner's choice, what compiling took, and the memory of a training step."""
        if (compile_ms := getattr(method, "compile_ms", None)) is not None:
            record.compile_ms = compile_ms(case)
        if record.method == OURS:
            note_choice(record, _explain(case))
        if case.backward and case.device.startswith("cuda") and not is_yardstick(method):
            record.peak_bytes = peak_bytes(method.prepare(case))

    def reference(self, case: Case) -> Reference:
        return Reference(case)

    def may_round(self, method: Method) -> bool:
        return getattr(method, "IS_PEER", False)

    def pictures(
        self, records: Sequence[Record], reference: str
    ) -> dict[str, Callable[[], Picture]]:
        from experiments.pictures import roofline

        drawn = super().pictures(records, reference)
        if any(r.backward for r in records):
            del drawn[roofline.NAME]
        return drawn


def _explain(case: Case) -> str:
    """What the planner says of the kernel that it chooses for the case."""
    pattern = case.with_unseen_indices().pattern
    problem = attention_problem(pattern, AttentionOperands(*case.inputs, None, case.scale))
    backend = select_attention_backend(problem)
    if backend is None:
        return ""
    return "\n".join(backend.prepare_attention(pattern, problem).notes)


ATTENTION = Attention()
