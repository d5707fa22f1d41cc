"""Signals between the GPUs of one host: words of 0 or 1 in memory that all of them reach."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel, copy_to_host
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, macros

_MAX_SIGNALS = 16  # signals of one launch


class Signals(ctypes.Structure):
    """The addresses of the words; those behind the last one are 0."""

    _fields_ = [("at", POINTER * _MAX_SIGNALS)]


class Arguments(ctypes.Structure):
    """The parameters of signals/kernel.cu."""

    _fields_ = [("signals", Signals), ("timeout_ns", LONG), ("count", INT), ("is_put", INT)]


SIGNALS = KernelSpec("signals", "signals", (), threads=32)


@functools.lru_cache(maxsize=16)
def load(runtime: loader.CudaRuntime, device_index: int) -> Kernel:
    return runtime.load_kernel(SIGNALS, macros({"MOST": _MAX_SIGNALS}), Arguments, device_index)


def put_signals(addresses: Sequence[int], timeout_s: float, device_index: int) -> None:
    """Tell the owners of these int32 words what torch's current stream has done: change each from 0
    to 1, when whoever is told of the last time has taken it.

    addresses: in memory that this GPU can write. timeout_s: in seconds, after which the kernel
    traps, and all later CUDA calls of the process fail.
    """
    _change(addresses, timeout_s, device_index, is_put=True)


def take_signals(addresses: Sequence[int], timeout_s: float, device_index: int) -> None:
    """Make torch's current stream wait until each of these int32 words is 1, and change it to 0.

    timeout_s: as of `put_signals`.
    """
    _change(addresses, timeout_s, device_index, is_put=False)


def copy_signals(address: int, into: Tensor, stream: torch.cuda.Stream) -> None:
    """Begin to copy consecutive words to `into`, (count,) int32 in pinned memory, on a stream of
    their GPU."""
    with _on_device(stream.device_index):
        copy_to_host(into.data_ptr(), address, 4 * into.numel(), stream)


def _change(addresses: Sequence[int], timeout_s: float, device_index: int, is_put: bool) -> None:
    kernel = load(loader.runtime, device_index)
    timeout_ns = min(int(timeout_s * 1e9), 2**62)
    with _on_device(device_index):
        for first in range(0, len(addresses), _MAX_SIGNALS):
            own = addresses[first : first + _MAX_SIGNALS]
            words = struct.pack(f"{len(own)}Q", *own)  # in the order of Arguments; the rest are 0
            kernel(1, words, timeout_ns, len(own), is_put)


def _on_device(device_index: int) -> AbstractContextManager[Any]:
    """The GPU as torch's current one, in whose context the driver launches and copies."""
    if loader.runtime.current_device() == device_index:
        return nullcontext()
    return torch.cuda.device(device_index)
