"""Sums that arrive from another rank, added to chosen rows."""

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
    """The parameters of add_rows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("own", "arrived", "rows", "totals")),
        *((name, LONG) for name in ("own_pitch", "pitch", "count")),
        *((name, INT) for name in ("k", "is_compact")),
    ]


ADD_ROWS = KernelSpec("add_rows", "add_rows", tuple(DTYPES), threads=256)


@functools.lru_cache(maxsize=64)
def load(
    runtime: loader.CudaRuntime,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    lanes: int,
    items: int,
    device_index: int,
) -> Kernel:
    """dtypes: of the own rows, of those that arrived, and of the totals."""
    own, arrived, total = (DTYPES[dtype].cpp_name for dtype in dtypes)
    defines: dict[str, str | int | bool] = {
        "OWN": own, "ARRIVED": arrived, "TOTAL": total, "LANES": lanes, "ITEMS": items,
    }  # fmt: skip
    return runtime.load_kernel(ADD_ROWS, macros(defines), Arguments, device_index)


def refuses(own: Tensor, totals: Tensor) -> str | None:
    """Why the kernel cannot add to these rows, to which torch adds; or None."""
    if reason := loader.runtime.unavailable() or loader.runtime.refuses(own.device):
        return reason
    if own.stride(-1) != 1 or totals.stride(-1) != 1:
        return "the elements of a row must be adjacent"
    return None


def add_rows(
    own: Tensor, arrived: Tensor, rows: Tensor, totals: Tensor, is_compact: bool = False
) -> None:
    """totals[rows[i]] = own[rows[i]] + arrived[i], rounded once, on torch's current stream.

    own, totals: (n, k), which may be the same memory. arrived: (count, k), contiguous. rows:
    (count,) int64, contiguous, no two the same. is_compact: own is (count, k), too, and own[i] is
    added.
    """
    if arrived.numel() == 0:
        return
    if refuses(own, totals) is not None:
        wide = (own if is_compact else own[rows]).to(DTYPES[own.dtype].accumulator)
        totals[rows] = (wide + arrived).to(totals.dtype)
        return
    count, k = arrived.shape
    items = _items(own, arrived, totals)
    lanes = min(32, 1 << (ceil_div(k, items) - 1).bit_length())
    index = loader.runtime.index_of(own.device)
    kernel = load(loader.runtime, (own.dtype, arrived.dtype, totals.dtype), lanes, items, index)
    kernel(  # in the order of Arguments
        ceil_div(count * lanes, ADD_ROWS.threads), own.data_ptr(), arrived.data_ptr(),
        rows.data_ptr(), totals.data_ptr(), own.stride(0), totals.stride(0), count, k, is_compact,
    )  # fmt: skip


def _items(own: Tensor, arrived: Tensor, totals: Tensor) -> int:
    """Elements that a lane can load at once: up to 16 bytes where all rows are aligned to them."""
    items = 16 // max(own.element_size(), arrived.element_size())
    places = [own.stride(0), totals.stride(0), own.shape[-1]]
    for x in (own, arrived, totals):
        at = x.data_ptr() // x.element_size()
        places.append(at if x.data_ptr() % x.element_size() == 0 else 1)
    return items if all(place % items == 0 for place in places) else 1
