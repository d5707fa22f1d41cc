"""Threads for compiled CPU kernels that release the interpreter lock: torch's own OpenMP team.

Why not numba's `parallel=True`: its threading layers bring a second OpenMP runtime or abort when
two Python threads call in at once. Two runtimes fight: after a torch operation torch's idle
threads spin for milliseconds on the cores that the other runtime's threads want (measured: a
2.4 ms kernel takes 4.3 ms right after a torch operation, on two cores).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# Of the runtime that torch has loaded (GNU's, or LLVM's and Intel's through their GNU interface).
_gomp_parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if os.name == "posix" else None

# OpenMP teams do not survive a fork.
_forked = threading.Event()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.set)


def for_chunks(work: Callable[[int, int], None], total: int, chunk: int) -> None:
    """Call work(begin, end) for consecutive chunks of range(total), on torch's number of threads.

    The bounds depend on `total` and `chunk` only, so a kernel whose chunks are independent gives
    the same bits on any number of threads. The first exception of `work` is raised here.
    """
    starts = iter(range(0, total, chunk))
    lock = threading.Lock()
    errors: list[BaseException] = []

    def drain(_: object = None) -> None:
        try:
            while not errors:
                with lock:
                    begin = next(starts, None)
                if begin is None:
                    return
                work(begin, min(begin + chunk, total))
        except BaseException as error:
            errors.append(error)

    threads = min(torch.get_num_threads(), -(-total // chunk))
    if threads <= 1 or _forked.is_set():
        drain()
    elif _gomp_parallel is not None:
        _gomp_parallel(_Region(drain), None, ctypes.c_uint(threads), ctypes.c_uint(0))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(drain, range(threads)))
    if errors:
        raise errors[0]
