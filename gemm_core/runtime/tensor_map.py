"""Tensor maps, which describe a tensor to TMA; the driver encodes them, and they are cached."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import LaunchError

_ALIGNMENT = 16
_BYTES = 128
NO_MAP = bytes(_BYTES)
"""Stands for a map that a kernel does not read."""


class TensorMap(ctypes.Structure):
    """A kernel parameter that holds the bytes of an encoded map."""

    _fields_ = [("opaque", ctypes.c_ubyte * _BYTES)]


def is_tma_readable(x: Tensor) -> bool:
    """Whether TMA can read x, ([heads,] rows, k) with contiguous rows: they are 16-byte aligned."""
    size = x.element_size()
    return x.data_ptr() % _ALIGNMENT == 0 and all(
        stride > 0 and stride * size % _ALIGNMENT == 0 for stride in x.stride()[:-1]
    )


def pad_for_tma(x: Tensor) -> Tensor:
    """A copy of x that TMA can read."""
    k = x.shape[-1]
    multiple = _ALIGNMENT // x.element_size()
    copy = x.new_empty(*x.shape[:-1], ceil_div(k, multiple) * multiple)
    copy[..., :k] = x
    return copy[..., :k]


def tensor_map(x: Tensor, box_rows: int, box_columns: int) -> bytes:
    """The encoded map of x for boxes of box_rows x box_columns under the 128-byte swizzle.

    x: float16, bfloat16 or float32, ([heads,] rows, k), which `is_tma_readable` accepts. TMA reads
    zeros outside x. Loads round float32 to the nearest TF32 number.
    """
    heads = x.shape[0] if x.dim() == 3 else 1
    head = x.stride(0) if x.dim() == 3 else x.stride(0) * x.shape[0]
    return _encode(
        x.data_ptr(), x.dtype, (x.shape[-1], x.shape[-2], heads), (x.stride(-2), head),
        (box_columns, box_rows),
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _encode(
    address: int,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
    strides: tuple[int, int],
    box: tuple[int, int],
) -> bytes:
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    kind = {
        torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        torch.float32: kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
    }[dtype]
    status, encoded = driver.cuTensorMapEncodeTiled(
        kind,
        3,
        address,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride * dtype.itemsize) for stride in strides],
        [driver.cuuint32_t(size) for size in (*box, 1)],
        [driver.cuuint32_t(1)] * 3,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        # 256 bytes cost up to 4 % where rows start at few bytes (k = 5000), 128 nothing elsewhere.
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != 0:
        raise LaunchError(f"tensor map of {sizes} with strides {strides}: {status!r}")
    return ctypes.string_at(encoded.getPtr(), _BYTES)


@functools.lru_cache(maxsize=4096)
def map_at(encoded: bytes, address: int) -> bytes:
    """The encoded map of a tensor that lies at another address, a multiple of 16."""
    from cuda.bindings import driver

    memory = ctypes.create_string_buffer(2 * _BYTES)
    aligned = ceil_div(ctypes.addressof(memory), _BYTES) * _BYTES
    ctypes.memmove(aligned, encoded, _BYTES)
    (status,) = driver.cuTensorMapReplaceAddress(driver.CUtensorMap(aligned), address)
    if status != 0:
        raise LaunchError(f"tensor map with address {address:#x}: {status!r}")
    return ctypes.string_at(aligned, _BYTES)
