"""Times several methods on the same data, interleaved, so that drifts affect them alike."""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from experiments.bench.config import Timing
from experiments.bench.methods import Run

# The number of preparations or first calls that a method makes in one round.
_CALLS_PER_ROUND = 5
# The time of the uncounted calls before them on a CPU, in ms.
WARM_UP_MS = 60.0

# An idle GPU keeps a higher clock for up to a tenth of a second, and then follows power and heat.
# Uncounted calls there take at least GPU_WARM_UP_MS and at most _MAX_WARM_UP_MS; in between they
# end when two consecutive spans of _SPAN_MS differ by no more than the fraction _STEADY.
GPU_WARM_UP_MS, _MAX_WARM_UP_MS = 150.0, 500.0
_SPAN_MS, _STEADY = 30.0, 0.005

# On a GPU a sample is the mean of back-to-back calls that take about this long together.
_BATCH_MS = 1.0
_MAX_CALLS = 50


class _Quota(NamedTuple):
    """A method is timed until it has `max_samples`, or until they took `max_ms` together."""

    max_samples: int
    max_ms: float


# How many preparations and first calls of a method are timed, at most, and for how long together.
_CALLS = 20
_PREPARATIONS_MS, _FIRST_CALLS_MS = 100.0, 300.0
# About as long as a host may be slower after other work: of a shorter round all calls may be.
_SHORT_ROUND_MS = 20.0


class TimedOut(Exception):
    """A method took longer than timing.timeout_s."""


class Interrupted(KeyboardInterrupt):
    """A person ended the timing; samples_ms holds those of the methods that were done."""

    def __init__(self, samples_ms: dict[str, list[float]]) -> None:
        self.samples_ms = samples_ms


def elapsed_ms(work: Callable[[], object], device: str) -> float:
    """Wall time of work() in ms, with all its device work done."""
    _finish(device)
    begin = time.perf_counter()
    work()
    _finish(device)
    return (time.perf_counter() - begin) * 1e3


def interleaved_ms(
    runs: dict[str, Run],
    first_ms: dict[str, float],
    timing: Timing,
    device: str,
    turn: Callable[[str, int], None] = lambda name, done: None,
) -> dict[str, list[float]]:
    """Samples of each run in ms: round after round, a few of every unfinished method.

    first_ms: what each run took when it was verified. A method is done at max_samples, or after
    `seconds` of its own time and min_samples; one that takes ten times `seconds` for a single call,
    or timing.slowest times as long as the fastest, is timed once. Each round of a method begins
    with uncounted calls. On a CPU the idle threads of the method before it go to sleep meanwhile:
    in the common BLAS and OpenMP libraries they spin for tens of milliseconds. A GPU meanwhile
    takes the clock that this method's power allows. With timing.warm_up_ms it has one long warm-up
    by the first method, and then changes methods too often to follow each one's power.

    turn(name, done) is called before a method's turn, when `done` methods are done. Raises
    Interrupted where a person ends it.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    samplers: dict[str, Sampler] = {}
    budget_ms = timing.seconds * 1e3
    slow_ms = 10 * max(budget_ms, 1e3)
    slow = slow_methods(first_ms, timing)

    def is_slow(name: str) -> bool:
        return name in slow or first_ms[name] > slow_ms

    def is_unfinished(name: str) -> bool:
        own = samples[name]
        if is_slow(name):
            return not own
        if len(own) < timing.min_samples:
            return True
        return len(own) < timing.max_samples and sum(own) < budget_ms

    def sampler(name: str) -> Sampler:
        if name not in samplers:
            samplers[name] = Sampler(runs[name], device, first_ms[name], once=is_slow(name))
        return samplers[name]

    if timing.warm_up_ms is not None and device.startswith("cuda"):
        for name in runs:  # all graphs first, as the clock falls while the host makes them
            sampler(name)
        for name in runs:
            if not is_slow(name):
                sampler(name).warm_up(GPU_WARM_UP_MS)
                break
    try:
        while unfinished := [name for name in runs if is_unfinished(name)]:
            for name in unfinished:
                if timing.warm_up_ms is None:  # else an idle GPU would change its clock meanwhile
                    turn(name, len(runs) - len(unfinished))
                sampler(name).warm_up(timing.warm_up_ms)
                for _ in range(timing.samples_per_round):
                    if is_unfinished(name):
                        samples[name].append(samplers[name].sample_ms())
    except KeyboardInterrupt:
        raise Interrupted(
            {name: own for name, own in samples.items() if not is_unfinished(name)}
        ) from None
    return samples


def slow_methods(first_ms: Mapping[str, float], timing: Timing) -> set[str]:
    """The methods that take timing.slowest times as long as the fastest; none if it is null."""
    if timing.slowest is None or not first_ms:
        return set()
    limit_ms = timing.slowest * min(first_ms.values())
    return {name for name, ms in first_ms.items() if ms > limit_ms}


def preparations_ms(
    prepare: Mapping[str, Callable[[], Run]], timeout_s: float, device: str, calls: int = _CALLS
) -> tuple[dict[str, list[float]], dict[str, Exception]]:
    """Wall times of each preparation in ms, and the errors of methods whose preparation failed.

    calls: how many of a method are timed, at most.
    """
    setups = {name: lambda work=work: work for name, work in prepare.items()}
    return _round_robin_ms(setups, _Quota(calls, _PREPARATIONS_MS), timeout_s, device)


def first_calls_ms(
    setups: Mapping[str, Callable[[], Run]], timeout_s: float, device: str, calls: int = _CALLS
) -> tuple[dict[str, list[float]], dict[str, Exception]]:
    """Wall times in ms of whole calls on indices never seen, and the errors of those that failed.

    setups[name]() copies the indices, which is not timed, and returns the call: preparation,
    binding, allocation and kernel. The device is synchronised before and after each call. A first
    round of short calls is not counted: the method whose turn it is would bear alone that a host is
    slower for some milliseconds after other work.
    """
    quota = _Quota(calls, _FIRST_CALLS_MS)
    return _round_robin_ms(setups, quota, timeout_s, device, drops_first_round=True)


def _round_robin_ms(
    setups: Mapping[str, Callable[[], Callable[[], object]]],
    quota: _Quota,
    timeout_s: float,
    device: str,
    drops_first_round: bool = False,
) -> tuple[dict[str, list[float]], dict[str, Exception]]:
    """Wall times of what each setup returns, in ms, a few of every method in each round.

    The first call of a round is not counted, as other methods' code fills the caches, unless it
    takes quota.max_ms by itself and is enough. Freeing a result is not counted either. A method
    that fails, or takes longer than timeout_s, is not run again.
    """
    samples: dict[str, list[float]] = {name: [] for name in setups}
    errors: dict[str, Exception] = {}
    result: list[object] = []

    def one_ms(name: str) -> float:
        result.clear()
        with deadline(timeout_s):
            work = setups[name]()
            return elapsed_ms(lambda: result.append(work()), device)

    def round_ms(name: str) -> list[float]:
        times: list[float] = []
        while len(times) <= min(_CALLS_PER_ROUND, quota.max_samples) and sum(times) < quota.max_ms:
            times.append(one_ms(name))
        return times[1:] or times

    def is_unfinished(name: str) -> bool:
        own = samples[name]
        return name not in errors and len(own) < quota.max_samples and sum(own) < quota.max_ms

    while unfinished := [name for name in setups if is_unfinished(name)]:
        for name in unfinished:
            try:
                samples[name] += round_ms(name)
            except Exception as error:
                errors[name] = error
        if drops_first_round:
            drops_first_round = False
            for own in samples.values():
                if sum(own) < _SHORT_ROUND_MS:
                    own.clear()
    return samples, errors


class Sampler:
    """Times one method. On a CPU a sample is the wall time of a call.

    On a GPU it is the device's time of back-to-back calls, by events, as one CUDA graph, so that
    the host, which may be slower than a short kernel, has no part in it; a run that cannot be
    captured is called instead. once: the method is slow and a single call is a sample.
    """

    def __init__(self, run: Run, device: str, first_ms: float, once: bool = False) -> None:
        self.run, self.device, self.first_ms = run, device, first_ms
        self.work: Callable[[], object] = run
        self.calls = 1
        self.once = once
        if device.startswith("cuda") and not once:
            call_ms = min(elapsed_ms(run, device) for _ in range(3))
            self.calls = max(1, min(_MAX_CALLS, round(_BATCH_MS / max(call_ms, 1e-3))))
            self.work = _graph(self._all_calls) or self._all_calls

    def _all_calls(self) -> None:
        for _ in range(self.calls):
            self.run()

    def warm_up(self, total_ms: float | None = None) -> None:
        """Uncounted calls until times are steady; none for a method too slow to matter.

        total_ms: how long they last, if given.
        """
        if self.once or self.first_ms > 20 * WARM_UP_MS:
            return
        if total_ms is not None:
            left_ms = total_ms
            while left_ms > 0:
                left_ms -= self.sample_ms() * self.calls
            return
        on_gpu = self.device.startswith("cuda")
        min_ms, max_ms = (GPU_WARM_UP_MS, _MAX_WARM_UP_MS) if on_gpu else (WARM_UP_MS, WARM_UP_MS)
        spent_ms, sample_ms, steady = 0.0, math.inf, False
        while spent_ms < min_ms or (not steady and spent_ms < max_ms):
            last_ms, sample_ms = sample_ms, self._mean_sample_ms()
            spent_ms += max(sample_ms, _SPAN_MS)
            steady = abs(sample_ms - last_ms) <= _STEADY * sample_ms

    def _mean_sample_ms(self) -> float:
        """The time of all calls of a sample together: the mean over samples that take _SPAN_MS."""
        samples: list[float] = []
        while sum(samples) < _SPAN_MS:
            samples.append(self.sample_ms() * self.calls)
        return statistics.fmean(samples)

    def sample_ms(self) -> float:
        if not self.device.startswith("cuda"):
            return elapsed_ms(self.work, self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / self.calls


def _graph(work: Callable[[], object]) -> Callable[[], object] | None:
    """The replay of the device's part of work() as a CUDA graph; None if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimedOut in the block after `seconds`, as soon as control is in Python again.

    Where signals cannot be had (another thread, another system) the block is not interrupted.
    """
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not usable:
        yield
        return

    def expire(signum: int, frame: object) -> None:
        raise TimedOut(f"took longer than timing.timeout_s={seconds:g}")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
