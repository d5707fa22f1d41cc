"""Runs an objective: reuses stored records, measures and stores the rest, prints the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from experiments.bench import table
from experiments.bench.environment import device_name
from experiments.bench.errors import ExperimentError, RowsFailed
from experiments.bench.findings import noise
from experiments.bench.log import Log
from experiments.bench.measuring import Session
from experiments.bench.methods import Method, introduction
from experiments.bench.objective import AnyObjective, RunConfig
from experiments.bench.progress import CaseProgress
from experiments.bench.record import Record, key_of
from experiments.bench.store import Keeper, Store
from experiments.bench.terminal import show


def run_all(
    objective: AnyObjective,
    cases: Sequence[tuple[str, RunConfig]],
    log: Log | None = None,
    jobs: int | None = 1,
) -> None:
    """Run every case. What failed is raised as one error after the last case.

    log: of the whole run; jobs: how many such calls it makes, None where that is unknown.
    """
    log = log or Log()
    log.clock.cases = jobs and jobs * len(cases)
    objective.warm_caches([config for _, config in cases])
    failures = []
    for label, config in cases:
        try:
            run(objective, label, config, log)
        except (ExperimentError, RuntimeError) as error:  # RuntimeError: no memory for a case
            if len(cases) == 1:
                raise
            failures.append(f"{label}: {str(error).splitlines()[0]}")
    if failures:
        raise RowsFailed("; ".join(failures))


def run(
    objective: AnyObjective, label: str, config: RunConfig, log: Log | None = None
) -> list[Any]:
    """Measure the methods on the case that `label` names, print the table, return its records.

    A row that the store holds is shown from there; the others are measured, interleaved with each
    other and with the objective's companions, and the table says which rows are of different runs.
    Raises RecordsLost or RowsFailed, when the table has been printed, if a record was not kept or a
    row is wrong or failed.
    """
    log = log or Log()
    log.begin(objective, config.records)
    device = objective.device(config)
    methods = objective.methods(config)
    store: Store[Any] = Store(config.records, objective.record_type)
    identity = objective.identity(config)
    keys = _keys(objective, identity, config, methods, device)
    cached = [] if config.force else matching(store.records(), keys, objective.companions)
    present = {record.name for record in cached}
    missing = {name: m for name, m in methods.items() if name not in present}
    keep = Keeper(store)
    records = [objective.renamed(record, label) for record in cached]
    progress = CaseProgress(log.clock, objective.case_title(label, config))
    try:
        if missing:
            store.refuse_unwritable()
            chosen = {n: m for n, m in methods.items() if n in missing or n in objective.companions}
            progress.say("loading", 0.0)
            case = objective.make_case(label, config, identity)
            session = Session(objective, case, device, config.timing, keep, progress.say)
            records += session.measure(chosen, keys)
    finally:
        log.kept += keep.kept
        progress.close(measured=bool(missing))
    records.sort(key=lambda r: (*_session(objective, r), list(methods).index(r.name)))
    _show(objective, records, config, [record.key for record in cached])
    log.add(records, cached)
    keep.finish({record.name: record.status for record in records})
    return records


def matching(
    records: Sequence[Record], keys: Mapping[str, str], companions: frozenset[str]
) -> list[Record]:
    """The newest record of each of these keys, and the companions' of the same sessions."""
    own = [record for record in records if record.key in keys.values()]
    newest = {record.key: record for record in own if record.name not in companions}
    sessions = {record.session for record in newest.values()}
    beside = {(r.session, r.key): r for r in own if r.name in companions and r.session in sessions}
    return [*beside.values(), *newest.values()]


def _session(objective: AnyObjective, record: Record) -> tuple[str, ...]:
    """The sort key of a row's session: rows that were measured with companions stay beside them."""
    return (record.date, record.session) if objective.companions else ()


def _show(
    objective: AnyObjective, records: Sequence[Record], config: RunConfig, cached: Sequence[str]
) -> None:
    lines = [objective.heading(config)]
    if sentence := introduction((r.name for r in records), objective.reimplemented):
        lines.append(sentence)
    rows = objective.rows(records, cached)
    for row, record in zip(rows, records, strict=True):
        if record.is_noisy:
            row["time ms"] = f"~{row['time ms']}"
    notes = filter(None, [*objective.notes(records), noise(records)])
    lines += [table.as_text(rows), *(f"  {note}" for note in notes), ""]
    show("\n".join(lines))


def _keys(
    objective: AnyObjective,
    identity: Mapping[str, Any],
    config: RunConfig,
    methods: Mapping[str, Method],
    device: str,
) -> dict[str, str]:
    """The digest of what is measured, by method: the case, the method's code, the device."""
    common = {
        **identity,
        "timing": vars(config.timing),
        "device": device_name(device),
        "threads": None if device.startswith("cuda") else torch.get_num_threads(),
    }
    return {
        name: key_of(
            {
                **common,
                **objective.method_identity(method),
                "method": name,
                "code": objective.code(method).digest(),
                "libraries": objective.code(method).libraries(),
            }
        )
        for name, method in methods.items()
    }
