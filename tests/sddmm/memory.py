"""Tensors at the edge of what may be read."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor


def at_a_cliff(x: Tensor) -> Tensor:
    """x with its last element at the end of what may be read: a byte more is a crash."""
    sizes, strides = x.shape, x.stride()
    if x.numel() == 0:
        return x
    count = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    page = mmap.PAGESIZE
    room = -(-count * x.element_size() // page) * page
    memory = mmap.mmap(-1, room + page)
    forbidden = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + room
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(forbidden), page, 0) == 0
    offset = room - count * x.element_size()
    whole = torch.frombuffer(memory, dtype=x.dtype, count=count, offset=offset)
    return whole.as_strided(sizes, strides).copy_(x)
