"""Cases in processes of their own, so that a crash is one failing case and not the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from sddmm.testing import emulated_gpu
from tests.fuzz.case import Case, draw
from tests.fuzz.run import Outcome, run

# A case that takes longer hangs. The first of a process may compile kernels.
CASE_SECONDS = 120.0


class Source(NamedTuple):
    """Where cases come from: a seed, or a list."""

    seed: int
    device: str
    kernels: tuple[str, ...] = ()
    listed: tuple[Case, ...] = ()

    def case(self, number: int) -> Case:
        if self.listed:
            return self.listed[number]
        return draw(self.seed, number, self.device, self.kernels)


class Done(NamedTuple):
    number: int
    outcome: Outcome


def kernels_of(device: str) -> tuple[str, ...]:
    """The GPU kernels that may be demanded by name."""
    if device == "cpu":
        return ()
    from sddmm.backends.cuda.kernels.registry import BLOCK_KERNELS, KERNELS

    return (*KERNELS, *BLOCK_KERNELS)


def set_up(device: str) -> None:
    """What a process needs before it runs cases of a device."""
    if device == "emulated":
        _emulation.enter_context(emulated_gpu())


_emulation = contextlib.ExitStack()  # open as long as the process lives


def guarded_run(case: Case) -> Outcome:
    """`run`, a fault of the fuzzer itself being told as such."""
    try:
        return run(case)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        fatal = "CUDA" in text
        return Outcome("crash" if fatal else "fuzzer", text)


def work(source: Source, numbers: Sequence[int], until: float, pipe: Connection) -> None:
    """Run cases one after the other and send what came of each; what a process does."""
    warnings.simplefilter("ignore")
    set_up(source.device)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in numbers:
        if time.time() > until:
            break
        outcome = guarded_run(source.case(number))
        pipe.send((number, tuple(outcome)))
        if outcome.kind == "crash":  # nothing works after an error of a kernel
            os._exit(1)
    pipe.send(None)


class _Worker:
    """A process and the cases that it has not finished."""

    def __init__(self, source: Source, numbers: Sequence[int], until: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.left = list(numbers)
        self.finished = self.ended = False
        self.pipe, theirs = context.Pipe(duplex=False)
        arguments = (source, self.left, until, theirs)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.heard = time.monotonic()

    def receive(self) -> Iterator[Done]:
        """What the process has sent, and the case that it died of."""
        while not self.ended and self.pipe.poll():
            self.heard = time.monotonic()
            try:
                message = self.pipe.recv()
            except EOFError:
                self.process.join()
                yield from self._died(f"the process ended with {self.process.exitcode}")
                return
            if message is None:
                self.finished = self.ended = True
                return
            number, outcome = message
            self.left.remove(number)
            # After a crash that it could tell of, a process ends by itself.
            self.ended = outcome[0] == "crash"
            yield Done(number, Outcome(*outcome))
        if not self.ended and time.monotonic() - self.heard > CASE_SECONDS:
            yield from self._died(f"no end within {CASE_SECONDS:.0f} s")

    def _died(self, told: str) -> Iterator[Done]:
        self.ended = True
        if self.left:
            yield Done(self.left.pop(0), Outcome("crash", told))

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_all(source: Source, numbers: Sequence[int], workers: int, seconds: float) -> Iterator[Done]:
    """What came of each case, as it comes; a process that dies is replaced."""
    until = time.time() + seconds
    shares = [numbers[i::workers] for i in range(workers)]
    active = [_Worker(source, share, until) for share in shares if share]
    try:
        while active:
            wait([worker.pipe for worker in active], timeout=1.0)
            for worker in list(active):
                yield from worker.receive()
                if worker.ended:
                    worker.close()
                    active.remove(worker)
                    if worker.left and not worker.finished:
                        active.append(_Worker(source, worker.left, until))
    finally:
        for worker in active:
            worker.close()
