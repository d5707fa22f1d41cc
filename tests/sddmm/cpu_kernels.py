"""The GPU kernels' real sources, compiled for the CPU with the shim of tests/gemm_core/shim."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gemm_core.runtime.launch import Parameters
from gemm_core.runtime.tensor_map import fits
from sddmm.backends.cuda import device_model as rates
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec

COMPILER = shutil.which("g++")
SHIMS = (Path(__file__).parent / "shim", Path(__file__).parent.parent / "gemm_core" / "shim")


class CpuKernel:
    """As gemm_core.launch.Kernel, on the CPU and at once."""

    def __init__(self, folder: Path, spec: KernelSpec, macros: Any, parameters: Any) -> None:
        self.spec, self.parameters, self.name = spec, parameters, spec.name
        self.run = _library(folder, spec, macros).run

    def __call__(self, blocks: int, *values: Any) -> None:
        self.launch(blocks, Parameters(self.parameters, values))

    def launch(self, blocks: int, arguments: Parameters) -> None:
        self.run(blocks, self.spec.threads, ctypes.c_void_p(arguments.pointers[0]))


def _library(folder: Path, spec: KernelSpec, macros: Any) -> Any:
    name = hashlib.sha1(repr((spec.name, macros)).encode()).hexdigest()[:16]
    path = folder / f"{spec.name}-{name}.so"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")  # another process may compile it too
        command = [
            str(COMPILER), "-std=c++17", "-O1", "-w", "-shared", "-fPIC",
            "-fsanitize=undefined", "-fno-sanitize-recover=all",
            f'-DSDDMM_SOURCE="{spec.path}"',
            *(f"-D{key}={value}" for key, value in macros),
            *(f"-I{shim}" for shim in SHIMS), *(f"-I{include}" for include in loader.INCLUDE),
            str(SHIMS[0] / "library.cpp"), "-o", str(unfinished),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        unfinished.replace(path)
    return ctypes.CDLL(str(path))


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Every family launches on the CPU."""

    def load_kernel(
        spec: KernelSpec, macros: Any, parameters: Any, index: int
    ) -> Callable[..., None]:
        return CpuKernel(folder, spec, macros, parameters)

    monkeypatch.setattr(loader, "load_kernel", load_kernel)
    monkeypatch.setattr(loader, "tensor_map", tensor_map)
    monkeypatch.setattr(rates, "speed", lambda device: None)  # an H200's, as it is known


def tensor_map(x: Tensor, box_rows: int, box_columns: int) -> bytes:
    """What the shim's TMA takes for a tensor map."""
    assert fits(x)
    heads = x.shape[0] if x.dim() == 3 else 1
    head = x.stride(0) if x.dim() == 3 else 0
    size = x.element_size()
    return struct.pack(
        "Pqqqqqiii68x", x.data_ptr(), x.shape[-1], x.shape[-2], heads, x.stride(-2) * size,
        head * size, box_columns, box_rows, size,
    )  # fmt: skip


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
