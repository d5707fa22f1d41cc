"""Whether two patterns hold the same indices, told by one kernel where a GPU holds them."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from gemm_core.runtime.device import Device
from gemm_core.runtime.device import device as device_of
from gemm_core.runtime.launch import LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import INDEX_DTYPES
from sddmm.sparse.pattern import SparsePattern

SAME_INDICES = KernelSpec("same_indices", "comparison", "same_indices", (), threads=256)

_PENDING, _SAME, _DIFFERENT = 0, 1, 2  # values of the result
_MAX_POLLS = 2000  # some 0.1 ms
_INDICES_PER_BLOCK = 2048
_BLOCKS_PER_SM = 8


class SameIndicesArguments(ctypes.Structure):
    """The parameters of same_indices.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("cached_major", "cached_cols")),
        *((name, POINTER) for name in ("caller_major", "caller_cols", "state", "result")),
        ("major_length", LONG),
        ("nnz", LONG),
    ]


def same_indices(kept: SparsePattern, given: SparsePattern) -> bool:
    """Whether patterns alike in shape, form and dtype hold the same indices; waits for the GPU."""
    if given.device.type != "cuda":
        return _equal(kept, given)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the indices of S cannot be looked at while a CUDA graph is captured, and torch does "
            "not count all changes of them; capture the run of a plan, or give a SparsePattern"
        )
    device = device_of(given.col_indices.get_device())
    with torch.cuda.device(device.index):
        return _same_on_gpu(kept, given, device)


def _same_on_gpu(kept: SparsePattern, given: SparsePattern, device: Device) -> bool:
    contiguous = given.major_indices.is_contiguous() and given.col_indices.is_contiguous()
    if not contiguous or loader.runtime.unavailable() is not None:
        return _equal(kept, given)
    return compared(kept, given, device)


def _equal(kept: SparsePattern, given: SparsePattern) -> bool:
    return torch.equal(kept.major_indices, given.major_indices) and torch.equal(
        kept.col_indices, given.col_indices
    )


def compared(kept: SparsePattern, given: SparsePattern, device: Device) -> bool:
    """`same_indices` by the kernel, on the current device; all index tensors are contiguous."""
    major, cols = given.major_indices, given.col_indices
    kernel, answer = _tools(cols.device, device.index, cols.dtype)
    answer.words[0] = _PENDING
    longest = max(major.numel(), cols.numel())
    blocks = max(1, min(-(-longest // _INDICES_PER_BLOCK), device.sm_count * _BLOCKS_PER_SM))
    kernel(
        blocks, kept.major_indices.data_ptr(), kept.col_indices.data_ptr(), major.data_ptr(),
        cols.data_ptr(), answer.state.data_ptr(), answer.result.data_ptr(), major.numel(),
        cols.numel(),
    )  # fmt: skip
    for _ in range(_MAX_POLLS):
        if answer.words[0] != _PENDING:
            return answer.words[0] == _SAME
    loader.runtime.wait(device.index)  # for a long comparison; or one that failed, which this tells
    return answer.words[0] == _SAME


class _Answer(threading.local):
    """Where a thread's comparisons on a device leave their result: pinned memory of the host.

    Each thread has its own, as it waits for one comparison before it launches another.
    """

    def __init__(self, device: torch.device) -> None:
        self.state = torch.zeros(2, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self.result = torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=pinned)
        word = (ctypes.c_int64 * 1).from_address(self.result.data_ptr())
        self.words = memoryview(word).cast("B").cast("q")


@functools.cache
def _tools(
    place: torch.device, index: int, dtype: torch.dtype
) -> tuple[Callable[..., None], _Answer]:
    kernel: Any = loader.runtime.load_kernel(
        SAME_INDICES, macros_of(dtype), SameIndicesArguments, index
    )
    return kernel, _Answer(place)


def macros_of(dtype: torch.dtype) -> tuple[tuple[str, str], ...]:
    return macros({"INDEX": INDEX_DTYPES[dtype], "SAME": _SAME, "DIFFERENT": _DIFFERENT})
