"""The objective: the one description of a problem from which the bench measures and reports it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from experiments.bench import columns, findings, report, table
from experiments.bench.config import Timing
from experiments.bench.digest import MEASURING, Code
from experiments.bench.log import Log
from experiments.bench.methods import Method, Run
from experiments.bench.page.tables import Groups, Table
from experiments.bench.record import Record
from experiments.bench.verify import Trial

if TYPE_CHECKING:
    from experiments.pictures.picture import Picture


class RunConfig(Protocol):
    """The part of a run's configuration that the bench reads; an objective adds keys of its own."""

    timing: Timing
    records: str
    force: bool


ConfigT = TypeVar("ConfigT", bound=RunConfig)
MethodT = TypeVar("MethodT", bound=Method)
CaseT = TypeVar("CaseT")
RecordT = TypeVar("RecordT", bound=Record)


class Objective(ABC, Generic[ConfigT, MethodT, CaseT, RecordT]):
    """A problem on which methods are compared.

    The first half says how it is measured, the second how its records are shown. The defaults suit
    an objective whose methods are compared with one baseline.
    """

    # The word of the command line that measures it.
    command: ClassVar[str]
    record_type: type[RecordT]
    # Our method, and the method to which speed-ups refer.
    ours: ClassVar[str] = "ours"
    baseline: ClassVar[str]
    # Methods that are measured anew in every session, as the others are compared with them.
    companions: ClassVar[frozenset[str]] = frozenset()
    # Whether preparations and first calls are timed too.
    times_preparation: ClassVar[bool] = True
    # The files that draw the operands and verify: part of every measurement's key.
    measuring: ClassVar[tuple[Path, ...]]
    # Files that a method may import although its times do not depend on them.
    unmeasured: ClassVar[tuple[Path, ...]] = ()
    # Methods that are re-implementations, and whose methods they are.
    reimplemented: ClassVar[Mapping[str, str]] = {}
    # Columns of labels() that follow from the others; only the long table has them.
    implied: ClassVar[frozenset[str]] = frozenset()
    # The name of K in tables and pictures.
    inner: ClassVar[str] = "K"
    # The heading of its page, and the words of the command line that report it.
    title: ClassVar[str] = ""
    report_command: ClassVar[str] = "report"
    # What the columns of csv_case() and csv_figures() mean, and which of them a page shows first.
    columns: ClassVar[Groups] = {}
    short: ClassVar[frozenset[str]] = frozenset()
    # How many products of 2 nnz K operations it is made of.
    products: ClassVar[int] = 1

    # How it is measured.

    @abstractmethod
    def names(self) -> Sequence[str]:
        """All methods, in the order of tables and plots."""

    @abstractmethod
    def methods(self, config: ConfigT) -> Mapping[str, MethodT]:
        """The methods of a run by name, in the order of its table."""

    @abstractmethod
    def device(self, config: ConfigT) -> str:
        """The torch device that computes: cpu or cuda."""

    @abstractmethod
    def label(self, config: ConfigT, choices: Mapping[str, str]) -> str:
        """The name that a person has for the case. choices: Hydra's option of each group."""

    def cases(self, config: ConfigT, choices: Mapping[str, str]) -> Sequence[tuple[str, ConfigT]]:
        """The cases that a run measures one after another: the label and configuration of each."""
        return [(self.label(config, choices), config)]

    def run(
        self, cases: Sequence[tuple[str, ConfigT]], log: Log | None = None, jobs: int | None = 1
    ) -> None:
        """Measure these cases and print their tables.

        log: of the whole command; jobs: how many such calls it makes, None where that is unknown.
        """
        from experiments.bench.run import run_all  # which knows objectives

        run_all(self, cases, log, jobs)

    def warm_caches(self, configs: Sequence[ConfigT]) -> None:
        """Generate and compile in parallel what these cases need; nothing by default."""

    @abstractmethod
    def identity(self, config: ConfigT) -> dict[str, Any]:
        """The properties that distinguish the case from all others, for the keys of its records."""

    def method_identity(self, method: MethodT) -> dict[str, Any]:
        """The properties that distinguish a method from all others, besides its code."""
        return {}

    def sources(self, method: MethodT) -> list[Path]:
        """The files of a method's code; the bench follows their imports."""
        path = getattr(method, "__file__", None)
        return [Path(path)] if path else []

    def code(self, method: MethodT) -> Code:
        """All code that a measurement of the method depends on."""
        sources = tuple(self.sources(method))
        return Code(sources, (*MEASURING, *self.measuring), self.unmeasured)

    @abstractmethod
    def make_case(self, label: str, config: ConfigT, identity: Mapping[str, Any]) -> CaseT:
        """The data that every method computes on. identity: what identity(config) gave."""

    @abstractmethod
    def case_fields(self, case: CaseT) -> dict[str, Any]:
        """The fields of a record that name the case."""

    @abstractmethod
    def method_fields(self, name: str, method: MethodT) -> dict[str, Any]:
        """The fields of a record that name the method."""

    def annotate(self, record: RecordT, method: MethodT, case: CaseT) -> None:
        """Write properties of a prepared method into its record, such as its registers."""

    def reference(self, case: CaseT) -> Any:
        """The data that results are checked against; computed once per session."""
        return None

    def compile(self, methods: Mapping[str, MethodT], case: CaseT) -> None:
        """Compile what the methods will launch, all at once; nothing unless an objective can."""

    @abstractmethod
    def trials(self, method: MethodT, case: CaseT, run: Run, reference: Any) -> Sequence[Trial]:
        """The calls whose results are verified; the last one is run(), or as long as run()."""

    def first_call(self, method: MethodT, case: CaseT) -> Run:
        """One whole product on data that the method has not seen; making the data is not part."""
        raise NotImplementedError

    def times_first_call(self, method: MethodT) -> bool:
        """Whether the first call of the method is timed, where preparations are."""
        return True

    def renamed(self, record: RecordT, label: str) -> RecordT:
        """A record of the store under the name that this run gives its case."""
        return record

    # How its records are shown.

    @abstractmethod
    def heading(self, config: ConfigT) -> str:
        """The line above the table in the terminal."""

    def case_title(self, label: str, config: ConfigT) -> str:
        """The name of a case while it is measured."""
        return label

    @property
    def default_records(self) -> str:
        """The file of records that a report reads if it is told no other."""
        return ""

    def summary(self, records: Sequence[RecordT]) -> str:
        """The table of several cases at the end of a run."""
        return report.as_summary(self, records)

    @abstractmethod
    def labels(self, records: Sequence[RecordT]) -> dict[tuple[object, ...], dict[str, str]]:
        """The cells that distinguish each case from the others, by case."""

    def figures(self, record: RecordT) -> dict[str, str]:
        """Cells that follow from the times, such as GFLOP/s."""
        return {}

    def csv_case(self, record: RecordT) -> dict[str, object]:
        """The columns of the CSV that name the case."""
        return dict(self.labels([record])[record.case])

    def csv_figures(self, record: RecordT) -> dict[str, object]:
        """The columns of the CSV that follow from the times, at full precision."""
        return {}

    def order(self, record: RecordT) -> tuple[Any, ...]:
        """The sort key of a record in a report; by default reports keep the order of the files."""
        return ()

    def rows(self, records: Sequence[RecordT], cached: Sequence[str] = ()) -> list[dict[str, str]]:
        """One row per record, every cell as text. cached: the keys of records shown as such."""
        return table.rows(self, records, cached)

    def short_rows(self, records: Sequence[RecordT]) -> list[dict[str, str]]:
        """The rows of report.md, with what a person reads."""
        return table.short_rows(self, records)

    def notes(self, records: Sequence[RecordT]) -> list[str]:
        """The lines under a table."""
        return table.notes(records)

    def csv_lines(self, records: Sequence[RecordT]) -> list[dict[str, object]]:
        """A line per record with every figure at full precision."""
        return table.csv_lines(self, records)

    def tables(self, records: Sequence[RecordT]) -> list[Table]:
        """The tables of the HTML page."""
        note = f"Times in us; {self.ours} is this package. Above 1, {self.ours} is faster."
        cases = Table("Cases", report.summary_rows(self, records), note=note)
        return [cases, columns.measurements(self, records)]

    def commands(self, records: Sequence[RecordT]) -> list[str]:
        """The command lines that measure these records' cases again."""
        return []

    def pages(self, records: Sequence[RecordT]) -> dict[str, str]:
        """The files of a report by name; the first is printed too."""
        return {
            "report.md": report.as_markdown(self, records),
            "report.csv": table.csv_text(self.csv_lines(records)),
            "summary.md": report.as_summary(self, records),
        }

    def finding(self, records: Sequence[RecordT]) -> str:
        """What the records say, in a sentence."""
        return findings.finding(self, records)

    def role(self, record: RecordT) -> str:
        """The part of a method in comparisons: ours, peer, yardstick, or kernel (one of ours)."""
        return "ours" if record.name == self.ours else "peer"

    def referring_to(self, reference: str) -> Objective[ConfigT, MethodT, CaseT, RecordT]:
        """This objective with another method to which the tables' speed-ups refer."""
        other = copy.copy(self)
        other.baseline = reference  # type: ignore[misc]
        return other

    def pictures(
        self, records: Sequence[RecordT], reference: str
    ) -> Mapping[str, Callable[[], Picture]]:
        """What draws each picture, by name; called only if matplotlib is here."""
        return {}


AnyObjective = Objective[Any, Any, Any, Any]
