"""One run: load, draw operands, then prepare, verify and time each method, record, show."""

from __future__ import annotations

import functools
import inspect
import statistics
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments import methods, table
from experiments.case import Case, definition, device_of, make_case, source_of
from experiments.digest import code_of, libraries_of, measured_code
from experiments.environment import device_name, environment
from experiments.methods import Method, Run
from experiments.progress import progress
from experiments.record import Record, key_of, now
from experiments.schema import Config
from experiments.store import Keeper, Store
from experiments.timing import (
    TimedOut,
    deadline,
    elapsed_ms,
    first_calls_ms,
    interleaved_ms,
    preparations_ms,
)
from experiments.verify import Truth
from sddmm.testing import poisoned_outputs


def run(name: str, config: Config) -> list[Record]:
    """Measure the methods on matrix `name`, print the table, return its records.

    A row that the store holds is shown from there; the others are measured, interleaved with each
    other, and the table says which rows are of different runs. Raises RecordsLost or RowsFailed,
    when the table has been printed, if a record was not kept or a row is wrong or failed.
    """
    chosen = methods.select(list(config.methods))
    store = Store(config.records, Record)
    defined = definition(source_of(config))
    keys = {method: _key(config, defined, method, chosen[method]) for method in chosen}
    known = {} if config.force else store.load()
    found = {method: known[key] for method, key in keys.items() if key in known}
    missing = {method: chosen[method] for method in chosen if method not in found}
    keep = Keeper(store)
    measured: list[Record] = []
    if missing:
        store.refuse_unwritable()
        with progress() as say:
            say(f"{name}: loading")
            case = make_case(name, config, defined)
            measured = _measure(case, config, missing, keys, say, keep)
    fresh = {record.method: record for record in measured}
    # The same matrix may have been measured under another name.
    records = [fresh.get(m) or replace(found[m], matrix=name) for m in chosen]
    _show(records, device_name(device_of(config)), [record.key for record in found.values()])
    keep.finish({record.method: record.status for record in records})
    return records


def _show(records: Sequence[Record], device: str, cached: Sequence[str]) -> None:
    print(f"on {device}")
    if sentence := methods.introduction(record.method for record in records):
        print(sentence)
    print(table.as_text(table.rows(records, cached)))
    for note in table.notes(records):
        print(f"  {note}")
    print(flush=True)


def _key(config: Config, defined: dict[str, Any], name: str, method: Method) -> str:
    """The digest of what is measured: the case, the method's code, the device."""
    device = device_of(config)
    files = [Path(path)] if (path := getattr(method, "__file__", None)) else []
    return key_of(
        {
            # A file is known by its content, wherever it lies.
            "definition": {what: value for what, value in defined.items() if what != "path"},
            "loader": code_of(Path(inspect.getfile(source_of(config).loader()))),
            "k": config.k,
            "dtype": config.dtype,
            "seed": config.seed,
            "timing": vars(config.timing),
            "method": name,
            "code": measured_code(*files),
            "libraries": libraries_of(*files),
            "device": device_name(device),
            "threads": None if device.startswith("cuda") else torch.get_num_threads(),
        }
    )


def _measure(
    case: Case,
    config: Config,
    chosen: dict[str, Method],
    keys: dict[str, str],
    say: Callable[[str], None],
    keep: Callable[[Record], None],
) -> list[Record]:
    """Records of these methods; each is given to keep() as soon as nothing will change it."""
    session, date = uuid.uuid4().hex, now()
    records = {
        name: Record(
            key=keys[name],
            session=session,
            matrix=case.matrix,
            definition=case.definition,
            m=case.m,
            n=case.n,
            nnz=case.nnz,
            k=case.k,
            dtype=case.dtype,
            seed=case.seed,
            method=name,
            status="failed",
            environment=environment(case.device),
            date=date,
        )
        for name in chosen
    }
    say(f"{case.matrix} k={case.k}: float64 reference")
    truth = Truth(case)
    runs: dict[str, Run] = {}
    first_ms: dict[str, float] = {}
    for name, method in chosen.items():
        say(f"{case.matrix} k={case.k}: verifying {name}")
        right = _prepared_and_right(method, case, config, truth, records[name])
        if right is not None:
            runs[name], first_ms[name] = right
        else:
            keep(records[name])
    say(f"{case.matrix} k={case.k}: timing {', '.join(runs)}")
    # The first time compiled kernels and set libraries up; from now on it is preparation alone.
    prepare = {name: functools.partial(chosen[name].prepare, case) for name in runs}
    prepared_ms, errors = preparations_ms(prepare, config.timing.timeout_s, case.device)
    unseen = {name: functools.partial(_unseen_call, chosen[name], case) for name in runs}
    calls_ms, call_errors = first_calls_ms(unseen, config.timing.timeout_s, case.device)
    for name, error in (call_errors | errors).items():
        del runs[name]
        _fail(records[name], error)
        keep(records[name])
    for name in runs:
        records[name].prepare_ms = statistics.median(prepared_ms[name])
        records[name].first_call_ms = calls_ms[name]
    for name, samples in interleaved_ms(runs, first_ms, config.timing, case.device).items():
        records[name].samples_ms = samples
        keep(records[name])
    return list(records.values())


def _prepared_and_right(
    method: Method, case: Case, config: Config, truth: Truth, record: Record
) -> tuple[Run, float] | None:
    """What to time and what its verified call took in ms, or None; the record then says why."""
    reason = method.refuses(case)
    if reason is not None:
        record.status, record.reason = "skipped", reason
        return None
    try:
        with deadline(config.timing.timeout_s):
            run = method.prepare(case)
            results: list[torch.Tensor] = []
            with poisoned_outputs():
                results.append(_unseen_call(method, case)())
                first_ms = elapsed_ms(lambda: results.append(run()), case.device)
    except Exception as error:
        return _fail(record, error)
    for values in results:
        verdict = truth.judge(values)
        record.checked, record.wrong, record.error = verdict.checked, verdict.wrong, verdict.error
        if verdict.wrong:
            record.status = "wrong"
            wrong = f"{verdict.wrong} of {verdict.checked} values"
            record.reason = f"{wrong} are outside the error bound"
            return None
    record.status = "ok"
    return run, first_ms


def _unseen_call(method: Method, case: Case) -> Run:
    """The method's first call, on indices that nothing has seen."""
    return methods.first_call(method, case.with_unseen_indices())


def _fail(record: Record, error: Exception) -> None:
    lines: list[Any] = str(error).strip().splitlines()
    record.status = _status_of(error)
    record.reason = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


def _status_of(error: Exception) -> str:
    if isinstance(error, TimedOut):
        return "timeout"
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return "out_of_memory" if full or "can't allocate memory" in str(error) else "failed"
