"""Dense operands as the arrays that the CPU kernels read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sddmm.backends.base import resolve_lazy_view
from sddmm.backends.cpu.openmp import for_chunks

# The elements of a copy that a thread makes at a time.
_COPY_CHUNK = 2**18


def contiguous_array(x: Tensor, dtype: torch.dtype) -> Any:
    """The numbers of a tensor in the kernel's dtype, contiguous; a copy only where it needs one."""
    array = _array(x, dtype)
    return array if array.flags.c_contiguous else _contiguous(array)


def contiguous_transpose(x: Tensor, dtype: torch.dtype) -> Any:
    """`contiguous_array` of x.mT, in less time: torch makes a view in three times that of numpy."""
    array = _array(x, dtype).swapaxes(-1, -2)
    return array if array.flags.c_contiguous else _contiguous(array)


def memory_of(
    x: Tensor, strides: tuple[int, ...], copy: Callable[[Tensor, torch.dtype], Any]
) -> tuple[int, Any]:
    """The address of a tensor's numbers with these strides, and what owns that memory: the tensor
    itself if it has them so, else the array that `copy` makes of it."""
    address = x.data_ptr()
    # Zeros of which torch keeps none have no address.
    if address and x.stride() == strides and not x.is_neg():
        return address, x
    array = copy(x, x.dtype)
    return array.ctypes.data, array


def _array(x: Tensor, dtype: torch.dtype) -> Any:
    # Asking is quicker than a conversion that changes nothing.
    if x.requires_grad:
        x = x.detach()
    if x.dtype != dtype or x.is_neg() or x._is_zerotensor():
        x = resolve_lazy_view(x).to(dtype)
    return x.numpy()


def _contiguous(x: Any) -> Any:
    """A contiguous copy, by torch's number of threads. Of a transposed matrix torch makes it on one
    thread, in up to three times the time of numpy's."""
    if x.size <= _COPY_CHUNK or x.ndim == 1:
        return np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)
    rows = x.shape[-2]
    for_chunks(
        lambda begin, end: np.copyto(out[..., begin:end, :], x[..., begin:end, :]),
        rows,
        max(64, _COPY_CHUNK // max(1, x.size // max(1, rows))),
    )
    return out
