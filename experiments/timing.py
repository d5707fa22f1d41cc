"""Timing several methods on the same data, interleaved, so that drifts meet them alike."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

import torch

from experiments.methods import Run
from experiments.schema import Timing

# Counted samples of a method in a row, and the time of uncounted ones before them.
_TURN = 5
_SETTLE_MS = 60.0

# On a GPU a sample is the mean of back-to-back calls that take about this long together.
_BATCH_MS = 1.0
_MOST_CALLS = 50


class TimedOut(Exception):
    """A method took longer than timing.timeout_s."""


def elapsed_ms(work: Callable[[], object], device: str) -> float:
    """Wall time of work() in ms, with all its device work done."""
    _finish(device)
    begin = time.perf_counter()
    work()
    _finish(device)
    return (time.perf_counter() - begin) * 1e3


def interleaved_ms(
    runs: dict[str, Run], first_ms: dict[str, float], timing: Timing, device: str
) -> dict[str, list[float]]:
    """Samples of each run in ms: round after round, a few of every method that wants more.

    first_ms: what each run took when it was verified. A method is done at max_samples, or after
    `seconds` of its own time and min_samples; one that takes ten times `seconds` for a single call
    is timed once. Its turn begins with calls that are not counted. On a CPU the idle threads of the
    method before it go to sleep meanwhile: in the common BLAS and OpenMP libraries they spin for
    tens of milliseconds. A GPU meanwhile takes the clock that this method's power allows.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    budget_ms = timing.seconds * 1e3

    def wants_more(name: str) -> bool:
        taken = samples[name]
        slow = first_ms[name] > 10 * max(budget_ms, 1e3)
        if len(taken) < (1 if slow else timing.min_samples):
            return True
        return len(taken) < timing.max_samples and sum(taken) < budget_ms

    while hungry := [name for name in runs if wants_more(name)]:
        for name in hungry:
            call_ms = _settle(runs[name], device, first_ms[name])
            for _ in range(_TURN):
                if wants_more(name):
                    samples[name].append(_sample_ms(runs[name], device, call_ms))
    return samples


def _sample_ms(run: Run, device: str, call_ms: float) -> float:
    """One call in ms: wall time on a CPU; on a GPU the device's, without the host's share."""
    if not device.startswith("cuda"):
        return elapsed_ms(run, device)
    calls = max(1, min(_MOST_CALLS, round(_BATCH_MS / max(call_ms, 1e-3))))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def _settle(run: Run, device: str, first_ms: float) -> float:
    """Uncounted calls for _SETTLE_MS; none for a method so slow that it does not matter.

    Returns what a call took in ms.
    """
    if first_ms > 20 * _SETTLE_MS:
        return first_ms
    spent = call_ms = 0.0
    while spent < _SETTLE_MS:
        call_ms = elapsed_ms(run, device)
        spent += call_ms
    return call_ms


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
