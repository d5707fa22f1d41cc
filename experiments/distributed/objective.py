"""Distributed calls as an objective: their records, and the columns of their tables.

A run does not reuse records: all ranks would have to find the same ones.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from experiments.bench import report, table
from experiments.bench.environment import device_name
from experiments.bench.errors import ExperimentError
from experiments.bench.log import Log
from experiments.bench.methods import Method, Run
from experiments.bench.objective import Objective
from experiments.bench.page.tables import Table
from experiments.bench.record import key_of, now
from experiments.bench.store import Keeper, Store
from experiments.bench.verify import Trial
from experiments.distributed import timeline
from experiments.distributed.case import Case, make_case
from experiments.distributed.expected import expected_efficiency
from experiments.distributed.measure import divide, measure
from experiments.distributed.operations import OPERATIONS
from experiments.distributed.ranks import joined
from experiments.distributed.record import CALLS, Record
from experiments.pictures.cases import geometric_mean
from experiments.sddmm.case import device_of
from experiments.sddmm.config import Config
from experiments.sddmm.on_pattern import OnPattern

if TYPE_CHECKING:
    from experiments.pictures.picture import Picture


class Distributed(OnPattern[Case, Record]):
    """sddmm, spmm, a training step and attention by the ranks of torchrun beside one process."""

    name = "distributed"
    title = "Several ranks"
    report_command = "report objective=distributed"
    record_type = Record
    ours, baseline = "sddmm", "sddmm"
    measuring = ()

    def names(self) -> Sequence[str]:
        return tuple(OPERATIONS)

    def methods(self, config: Config) -> Mapping[str, Method]:
        unknown = [name for name in config.methods if name not in OPERATIONS]
        if unknown:
            raise ExperimentError(
                f"unknown method {unknown[0]!r}; choose from: {', '.join(OPERATIONS)}"
            )
        return dict.fromkeys(config.methods or OPERATIONS)  # type: ignore[arg-type]

    def make_case(self, label: str, config: Config, identity: Mapping[str, Any]) -> Case:
        return make_case(label, config, device_of(config), identity["definition"])

    def trials(self, method: Method, case: Case, run: Run, reference: Any) -> Sequence[Trial]:
        raise NotImplementedError("ranks verify their own parts (operations.py)")

    def run(
        self, cases: Sequence[tuple[str, Config]], log: Log | None = None, jobs: int | None = 1
    ) -> None:
        """Measure every case on all ranks; rank 0 keeps the records and prints the tables."""
        first = os.environ.get("RANK") == "0"
        keep = Keeper(Store(cases[0][1].records, Record)) if first else None
        statuses: dict[str, str] = {}
        with joined(device_of(cases[0][1])) as device:
            for label, config in cases:
                with contextlib.ExitStack() as quiet:
                    if not first:
                        quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
                    for record in self._run_case(label, config, device, keep):
                        statuses[f"{record.name} on {label}, {record.way}"] = record.status
        if keep is not None:
            keep.finish(statuses)

    def _run_case(
        self, label: str, config: Config, device: Any, keep: Keeper[Record] | None
    ) -> Sequence[Record]:
        """The records of a case, which are kept and printed as they come."""
        identity = self.identity(config)
        if dist.get_rank() == 0:
            case = make_case(label, config, str(device), identity["definition"])
        dist.barrier()  # rank 0 has filled the cache of matrices
        case = make_case(label, config, str(device), identity["definition"])
        divided = divide(case, config.way, config.replicas, device)
        records = []
        session = {"session": uuid.uuid4().hex, "date": now()}  # rank 0's are kept
        for name in self.methods(config):
            parts = {
                **identity, "method": name, "timing": vars(config.timing),
                "ranks": divided.S.grid.size, "replicas": config.replicas, "way": divided.S.way,
                "device": device_name(device.type),
            }  # fmt: skip
            fields = {**self.case_fields(case), **session, "key": key_of(parts)}
            records.append(measure(name, divided, config.timing, fields))
            if keep is not None:
                keep(records[-1])
        print(self.heading(config))
        print(table.as_text(self.rows(records)), flush=True)
        for note in self.notes(records):
            print(f"  {note}")
        return records

    def heading(self, config: Config) -> str:
        return f"on {dist.get_world_size()} ranks of {device_name(device_of(config))}"

    def rows(self, records: Sequence[Record], cached: Sequence[str] = ()) -> list[dict[str, str]]:
        labels = self.labels(records)
        return [
            {
                **{name: cell for name, cell in labels[r.case].items() if name != "sparsity"},
                "ranks": f"{r.ranks // r.replicas}x{r.replicas}",
                "way": r.way,
                "method": r.name,
                "status": r.status,
                "time ms": table.figure(r.median_ms),
                "one process ms": table.figure(r.one_median_ms),
                "speed-up": _ratio(r.speedup),
                "efficiency": _ratio(r.efficiency),
                "predicted efficiency": _ratio(expected_efficiency(r)),
                "back to back ms": table.figure(r.back_to_back_median_ms),
                "efficiency back to back": _ratio(r.back_to_back_efficiency),
                "predicted back to back": _ratio(expected_efficiency(r, is_back_to_back=True)),
                "received MB": table.figure(max(r.received_bytes, default=0) / 1e6),
                "messages alone ms": table.figure(r.messages_ms),
                "messages predicted ms": table.figure(r.predicted_messages_ms),
                "waited ms": table.figure(r.waited_ms),
                "hidden": "" if r.hidden is None else f"{r.hidden:.0%}",
                "error": "" if r.error is None else f"{r.error:.1e}",
            }
            for r in records
        ]

    def finding(self, records: Sequence[Record]) -> str:
        """Each operation's speed-ups over one process: their geometric mean and range.

        Operations are not compared with each other.
        """
        found: dict[str, list[float]] = {}
        for r in records:
            if r.speedup is not None:
                found.setdefault(r.name, []).append(r.speedup)
        texts = [f"{name} {_mean_and_range(own)}" for name, own in found.items()]
        return f"Times as fast as one process: {', '.join(texts)}." if found else "None was timed."

    def notes(self, records: Sequence[Record]) -> list[str]:
        reasons = [f"one process: {r.one_reason}" for r in records if r.one_reason]
        return [*dict.fromkeys(reasons), *table.notes(records)]

    def csv_figures(self, record: Record) -> dict[str, object]:
        r = record
        return {
            "ranks": r.ranks, "replicas": r.replicas, "way": r.way, "one_ms": r.one_median_ms,
            "speedup": r.speedup, "back_to_back_ms": r.back_to_back_median_ms,
            "back_to_back_speedup": r.back_to_back_speedup,
            "received_bytes": max(r.received_bytes, default=0),
            "written_bytes": max(r.written_bytes, default=0),
            "messages_ms": r.messages_ms, "predicted_messages_ms": r.predicted_messages_ms,
            "waited_ms": r.waited_ms,
        }  # fmt: skip

    def short_rows(self, records: Sequence[Record]) -> list[dict[str, str]]:
        """All columns: operations are read by their messages, not by first calls."""
        return self.rows(records)

    def csv_lines(self, records: Sequence[Record]) -> list[dict[str, object]]:
        """The figures of every record; operations are not compared with each other."""
        lines = table.csv_lines(self, records)
        return [{k: v for k, v in line.items() if "speedup_over_" not in k} for line in lines]

    def tables(self, records: Sequence[Record]) -> list[Table]:
        note = (
            "Times of the slowest rank; efficiency is the speed-up over the number of ranks, which "
            "are a ring's length times the replicas. A call begins when all ranks and GPUs are "
            f"idle; back to back is the mean of {CALLS} that follow each other, as in a training "
            "loop, of which the first one begins like that."
        )
        return [Table("Operations", self.rows(records), note=note)]

    def commands(self, records: Sequence[Record]) -> list[str]:
        lines = []
        for ranks, replicas, way in dict.fromkeys((r.ranks, r.replicas, r.way) for r in records):
            own = [r for r in records if (r.ranks, r.replicas, r.way) == (ranks, replicas, way)]
            program = f"torchrun --nproc-per-node {ranks} -m experiments run"
            for line in super().commands(own):
                command = line.replace("python -m experiments run", program)
                divided = "" if line.startswith("#") else f" way={way} replicas={replicas}"
                lines.append(command + divided)
        return lines

    def pictures(
        self, records: Sequence[Record], reference: str
    ) -> dict[str, Callable[[], Picture]]:
        """The efficiency; operations are not compared with each other. pages() has a timeline."""
        from experiments.pictures import ranks

        return {ranks.NAME: partial(ranks.draw, records)}

    def pages(self, records: Sequence[Record]) -> dict[str, str]:
        """The tables, and the timeline of one case."""
        pages = {
            "report.md": report.as_markdown(self, records),
            "report.csv": table.csv_text(self.csv_lines(records)),
        }
        drawn = timeline.chosen(records)
        if drawn:
            pages["timeline.svg"] = timeline.draw(drawn)
        return pages


def _mean_and_range(speedups: Sequence[float]) -> str:
    mean = f"{geometric_mean(speedups):.2f}"
    if len(speedups) == 1:
        return mean
    return f"{mean} ({min(speedups):.2f} to {max(speedups):.2f} in {len(speedups)} cases)"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


DISTRIBUTED: Objective[Config, Method, Case, Record] = Distributed()
