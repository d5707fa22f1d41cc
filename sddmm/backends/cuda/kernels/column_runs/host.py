"""column_runs: whether nonzeros stand in runs of consecutive columns, by a look at some."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pinned_results import validity_result
from sddmm.backends.cuda.spec import KernelSpec, Macros, macros
from sddmm.dtypes import INDEX_DTYPES

COLUMN_RUNS = KernelSpec("column_runs", "column_runs", (), threads=32)
_PLACES = 8

# The length of runs, in nonzeros, from which on a pattern counts as a mask.
MASK_RUN = 4


class Arguments(ctypes.Structure):
    """The parameters of column_runs/kernel.cu."""

    _fields_ = [("cols", POINTER), ("result", POINTER), ("nnz", LONG)]


def looks_like_mask(device: Device, cols: Tensor) -> bool:
    """Whether runs of consecutive columns are long, on the average of eight places in a pattern;
    waits for the GPU. cols: of all nonzeros, contiguous, on the device."""
    results, nnz = validity_result(cols.device).own, cols.numel()
    results.reset()
    kernel = _load(loader.runtime, cols.dtype, device.index)
    kernel(1, cols.data_ptr(), results.address, nnz)
    (steps,) = results.wait(device.index)
    pairs = _PLACES * min(COLUMN_RUNS.threads, max(0, nnz - 1))
    return MASK_RUN * steps >= (MASK_RUN - 1) * pairs


@functools.lru_cache(maxsize=16)
def _load(runtime: loader.CudaRuntime, index_dtype: torch.dtype, device_index: int) -> Kernel:
    return runtime.load_kernel(COLUMN_RUNS, macros_of(index_dtype), Arguments, device_index)


def macros_of(index_dtype: torch.dtype) -> Macros:
    return macros({"INDEX": INDEX_DTYPES[index_dtype], "PLACES": _PLACES})
