"""Chosen rows of a dense operand, stored into memory of this GPU or of another one."""

from __future__ import annotations

import ctypes
import enum
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, macros


class Parcel(NamedTuple):
    """Rows that are sent to one place: their numbers, (count,) int64, and the memory that they are
    written to, ([h,] count, k), contiguous."""

    rows: Tensor
    target: Tensor


_MAX_PARCELS = 16  # parcels of one launch


class Targets(ctypes.Structure):
    """The addresses of targets and of the numbers of their rows, and how many rows each has."""

    _fields_ = [
        ("at", POINTER * _MAX_PARCELS),
        ("rows", POINTER * _MAX_PARCELS),
        ("count", LONG * _MAX_PARCELS),
    ]


class Arguments(ctypes.Structure):
    """The parameters of send_rows/kernel.cu."""

    _fields_ = [
        ("source", POINTER),
        *((name, LONG) for name in ("head_units", "row_units")),
        ("targets", Targets),
        *((name, INT) for name in ("units", "heads", "number")),
    ]


_UNIT = 16  # bytes that a lane copies at a time
_BATCH = 4


class SendBlocks(enum.IntEnum):
    """Thread blocks that send rows. More send faster and take more multiprocessors from kernels
    that run meanwhile.

    On an H200, 478 MB in rows of 512 bytes into another's memory while kernels of 3.7 ms run, by
    script: 16 blocks take 1.57 ms and cost the kernels 0.32, 64 take 1.41 and cost 0.51, 8 take
    1.87; what those cost was not measured.
    """

    FULL_RATE = 64
    BESIDE_KERNELS = 16
    BACKGROUND = 8


SEND_ROWS = KernelSpec("send_rows", "send_rows", (), threads=1024)


@functools.lru_cache(maxsize=64)
def load(runtime: loader.CudaRuntime, lanes: int, device_index: int) -> Kernel:
    defines: dict[str, str | int | bool] = {"LANES": lanes, "BATCH": _BATCH, "MOST": _MAX_PARCELS}
    return runtime.load_kernel(SEND_ROWS, macros(defines), Arguments, device_index)


def refuses(x: Tensor, parcels: Sequence[Parcel]) -> str | None:
    """Why the kernel cannot copy these rows, for which `torch.index_select` serves; or None."""
    if reason := loader.runtime.unavailable() or loader.runtime.refuses(x.device):
        return reason
    if any(rows.dtype != torch.int64 or not rows.is_contiguous() for rows, _ in parcels):
        return "the numbers of the rows must be contiguous int64"
    sizes = (x.shape[-1], *x.stride()[:-1])
    if x.stride(-1) != 1 or any(size * x.element_size() % _UNIT for size in sizes):
        return f"rows and strides must be multiples of {_UNIT} bytes"
    targets = [target for _, target in parcels]
    if any(y.data_ptr() % _UNIT for y in (x, *targets)) or not all(
        target.is_contiguous() for target in targets
    ):
        return f"the memory must be contiguous and aligned to {_UNIT} bytes"
    return None


def send_rows(
    x: Tensor, parcels: Sequence[Parcel], thread_blocks: int = SendBlocks.BESIDE_KERNELS
) -> None:
    """target[..., i, :] = x[..., rows[i], :] of every parcel, on torch's current stream.

    x: ([h,] n, k); the numbers of rows are from 0 to n - 1. The targets are in memory that this GPU
    can write.
    """
    parcels = [parcel for parcel in parcels if parcel.target.numel()]
    if not parcels:
        return
    if refuses(x, parcels) is not None:
        for rows, target in parcels:
            torch.index_select(x, x.dim() - 2, rows, out=target)
        return
    size = x.element_size()
    units = x.shape[-1] * size // _UNIT
    lanes = min(32, 1 << (units - 1).bit_length())
    head_units = x.stride(0) * size // _UNIT if x.dim() == 3 else 0
    index = loader.runtime.index_of(x.device)
    kernel, heads = load(loader.runtime, lanes, index), x.shape[0] if x.dim() == 3 else 1
    for first in range(0, len(parcels), _MAX_PARCELS):
        own = parcels[first : first + _MAX_PARCELS]
        kernel(  # in the order of Arguments
            thread_blocks, x.data_ptr(), head_units,
            x.stride(-2) * size // _UNIT, _packed(own), units, heads, len(own),
        )  # fmt: skip


def _packed(parcels: Sequence[Parcel]) -> bytes:
    """As `Targets`."""
    columns = (
        [target.data_ptr() for _, target in parcels],
        [rows.data_ptr() for rows, _ in parcels],
        [rows.numel() for rows, _ in parcels],
    )
    absent = [0] * (_MAX_PARCELS - len(parcels))
    words = [word for column in columns for word in (*column, *absent)]
    return struct.pack(f"{len(words)}Q", *words)
