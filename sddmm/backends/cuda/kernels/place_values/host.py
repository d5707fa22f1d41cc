"""The values of some nonzeros, stored where these stand among all."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES


class Arguments(ctypes.Structure):
    """The parameters of place_values/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("part", "places", "values")),
        *((name, LONG) for name in ("count", "nnz")),
        ("heads", INT),
    ]


_THREADS, _ITEMS = 256, 8
PLACE_VALUES = KernelSpec("place_values", "place_values", tuple(DTYPES), threads=_THREADS)


@functools.lru_cache(maxsize=16)
def load(runtime: loader.CudaRuntime, dtype: torch.dtype, device_index: int) -> Kernel:
    defines: dict[str, str | int | bool] = {"VALUE": DTYPES[dtype].cpp_name, "ITEMS": _ITEMS}
    return runtime.load_kernel(PLACE_VALUES, macros(defines), Arguments, device_index)


def refuses(places: Tensor, values: Tensor) -> str | None:
    """Why the kernel cannot store these values, which torch stores; or None."""
    if places.dtype != torch.int32:
        return f"the places must be int32, got {places.dtype}"
    return loader.runtime.unavailable() or loader.runtime.refuses(values.device)


def place_values(part: Tensor, places: Tensor, values: Tensor) -> None:
    """values[..., places[i]] = part[..., i], on torch's current stream.

    part: ([h,] count); values: ([h,] nnz) of its dtype; places: (count,), no two the same.
    All are contiguous.
    """
    if part.numel() == 0:
        return
    if refuses(places, values) is not None:
        values.index_copy_(-1, places.long(), part)
        return
    count, nnz = part.shape[-1], values.shape[-1]
    index = loader.runtime.index_of(part.device)
    load(loader.runtime, part.dtype, index)(  # in the order of Arguments
        ceil_div(count, _THREADS * _ITEMS), part.data_ptr(), places.data_ptr(), values.data_ptr(),
        count, nnz, part.numel() // count,
    )  # fmt: skip
