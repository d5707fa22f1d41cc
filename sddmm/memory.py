"""Memory: its allocation, the error for too little of it, overlaps, and what objects hold of it."""

from __future__ import annotations

import functools
import math
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor


def out_of_memory(what: str, size: int, device: torch.device) -> torch.OutOfMemoryError:
    """The error to raise when `what`, of `size` bytes, cannot be allocated."""
    free, total = torch.cuda.mem_get_info(device)
    return torch.OutOfMemoryError(
        f"{what} needs {size} bytes; {free} of {total} are free on {device}"
    )


def new_memory(
    what: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A tensor of uninitialised memory; the error for too little of it says what it was to hold.

    what: names it in the error, where "{shape}" becomes its shape. It is formatted there and not by
    the caller, as results of every call are allocated here. shape: of one dimension or more.
    """
    try:  # torch takes half a microsecond longer to read sizes from a tuple
        return torch.empty(*shape, dtype=dtype, device=device)
    except torch.OutOfMemoryError as error:
        text, size = what.format(shape=tuple(shape)), math.prod(shape) * dtype.itemsize
        raise out_of_memory(text, size, device) from error


def overlap(x: Tensor, y: Tensor) -> bool:
    """Whether the memory between the first and the last elements has a byte in common."""
    if x.numel() == 0 or y.numel() == 0:
        return False
    return x.data_ptr() < _end(y) and y.data_ptr() < _end(x)


def _end(x: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr() + (last + 1) * x.element_size()


def memory_blocks(*objects: Any) -> dict[int, int]:
    """The memory of all tensors and arrays that these objects reach: bytes by address.

    Follows containers, partial functions, closures, and objects of these packages. Tensors that
    share a storage are one block, of the storage's size.
    """
    waiting: list[Any] = list(objects)
    seen: set[int] = set()
    blocks: dict[int, int] = {}
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            for dense in _dense_parts(each):
                storage = dense.untyped_storage()
                blocks[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, np.ndarray):
            blocks.setdefault(each.ctypes.data, each.nbytes)
        else:
            waiting += _parts(each)
    return blocks


def total_bytes(blocks: dict[int, int]) -> int:
    """The bytes of all blocks; blocks may overlap, as an array over a tensor does."""
    total, end = 0, 0
    for address in sorted(blocks):
        block_end = address + blocks[address]
        total += max(0, block_end - max(address, end))
        end = max(end, block_end)
    return total


def _dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return (tensor,)


def _parts(each: Any) -> list[Any]:
    if isinstance(each, dict):
        return list(each.values())
    if isinstance(each, (tuple, list)):
        return list(each)
    if isinstance(each, functools.partial):
        return [each.func, each.args, each.keywords]
    if isinstance(each, MethodType):
        return [each.__self__]
    if isinstance(each, FunctionType):
        return [cell.cell_contents for cell in each.__closure__ or () if _is_set(cell)]
    if type(each).__module__.startswith(("sddmm", "gemm_core")) and not isinstance(each, type):
        slots = (getattr(each, name, None) for name in getattr(each, "__slots__", ()))
        return [getattr(each, "__dict__", None), *slots]
    return []


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not assigned yet
        return False
