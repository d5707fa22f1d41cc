"""Measures methods on one case: prepares and verifies each, then times them interleaved."""

from __future__ import annotations

import functools
import statistics
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import torch

from experiments.bench.config import Timing
from experiments.bench.environment import environment
from experiments.bench.methods import Method, Run
from experiments.bench.objective import AnyObjective
from experiments.bench.record import Record, now
from experiments.bench.timing import (
    Interrupted,
    TimedOut,
    deadline,
    elapsed_ms,
    first_calls_ms,
    interleaved_ms,
    preparations_ms,
    slow_methods,
)
from experiments.bench.verify import decisive

# The further runs of a method that seems slow, at most.
_FURTHER_RUNS = 5


class Session:
    """One interleaved measurement of some methods on one case.

    keep(record) is called as soon as nothing will change the record. say(step, part) shows what is
    done next, and the fraction of the session that is done.
    """

    def __init__(
        self,
        objective: AnyObjective,
        case: Any,
        device: str,
        timing: Timing,
        keep: Callable[[Record], None],
        say: Callable[[str, float], None],
    ) -> None:
        self.objective, self.case, self.device = objective, case, device
        self.timing, self.keep, self.say = timing, keep, say
        self.name, self.date = uuid.uuid4().hex, now()

    def measure(self, methods: Mapping[str, Method], keys: Mapping[str, str]) -> list[Record]:
        """The records of these methods."""
        steps = 1 + 3 * len(methods)  # each method is verified, prepared and timed
        self.say("float64 reference", 0.0)
        reference = self.objective.reference(self.case)
        self.say("compiling", 0.0)
        self.objective.compile(methods, self.case)
        records = {name: self._record(name, methods[name], keys[name]) for name in methods}
        runs: dict[str, Run] = {}
        first_ms: dict[str, float] = {}
        for index, (name, method) in enumerate(methods.items()):
            self.say(f"verifying {name}", (1 + index) / steps)
            verified = self._verified(method, records[name], reference)
            if verified is None:
                self.keep(records[name])
            else:
                runs[name], first_ms[name] = verified
        self._run_again(runs, first_ms)
        self.say("timing preparations", (1 + len(methods)) / steps)
        if self.objective.times_preparation:
            self._time_preparation(methods, records, runs, slow_methods(first_ms, self.timing))

        def turn(name: str, done: int) -> None:
            self.say(f"timing {name}", 1 - (len(runs) - done) / steps)

        try:
            samples_ms, errors = self._samples_ms(runs, first_ms, turn)
        except Interrupted as stopped:
            for name, samples in stopped.samples_ms.items():
                records[name].samples_ms = samples
                self.keep(records[name])
            raise
        for name in runs:
            if name in errors:
                _fail(records[name], errors[name])
            else:
                records[name].samples_ms = samples_ms[name]
            self.keep(records[name])
        return list(records.values())

    def _record(self, name: str, method: Method, key: str) -> Record:
        record: Record = self.objective.record_type(
            key=key,
            session=self.name,
            status="failed",
            environment=environment(self.device),
            date=self.date,
            **self.objective.case_fields(self.case),
            **self.objective.method_fields(name, method),
        )
        return record

    def _verified(self, method: Method, record: Record, reference: Any) -> tuple[Run, float] | None:
        """The run to time and the ms of its verified call; None where the method does not serve the
        case or is wrong, which the record then says."""
        results: list[Any] = []
        first_ms = 0.0
        try:
            reason = method.refuses(self.case)
            if reason is not None:
                record.status, record.reason = "skipped", reason
                return None
            with deadline(self.timing.timeout_s):
                run = method.prepare(self.case)
                self.objective.annotate(record, method, self.case)
                trials = self.objective.trials(method, self.case, run, reference)
                for trial in trials:
                    work = functools.partial(_append_result, results, trial.call)
                    first_ms = elapsed_ms(work, self.device)
                if self.timing.slowest is not None:  # the first run may have loaded its code
                    first_ms = min(first_ms, elapsed_ms(run, self.device))
        except Exception as error:
            _fail(record, error)
            return None
        verdicts = [t.check(result) for t, result in zip(trials, results, strict=True)]
        verdict = decisive(verdicts)
        record.checked, record.wrong = verdict.checked, verdict.wrong
        record.error = verdicts[-1].error if verdict.error is None else verdict.error
        if verdict.wrong:
            wrong = f"{verdict.wrong} of {verdict.checked} values"
            record.status = "wrong"
            record.reason = verdict.reason or f"{wrong} are outside the error bound"
            return None
        record.status = "ok"
        return run, first_ms

    def _run_again(self, runs: Mapping[str, Run], first_ms: dict[str, float]) -> None:
        """Run methods that seem many times slower than the fastest again, until one does not: a run
        may have been interrupted, and its method would be timed once, as a call."""
        for name in slow_methods(first_ms, self.timing):
            try:
                with deadline(self.timing.timeout_s):
                    for _ in range(_FURTHER_RUNS):
                        first_ms[name] = min(first_ms[name], elapsed_ms(runs[name], self.device))
                        if name not in slow_methods(first_ms, self.timing):
                            break
            except Exception:  # it will be recorded when the method is timed
                continue

    def _time_preparation(
        self,
        methods: Mapping[str, Method],
        records: dict[str, Record],
        runs: dict[str, Run],
        slow: set[str],
    ) -> None:
        """Fill in prepare_ms and, of the methods whose user would call it, first_call_ms, unless a
        method is slow; one that fails leaves `runs`.

        Verification compiled the kernels and set the libraries up; from now on it is preparation
        alone.
        """
        timeout_s, calls = self.timing.timeout_s, self.timing.calls
        prepare = {
            name: functools.partial(methods[name].prepare, self.case)
            for name in runs
            if name not in slow
        }
        prepared_ms, errors = preparations_ms(prepare, timeout_s, self.device, calls)
        first = functools.partial(self.objective.first_call, case=self.case)
        called = [name for name in prepare if self.objective.times_first_call(methods[name])]
        unseen = {name: functools.partial(first, methods[name]) for name in called}
        calls_ms, call_errors = first_calls_ms(unseen, timeout_s, self.device, calls)
        for name, error in (call_errors | errors).items():
            del runs[name]
            _fail(records[name], error)
            self.keep(records[name])
        for name in prepare.keys() & runs.keys():
            records[name].prepare_ms = statistics.median(prepared_ms[name])
            records[name].first_call_ms = calls_ms.get(name, [])

    def _samples_ms(
        self,
        runs: dict[str, Run],
        first_ms: dict[str, float],
        turn: Callable[[str, int], None],
    ) -> tuple[dict[str, list[float]], dict[str, Exception]]:
        """Samples of each run; and why some failed, without which the others are timed again."""
        errors: dict[str, Exception] = {}
        failing: list[str] = []

        def watched(name: str) -> Run:
            def call() -> Any:
                try:
                    return runs[name]()
                except Exception:
                    failing.append(name)
                    raise

            return call

        while True:
            left = {name: watched(name) for name in runs if name not in errors}
            try:
                return interleaved_ms(left, first_ms, self.timing, self.device, turn), errors
            except Exception as error:
                if not failing:
                    raise
                errors[failing[-1]] = error


def _append_result(results: list[Any], call: Run) -> None:
    results.append(call())


def _fail(record: Record, error: Exception) -> None:
    lines: list[Any] = str(error).strip().splitlines()
    record.status = _status_of(error)
    record.reason = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


def _status_of(error: Exception) -> str:
    if isinstance(error, TimedOut):
        return "timeout"
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return "out_of_memory" if full or "can't allocate memory" in str(error) else "failed"
