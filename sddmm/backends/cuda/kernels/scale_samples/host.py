"""Samples times S's values, after a kernel that does not multiply by them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.executor import LaunchFn
from sddmm.backends.cuda.spec import KernelSpec, macros, type_macros
from sddmm.dtypes import HALF_DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem


class Arguments(ctypes.Structure):
    """The parameters of scale_samples/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("samples", "values", "out")),
        ("nnz", LONG),
        ("blocks_per_head", INT),
    ]


_THREADS, _ITEMS = 256, 8
SCALE_SAMPLES = KernelSpec("scale_samples", "scale_samples", HALF_DTYPES, threads=_THREADS)
# The dtype of samples of half types that are not rounded yet.
SAMPLES_DTYPE = torch.float32

SampleFn = Callable[[int, float], None]
"""sample(out, alpha): launch a kernel that stores samples, times alpha."""


@functools.lru_cache(maxsize=64)
def load(
    runtime: loader.CudaRuntime, dtype: torch.dtype, out_dtype: torch.dtype, device_index: int
) -> Kernel:
    defines = macros({**type_macros(dtype, out_dtype), "ITEMS": _ITEMS})
    return runtime.load_kernel(SCALE_SAMPLES, defines, Arguments, device_index)


def then_scaled(sample: SampleFn, problem: SddmmProblem, device: Device) -> LaunchFn:
    """The launch of a kernel and, behind it, of the multiplication of what it has stored.

    sample: of half types, stores samples of SAMPLES_DTYPE: to the output, if that has this dtype,
    else to memory of (heads, nnz) samples, which the launch allocates.
    """
    kernel = load(loader.runtime, problem.dtype, problem.out_dtype, device.index)
    blocks = ceil_div(problem.nnz, _THREADS * _ITEMS)
    heads, nnz = problem.heads or 1, problem.nnz
    in_place = problem.out_dtype == SAMPLES_DTYPE

    def launch(values: int, out: int, alpha: float) -> None:
        if in_place:
            samples = out
        else:
            memory = new_memory("unscaled samples", (heads * nnz,), SAMPLES_DTYPE, problem.device)
            samples = memory.data_ptr()
        sample(samples, alpha)
        kernel(heads * blocks, samples, values, out, nnz, blocks)  # in the order of Arguments

    return launch


def scaling_us(problem: SddmmProblem, model: DeviceModel) -> float:
    """The predicted time of the multiplication."""
    sample_bytes = SAMPLES_DTYPE.itemsize + problem.out_dtype.itemsize
    moved = (problem.heads or 1) * problem.nnz * (sample_bytes + problem.dtype.itemsize)
    return model.launch_us + 1e6 * moved / model.memory_bytes
