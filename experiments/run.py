"""One run: load, draw operands, then prepare, verify and time each method, record, show."""

from __future__ import annotations

import functools
import statistics
import uuid
from collections.abc import Callable
from typing import Any

import torch

from experiments import methods, table
from experiments.case import Case, definition, device_of, make_case, source_of
from experiments.environment import device_name, environment, source_digest
from experiments.methods import Method, Run
from experiments.progress import progress
from experiments.record import Record, Store, key_of, refuse_bad
from experiments.schema import Config
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

    A case whose rows are all in the store is shown from there. Otherwise all its methods are
    measured anew, because only times of one interleaved session compare. Raises RowsFailed if a
    row is wrong or failed, when the table has been printed.
    """
    chosen = methods.select(list(config.methods))
    store = Store(config.records, Record)
    keys = {method: _key(name, config, method) for method in chosen}
    records = [] if config.force else store.session(keys.values())
    cached = bool(records)
    if not cached:
        with progress() as say:
            say(f"{name}: loading")
            case = make_case(name, config)
            records = _measure(case, config, chosen, keys, say)
        for record in records:
            store.append(record)
    print(f"on {device_name(device_of(config))}")
    if sentence := methods.introduction(record.method for record in records):
        print(sentence)
    print(table.as_text(table.rows(records, cached)))
    for note in table.notes(records):
        print(f"  {note}")
    print(flush=True)
    refuse_bad({record.method: record.status for record in records})
    return records


def _key(name: str, config: Config, method: str) -> str:
    device = device_of(config)
    return key_of(
        {
            "matrix": name,
            "definition": definition(source_of(config)),
            "k": config.k,
            "dtype": config.dtype,
            "seed": config.seed,
            "timing": vars(config.timing),
            "method": method,
            "device": device_name(device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "source": source_digest(),
        }
    )


def _measure(
    case: Case,
    config: Config,
    chosen: dict[str, Method],
    keys: dict[str, str],
    say: Callable[[str], None],
) -> list[Record]:
    session = uuid.uuid4().hex
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
    say(f"{case.matrix} k={case.k}: timing {', '.join(runs)}")
    # The first time compiled kernels and set libraries up; from now on it is preparation alone.
    prepare = {name: functools.partial(chosen[name].prepare, case) for name in runs}
    prepared_ms, errors = preparations_ms(prepare, config.timing.timeout_s, case.device)
    unseen = {name: functools.partial(_unseen_call, chosen[name], case) for name in runs}
    calls_ms, call_errors = first_calls_ms(unseen, config.timing.timeout_s, case.device)
    for name, error in (call_errors | errors).items():
        del runs[name]
        _fail(records[name], error)
    for name in runs:
        records[name].prepare_ms = statistics.median(prepared_ms[name])
        records[name].first_call_ms = calls_ms[name]
    for name, samples in interleaved_ms(runs, first_ms, config.timing, case.device).items():
        records[name].samples_ms = samples
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
