"""The part that objectives share whose cases are made of an SDDMM: SpMM, training, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from experiments.bench.columns import measurements
from experiments.bench.methods import Method, Run
from experiments.bench.page.tables import Table
from experiments.bench.verify import Trial
from experiments.sddmm import verify as sddmm_verify
from experiments.sddmm.config import Config
from experiments.sddmm.on_pattern import OnPattern
from experiments.sddmm.record import Record
from experiments.sddmm.study_report import StudyReport
from experiments.spmm import case

CaseT = TypeVar("CaseT", bound=case.OnSampled)
RecordT = TypeVar("RecordT", bound=Record)


class OnSampled(OnPattern[CaseT, RecordT]):
    """An objective beside whose methods stand yardsticks, which compute the SDDMM of the case."""

    yardsticks: ClassVar[Sequence[str]]
    # The smaller matrices of a study need the same kernels as the larger ones do.
    compiled_nnz = 12_000_000
    study: StudyReport[RecordT, Any]
    # A key, true or false, by which its cases differ too; and the cell of a case where it is true.
    flag: ClassVar[str] = ""
    flag_cell: ClassVar[str] = ""

    def compiled_ahead(self, config: Config) -> Sequence[str]:
        return (self.ours, *self.yardsticks, *self.forced_kernels())

    def identity(self, config: Config) -> dict[str, Any]:
        return super().identity(config) | self._flag_of(config)

    def case_fields(self, case: CaseT) -> dict[str, Any]:
        return super().case_fields(case) | self._flag_of(case)

    def csv_case(self, record: RecordT) -> dict[str, object]:
        return super().csv_case(record) | self._flag_of(record)

    def _flag_of(self, owner: Any) -> dict[str, Any]:
        return {self.flag: getattr(owner, self.flag)} if self.flag else {}

    def trials(self, method: Method, case: CaseT, run: Run, reference: Any) -> Sequence[Trial]:
        yardstick = getattr(method, "reference", None)
        if yardstick is not None:
            return sddmm_verify.trials(lambda: run, run, yardstick(case))[-1:]
        may_round = self.may_round(method)
        calls = [run]
        if self.times_first_call(method):
            calls.insert(0, lambda: self.first_call(method, case)())
        return [
            Trial(sddmm_verify.poisoned(call), lambda result: reference.check(result, may_round))
            for call in calls
        ]

    def may_round(self, method: Method) -> bool:
        """Whether a method may round half types more often than ours."""
        return getattr(method, "PARTIAL_SUMS_ROUND", False)

    def labels(self, records: Sequence[RecordT]) -> dict[tuple[object, ...], dict[str, str]]:
        """The labels of an SDDMM case, and the flag where there are both values of it."""
        flags = {r.case: bool(self._flag_of(r).get(self.flag)) for r in records}
        both = len(set(flags.values())) > 1
        return {
            case: {self.inner if name == "K" else name: cell for name, cell in cells.items()}
            | ({self.flag: self.flag_cell if flags[case] else ""} if both else {})
            for case, cells in super().labels(records).items()
        }

    def role(self, record: RecordT) -> str:
        return "yardstick" if record.method in self.yardsticks else super().role(record)

    def pages(self, records: Sequence[RecordT]) -> dict[str, str]:
        return self.study.pages(records)

    def tables(self, records: Sequence[RecordT]) -> list[Table]:
        return [*self.study.tables(records), measurements(self, records, folded=True)]
