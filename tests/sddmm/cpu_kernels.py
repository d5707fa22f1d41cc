"""The GPU kernels' real sources, compiled for the CPU with gemm_core.emulation."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gemm_core.emulation.kernel import EmulatedKernel, compile_library, tensor_map
from sddmm.backends.cuda import device_model as rates
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every family launches on the CPU."""

    def load_kernel(
        spec: KernelSpec, macros: Any, parameters: Any, index: int
    ) -> Callable[..., None]:
        macros = loader.compile_macros(spec, macros, parameters)
        library = compile_library(spec.path, "sddmm_kernel", macros, loader.INCLUDE)
        return EmulatedKernel(spec.name, library, parameters, spec.threads)

    monkeypatch.setattr(loader, "load_kernel", load_kernel)
    monkeypatch.setattr(loader, "tensor_map", tensor_map)
    monkeypatch.setattr(rates, "speed", lambda device: None)  # an H200's, as it is known


def at_a_cliff(x: Tensor) -> Tensor:
    """x with its last element at the end of what may be read: a byte more is a crash."""
    sizes, strides = x.shape, x.stride()
    if x.numel() == 0:
        return x
    count = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    page = mmap.PAGESIZE
    room = -(-count * x.element_size() // page) * page
    memory = mmap.mmap(-1, room + page)
    forbidden = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + room
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(forbidden), page, 0) == 0
    offset = room - count * x.element_size()
    whole = torch.frombuffer(memory, dtype=x.dtype, count=count, offset=offset)
    return whole.as_strided(sizes, strides).copy_(x)
