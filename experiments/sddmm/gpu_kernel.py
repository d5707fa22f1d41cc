"""Compiles and loads the kernels of baselines: .cu files beside their methods."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from gemm_core.runtime.compile import Cubin, compile_kernel
from gemm_core.runtime.device import device
from gemm_core.runtime.launch import Kernel, parameter_macros


@cache
def gpu_kernel(
    source: Path,
    function: str,
    parameters: type[ctypes.Structure],
    threads: int,
    macros: tuple[tuple[str, str], ...] = (),
) -> Kernel:
    """The kernel of a source, loaded on the current device; `parameters` is the struct it takes."""
    index = torch.cuda.current_device()
    cubin = compile_baseline(source, parameters, macros, device(index).arch)
    return Kernel(source.stem, cubin.code, function, parameters, threads, 0, index)


def compile_baseline(
    source: Path, parameters: type[ctypes.Structure], macros: tuple[tuple[str, str], ...], arch: str
) -> Cubin:
    """The source compiled; an error if its struct of parameters differs from `parameters`."""
    return compile_kernel(source, {**dict(macros), **parameter_macros(parameters)}, arch)


def as_float32(x: torch.Tensor) -> torch.Tensor:
    """Convert half types to float32, for methods that compute nothing else."""
    return x.float() if x.dtype.itemsize == 2 else x
