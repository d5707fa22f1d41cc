"""Chosen rows of a dense operand, stored into memory of this GPU or of another one."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, macros


class Arguments(ctypes.Structure):
    """The parameters of send_rows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("source", "rows", "target")),
        *((name, LONG) for name in ("head_units", "row_units", "count")),
        *((name, INT) for name in ("units", "heads")),
    ]


_UNIT = 16  # bytes that a lane copies at a time
# On an H200, 478 MB in rows of 512 bytes into another's memory while kernels of 3.7 ms run, by
# script: 16 blocks take 1.57 ms and cost the kernels 0.32, 64 take 1.41 and cost 0.51, 8 take 1.87;
# what those cost was not noted.
_BLOCKS, _PATIENT_BLOCKS, _BATCH = 16, 8, 4
SEND_ROWS = KernelSpec("send_rows", "send_rows", (), threads=1024)


@functools.lru_cache(maxsize=64)
def load(runtime: loader.CudaRuntime, lanes: int, device_index: int) -> Kernel:
    defines: dict[str, str | int | bool] = {"LANES": lanes, "BATCH": _BATCH}
    return runtime.load_kernel(SEND_ROWS, macros(defines), Arguments, device_index)


def refuses(x: Tensor, rows: Tensor, target: Tensor) -> str | None:
    """Why the kernel cannot copy these rows, for which `torch.index_select` serves; or None."""
    if reason := loader.runtime.unavailable() or loader.runtime.refuses(x.device):
        return reason
    if rows.dtype != torch.int64 or not rows.is_contiguous():
        return "the numbers of the rows must be contiguous int64"
    sizes = (x.shape[-1], *x.stride()[:-1])
    if x.stride(-1) != 1 or any(size * x.element_size() % _UNIT for size in sizes):
        return f"rows and strides must be multiples of {_UNIT} bytes"
    if x.data_ptr() % _UNIT or target.data_ptr() % _UNIT or not target.is_contiguous():
        return f"the memory must be contiguous and aligned to {_UNIT} bytes"
    return None


def send_rows(x: Tensor, rows: Tensor, target: Tensor, is_urgent: bool = True) -> None:
    """target[..., i, :] = x[..., rows[i], :], on torch's current stream.

    x: ([h,] n, k). rows: (count,) int64, each from 0 to n - 1. target: ([h,] count, k), contiguous,
    in memory that this GPU can write. is_urgent: whether kernels wait for the rows; else those
    beside them keep more of the GPU.
    """
    if target.numel() == 0:
        return
    if refuses(x, rows, target) is not None:
        torch.index_select(x, x.dim() - 2, rows, out=target)
        return
    size = x.element_size()
    units = x.shape[-1] * size // _UNIT
    lanes = min(32, 1 << (units - 1).bit_length())
    head_units = x.stride(0) * size // _UNIT if x.dim() == 3 else 0
    index = x.device.index if x.device.index is not None else loader.runtime.current_device()
    load(loader.runtime, lanes, index)(  # in the order of Arguments
        _BLOCKS if is_urgent else _PATIENT_BLOCKS,
        x.data_ptr(), rows.data_ptr(), target.data_ptr(), head_units,
        x.stride(-2) * size // _UNIT, rows.numel(), units, x.shape[0] if x.dim() == 3 else 1,
    )  # fmt: skip
