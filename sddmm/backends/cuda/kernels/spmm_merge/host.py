"""Adding the pieces of rows that several blocks of spmm_gather have summed."""

from __future__ import annotations

import ctypes
import functools

import torch

from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES


class Arguments(ctypes.Structure):
    """The parameters of spmm_merge/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("pieces", "records", "out", "addend", "out_rows")),
        ("head_out", LONG),
        *((name, INT) for name in ("blocks", "slices", "k")),
        ("alpha", DOUBLE),
    ]


_THREADS = 256
SPMM_MERGE = KernelSpec(
    "spmm_merge", "spmm_merge", tuple(DTYPES), threads=_THREADS, shared_bytes=_THREADS * 4 * 8
)


@functools.lru_cache(maxsize=256)
def load(
    runtime: loader.CudaRuntime,
    accumulator: torch.dtype,
    out_dtype: torch.dtype,
    columns: int,
    device_index: int,
) -> Kernel:
    """The kernel for slices of so many columns."""
    defines: dict[str, str | int | bool] = {
        "ACCUMULATOR": DTYPES[accumulator].cpp_name, "OUTPUT": DTYPES[out_dtype].cpp_name,
        "COLUMNS": columns,
    }  # fmt: skip
    return runtime.load_kernel(SPMM_MERGE, macros(defines), Arguments, device_index)
