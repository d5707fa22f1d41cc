"""Chunks on threads: every chunk once, errors and signals raised, forks survived."""

from __future__ import annotations

import ast
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import sddmm
from sddmm.backends.cpu import openmp as parallel
from sddmm.backends.cpu.openmp import for_chunks, for_compiled_chunks
from sddmm.testing import assert_close, random_pattern
from tests.conftest import ROOT


@pytest.fixture(params=["torch's OpenMP team", "threads of our own"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "threads of our own":
        # What a torch that is built without GNU OpenMP has.
        monkeypatch.setattr(parallel, "_gomp_parallel", None)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize(("total", "chunk"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 7)])
def test_every_chunk_is_worked_once(total: int, chunk: int) -> None:
    done: list[tuple[int, int]] = []
    for_chunks(lambda begin, end: done.append((begin, end)), total, chunk)
    expected = [(i, min(i + chunk, total)) for i in range(0, total, chunk)]
    assert sorted(done) == expected


@pytest.mark.usefixtures("_either_way")
def test_two_threads_work_at_once() -> None:
    if torch.get_num_threads() < 2:
        pytest.skip("torch has one thread here")
    meeting = threading.Barrier(2, timeout=20)
    for_chunks(lambda begin, end: meeting.wait() and None, 2, 1)


@pytest.mark.usefixtures("_either_way")
def test_an_error_of_the_work_is_raised() -> None:
    def work(begin: int, end: int) -> None:
        if begin == 30:
            raise RuntimeError("chunk 30")

    with pytest.raises(RuntimeError, match="chunk 30"):
        for_chunks(work, 100, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_works_too() -> None:
    for_chunks(lambda begin, end: None, 100, 1)  # the team exists before the fork
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        done: list[int] = []
        for_chunks(lambda begin, end: done.append(begin), 100, 1)
        queue.put(sorted(done))

    process = context.Process(target=child)
    process.start()
    process.join(30)
    alive = process.is_alive()
    process.kill()
    assert not alive
    assert queue.get() == list(range(100))


# Timers of 1 us to 0.6 ms cut calls of about 0.3 ms off at any point. The script prints how many
# calls were cut off, how many returned although the handler had raised or with a chunk left undone,
# and whether the hook is the same as before.
STORM = """
import signal, sys, time
import torch
from sddmm.backends.cpu.openmp import for_chunks

fired = 0

def handler(*_):
    global fired
    fired += 1
    raise ERROR("cut off")

signal.signal(signal.SIGALRM, handler)
torch.set_num_threads(2)
hook = sys.unraisablehook
cut = lost = unfinished = tries = 0
end = time.perf_counter() + 1.2
while time.perf_counter() < end:
    tries += 1
    before, done, returned = fired, [], False
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + 7 * tries % 600))
        for_chunks(lambda begin, end: done.append(begin), 2000, 20)
        returned, after, worked = True, fired, len(done)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except ERROR:
        cut += not returned
    if returned:
        lost += after != before
        unfinished += worked != 100
print((cut, lost, unfinished, sys.unraisablehook is hook))
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.parametrize(
    ("error", "team_limit"), [("TimeoutError", "1"), ("KeyboardInterrupt", None)]
)
def test_a_call_that_a_signal_cuts_off_raises_what_the_handler_raised(
    error: str, team_limit: str | None
) -> None:
    limit = {} if team_limit is None else {"OMP_THREAD_LIMIT": team_limit}
    done = subprocess.run(
        [sys.executable, "-c", STORM.replace("ERROR", error)],
        cwd=ROOT, env={**os.environ, **limit}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cut, lost, unfinished, hook_restored = ast.literal_eval(done.stdout)
    assert cut > 20
    assert (lost, unfinished, hook_restored) == (0, 0, True)


@pytest.mark.usefixtures("_either_way")
def test_more_threads_than_chunks_or_cores_and_calls_within_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 13)
    done: list[tuple[int, int]] = []

    def outer(begin: int, end: int) -> None:
        for_chunks(lambda inner, _: done.append((begin, inner)), 10, 3)

    for_chunks(outer, 40, 1)
    assert sorted(done) == [(i, j) for i in range(40) for j in range(0, 10, 3)]


@pytest.mark.usefixtures("_either_way")
def test_sixteen_threads_call_at_once_and_each_gets_its_own_error() -> None:
    def call(i: int) -> int:
        done: list[int] = []

        def work(begin: int, end: int) -> None:
            if i % 4 == 3 and begin == 20:
                raise RuntimeError(f"call {i}")
            done.append(begin)

        for_chunks(work, 100, 1)
        return len(done)

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(call, i) for i in range(64)]
    for i, future in enumerate(futures):
        if i % 4 == 3:
            with pytest.raises(RuntimeError, match=f"^call {i}$"):
                future.result()
        else:
            assert future.result() == 100


def test_a_call_whose_error_is_lost_raises_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """ctypes drops what a callback raises; in threads other than the main one no hook sees it."""

    # No public call makes the loop itself fail, before the try that surrounds its work.
    def drain(loop: parallel._Loop, _: object = None) -> None:
        loop.pending.popleft()
        raise TimeoutError("before the loop's own try")

    monkeypatch.setattr(parallel._Loop, "drain", drain)  # as said above
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(for_chunks, lambda begin, end: None, 100, 1)
    # ctypes calls it back only where torch's OpenMP is used.
    if parallel._gomp_parallel is not None and torch.get_num_threads() > 1:
        with pytest.raises(RuntimeError, match="the call was cut off"):
            future.result()
    else:
        with pytest.raises(TimeoutError):
            future.result()


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_chunks_give_the_same_bits_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    S = random_pattern(300, 200, 30_001)  # 118 chunks of 256 nonzeros or fewer
    a, b = torch.randn(300, 1000, dtype=dtype), torch.randn(200, 1000, dtype=dtype).mT
    plan = sddmm.plan(S, k=1000, dtype=dtype, backend="cpu", alpha=-0.3)
    results = []
    for threads, unseen in ((1, 64), (2, 1), (2, 64), (13, 7)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(parallel, "_CHUNKS_UNSEEN", unseen)  # several rounds, or one
        results.append(plan.run(a, b))
    assert_close(results[0], S, a, b, alpha=-0.3)
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_cuts_compiled_chunks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(*_: object) -> None:
        raise TimeoutError("cut off")

    S = random_pattern(2000, 200, 300_000)
    a, b = torch.ones(2000, 2000), torch.ones(200, 2000).mT  # some 20 ms, by chunks of 256
    plan = sddmm.plan(S, k=2000, dtype=a.dtype, backend="cpu")
    plan.run(a, b)
    out = torch.full((S.nnz,), torch.nan)
    monkeypatch.setattr(parallel, "_CHUNKS_UNSEEN", 1)  # so that a short call has many rounds
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    try:
        with pytest.raises(TimeoutError, match="cut off"):
            plan.run(a, b, out=out)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert out.isnan().any()
    assert (plan.run(a, b) == 2000).all()


@pytest.mark.usefixtures("_either_way")
def test_chunks_that_no_thread_works_are_told() -> None:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda block_at: None)
    function_at = ctypes.cast(function, ctypes.c_void_p).value
    assert function_at is not None
    assert not for_compiled_chunks(function_at, (), 100, 10)
    assert for_compiled_chunks(function_at, (), 0, 10)
