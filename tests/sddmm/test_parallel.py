"""for_chunks: every chunk once, errors raised, forks survived."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
import torch

from sddmm import parallel
from sddmm.parallel import for_chunks


@pytest.fixture(params=["torch's OpenMP team", "threads of our own"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "threads of our own":
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
