"""The GPU backend without a GPU: its kernels, compiled by g++, compute patterns on the CPU."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

import sddmm.prepared as prepared
from gemm_core.emulation.kernel import (
    EmulatedKernel,
    compile_library,
    missing_compiler,
    tensor_map,
)
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Parameters
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, Macros
from sddmm.backends.selection import forget_choices
from sddmm.prepared import PlanStore
from sddmm.sparse.index_tensors import DerivedKey

# The index of every emulated GPU: torch never gives it, so no cache mixes the two up.
_INDEX = -1

H200 = Device(
    index=_INDEX, name="emulated NVIDIA H200", capability=(9, 0), sm_count=132,
    shared_bytes=232_448, l2_bytes=62_914_560,
)  # fmt: skip


@contextlib.contextmanager
def emulated_gpu(device: Device = H200) -> Iterator[list[str]]:
    """Within the block the GPU backend plans and computes patterns on the CPU.

    g++ compiles the kernels' real sources, once; each thread of a block runs as a fiber. This shows
    wrong indices, guards and tails without a GPU, on small problems; it shows neither races nor
    speed. Undefined behaviour ends the process.

    The block gets a list of the names of the kernels launched in it, in their order.

    device: the GPU that plans are made for; they run in blocks only. RuntimeError without g++, and
    while another thread is in such a block.

        with emulated_gpu() as launches:
            values = sddmm.plan(S, k=64, dtype=a.dtype, kernel="row_gather").run(a, b)
    """
    if not isinstance(device, Device):
        raise TypeError(f"device must be a Device, as sddmm.testing.H200, got {device!r}")
    reason = missing_compiler()
    if reason is not None:
        raise RuntimeError(f"emulated_gpu: {reason}")
    runtime = _EmulatedRuntime(replace(device, index=_INDEX))
    with _only_thread(), mock.patch.object(loader, "runtime", runtime), _own_plans():
        yield runtime.launches


# Held by the thread that is in a block. Blocks that overlap otherwise than nested would leave one
# thread's emulation to the whole process.
_BLOCK = threading.RLock()


@contextlib.contextmanager
def _only_thread() -> Iterator[None]:
    if not _BLOCK.acquire(blocking=False):
        raise RuntimeError("another thread is in an emulated_gpu block: one at a time may be")
    try:
        yield
    finally:
        _BLOCK.release()


@contextlib.contextmanager
def _own_plans() -> Iterator[None]:
    """Within the block no pattern has the plans that it has outside, and outside none of these."""
    key = DerivedKey[PlanStore]("plans for an emulated GPU")
    forget_choices()
    try:
        with mock.patch.object(prepared, "PLANS", key):
            yield
    finally:
        forget_choices()


class _EmulatedRuntime(loader.CudaRuntime):
    """The operations of loader.CudaRuntime, on the CPU and at once."""

    def __init__(self, device: Device) -> None:
        self.launches: list[str] = []
        self.current_device = _current_device
        self.device: Callable[[int], Device] = lambda index: device
        self.wait: Callable[[int], None] = lambda index: None
        self.synchronize: Callable[[int], None] = lambda index: None
        self.current_stream: Callable[[int], int] = lambda index: 0
        self.load_kernel: Callable[..., Any] = _load_kernel
        self.tensor_map = tensor_map

    def unavailable(self) -> str | None:
        return None

    def refuses(self, device: torch.device) -> str | None:
        return None if device.type == "cpu" else f"the emulated GPU computes no pattern on {device}"

    def can_measure(self) -> bool:
        return False


def _current_device() -> int:
    """The emulated GPU's index; every run of a plan for it asks."""
    if not isinstance(loader.runtime, _EmulatedRuntime):
        raise RuntimeError("this plan is of an emulated GPU: run it within emulated_gpu()")
    return _INDEX


class _Kernel(EmulatedKernel):
    """An emulated kernel that adds its name to the launches of the block that it runs in."""

    def launch(self, blocks: int, arguments: Parameters) -> None:
        if isinstance(loader.runtime, _EmulatedRuntime):
            loader.runtime.launches.append(self.name)
        super().launch(blocks, arguments)


@functools.cache
def _load_kernel(
    spec: KernelSpec, macros: Macros, parameters: Any, device_index: int
) -> EmulatedKernel:
    all_macros = loader.compile_macros(spec, macros, parameters)
    library = compile_library(spec.path, "sddmm_kernel", all_macros, loader.INCLUDE)
    return _Kernel(spec.name, library, parameters, spec.threads, spec.min_blocks)
