"""Threads for compiled CPU kernels that release the interpreter lock: torch's own OpenMP team.

Why not numba's `parallel=True`: its threading layers load a second OpenMP runtime or abort when
two Python threads call in at once. Two runtimes fight: after a torch operation torch's idle
threads spin for milliseconds on the cores that the other runtime's threads need (measured: a
2.4 ms kernel takes 4.3 ms right after a torch operation, on two cores).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

# What OpenMP calls on each thread.
_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# The OpenMP runtime that torch has loaded (GNU's, or LLVM's and Intel's through their GNU
# interface) starts a parallel region by this function.
_gomp_parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if os.name == "posix" else None
if _gomp_parallel is not None:
    _gomp_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    _gomp_parallel.restype = None

# OpenMP teams do not survive a fork.
_forked = threading.Event()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.set)


def for_chunks(work: Callable[[int, int], None], total: int, chunk: int) -> None:
    """Call work(begin, end) for consecutive chunks of range(total), on torch's number of threads.

    The bounds depend on `total` and `chunk` only, so a kernel whose chunks are independent gives
    the same bits on any number of threads. A call that returns has worked every chunk; the first
    exception of `work` or of a signal handler (Ctrl-C) cuts the call off and is raised here.
    """
    if total <= chunk:
        if total:
            work(0, total)
        return
    loop = _Loop(work, total, chunk)
    threads = min(torch.get_num_threads(), loop.chunks)
    if threads <= 1 or _forked.is_set():
        loop.drain()
    elif _gomp_parallel is not None:
        _run_on_team(loop, threads)
    else:
        with ThreadPoolExecutor(threads) as pool:
            try:
                list(pool.map(loop.drain, range(threads)))
            except BaseException as error:  # a signal while waiting: the threads stop too
                loop.errors.append(error)
    if loop.errors:
        raise loop.errors.pop(0)
    if len(loop.worked) < loop.chunks:
        raise _cut_off()


_FLOAT, _WORD = struct.Struct("d"), struct.Struct("q")

# The first words of the block of `for_compiled_chunks`: where the next chunk begins, where the
# last one ends, the size of a chunk, and how much has been worked. The arguments follow.
NEXT, END, CHUNK, WORKED, WORDS = range(5)

# Chunks of a thread between two looks at signals: milliseconds, or tenths of a second in tiles.
_CHUNKS_UNSEEN = 64


def for_compiled_chunks(function_at: int, arguments: Sequence[int], total: int, chunk: int) -> bool:
    """`for_chunks` by a compiled C function, in which no thread waits for the interpreter lock.

    function_at: the address of a function that takes chunks out of a block of 64-bit words, whose
    address is its argument, until none is left (`addresses.fetch_and_add`), and adds to WORKED
    those that it works. arguments: the words behind the first ones. Returns whether all of range(
    total) has been worked: what a compiled function raises is lost. A signal handler runs after so
    many chunks, and what it raises cuts the call off.
    """
    block = array("q", (0, 0, chunk, 0, *arguments))
    block_at, _ = block.buffer_info()
    threads = max(1, min(torch.get_num_threads(), -(-total // chunk)))
    step = threads * _CHUNKS_UNSEEN * chunk
    for begin in range(0, total, step):
        block[NEXT], block[END] = begin, min(total, begin + step)
        _call_on_team(function_at, block_at, threads)
    return block[WORKED] == total


def float_word(x: float) -> int:
    """The 64-bit word of a float64."""
    (word,) = _WORD.unpack(_FLOAT.pack(x))
    return int(word)


def _call_on_team(function_at: int, block_at: int, threads: int) -> None:
    """Call the C function with this address on every thread at once."""
    if threads <= 1 or _forked.is_set():
        _Region(function_at)(block_at)
    elif _gomp_parallel is not None:
        _gomp_parallel(function_at, block_at, threads, 0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_Region(function_at), [block_at] * threads))


class _Loop:
    """One call of for_chunks: the chunks that no thread has begun, those worked, and the errors."""

    def __init__(self, work: Callable[[int, int], None], total: int, chunk: int) -> None:
        self.work, self.total, self.chunk = work, total, chunk
        # A deque and lists change atomically. A lock could stay locked when a signal handler
        # raises between taking it and releasing it.
        self.pending = deque(range(0, total, chunk))  # where each chunk begins
        self.chunks = len(self.pending)
        self.worked: list[int] = []
        self.errors: list[BaseException] = []
        self.returned: list[int] = []  # identifiers of the threads that left `drain` normally

    def drain(self, _: object = None) -> None:
        """Work chunks until none is left or one failed; runs on every thread of the team."""
        try:
            while not self.errors:
                try:
                    begin = self.pending.popleft()
                except IndexError:
                    break
                self.work(begin, min(begin + self.chunk, self.total))
                self.worked.append(begin)
        except BaseException as error:
            self.errors.append(error)
        self.returned.append(threading.get_ident())


def _run_on_team(loop: _Loop, threads: int) -> None:
    """Drain the loop on torch's OpenMP team, of which the calling thread is one.

    ctypes cannot pass on what a callback raises: it reports it to sys.unraisablehook and goes on.
    `drain` catches what `work` raises, but a signal handler runs in the main thread at any
    bytecode, also before and after the `try` of `drain`. A hook records what it raises there. It is
    in place for this region only, and only in the main thread: hooks of concurrent regions would
    not be removed in the order of their installation.
    """
    callback: Callable[[object], None] = loop.drain
    caller = threading.get_ident()
    if caller != threading.main_thread().ident:
        _enter_region(callback, threads)
    else:
        forward = sys.unraisablehook

        def record(unraisable: Any) -> None:
            # Python 3.13 and newer name the callback in the message only.
            ours = unraisable.object is callback or repr(callback) in (unraisable.err_msg or "")
            if ours and unraisable.exc_value is not None:
                loop.errors.append(unraisable.exc_value)
            else:
                forward(unraisable)

        try:
            sys.unraisablehook = record
            _enter_region(callback, threads)
        finally:
            sys.unraisablehook = forward
    if not loop.errors and caller not in loop.returned:
        raise _cut_off()


def _enter_region(callback: Callable[[object], None], threads: int) -> None:
    assert _gomp_parallel is not None
    _gomp_parallel(_Region(callback), None, threads, 0)


def _cut_off() -> RuntimeError:
    """The error for an exception that was lost: raised while another one was being recorded."""
    return RuntimeError("the call was cut off by an exception outside its own code, as of a signal")
