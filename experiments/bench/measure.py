"""Methods on one case: each prepared, verified, then timed in turns with the others."""

from __future__ import annotations

import functools
import statistics
import uuid
from collections.abc import Callable
from typing import Any, cast

import torch

from experiments.bench.config import Config
from experiments.bench.environment import environment
from experiments.bench.record import Record, now
from experiments.bench.timing import (
    TimedOut,
    deadline,
    elapsed_ms,
    first_calls_ms,
    interleaved_ms,
    preparations_ms,
)
from experiments.sddmm.case import Case
from experiments.sddmm.methods import Method, Run
from experiments.sddmm.verify import Truth
from sddmm.testing import poisoned_outputs


def measure(
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
    samples_ms, errors = _timed(runs, first_ms, config, case.device)
    for name in runs:
        if name in errors:
            _fail(records[name], errors[name])
        else:
            records[name].samples_ms = samples_ms[name]
        keep(records[name])
    return list(records.values())


def _timed(
    runs: dict[str, Run], first_ms: dict[str, float], config: Config, device: str
) -> tuple[dict[str, list[float]], dict[str, Exception]]:
    """Samples of each run; and why some failed, without which the others are timed again."""
    errors: dict[str, Exception] = {}
    failing: list[str] = []

    def watched(name: str) -> Run:
        def call() -> torch.Tensor:
            try:
                return runs[name]()
            except Exception:
                failing.append(name)
                raise

        return call

    while True:
        left = {name: watched(name) for name in runs if name not in errors}
        try:
            return interleaved_ms(left, first_ms, config.timing, device), errors
        except Exception as error:
            if not failing:
                raise
            errors[failing[-1]] = error


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
    return first_call(method, case.with_unseen_indices())


def first_call(method: Method, case: Case) -> Run:
    """The whole work of one product on a pattern: the method's public call, or prepare and run."""
    public_call = getattr(method, "public_call", None)
    if public_call is not None:
        return cast(Run, public_call(case))
    return lambda: method.prepare(case)()


def _fail(record: Record, error: Exception) -> None:
    lines: list[Any] = str(error).strip().splitlines()
    record.status = _status_of(error)
    record.reason = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


def _status_of(error: Exception) -> str:
    if isinstance(error, TimedOut):
        return "timeout"
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return "out_of_memory" if full or "can't allocate memory" in str(error) else "failed"
