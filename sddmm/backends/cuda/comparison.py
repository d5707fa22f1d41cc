"""Comparing the indices of two patterns: one kernel where a GPU holds them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.device import device as device_of
from gemm_core.runtime.launch import LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pinned_results import ThreadResults
from sddmm.backends.cuda.spec import KernelSpec, Macros, macros
from sddmm.dtypes import INDEX_DTYPES
from sddmm.sparse.pattern import SparsePattern

SAME_INDICES = KernelSpec("same_indices", "same_indices", (), threads=256)

_SAME, _DIFFERENT = 1, 2  # values of the result
_INDICES_PER_BLOCK = 2048
_BLOCKS_PER_SM = 8


class SameIndicesArguments(ctypes.Structure):
    """The parameters of same_indices/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("cached_major", "cached_cols")),
        *((name, POINTER) for name in ("caller_major", "caller_cols", "state", "result")),
        ("major_length", LONG),
        ("nnz", LONG),
    ]


def same_indices(cached: SparsePattern, caller: SparsePattern) -> bool:
    """Whether patterns alike in shape, form and dtype hold the same indices; waits for the GPU."""
    if caller.device.type != "cuda":
        return _equal(cached, caller)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the indices of S cannot be looked at while a CUDA graph is captured, and torch does "
            "not count all changes of them; capture the run of a plan, or give a SparsePattern"
        )
    device = device_of(caller.col_indices.get_device())
    with torch.cuda.device(device.index):
        return _same_on_gpu(cached, caller, device)


def _same_on_gpu(cached: SparsePattern, caller: SparsePattern, device: Device) -> bool:
    contiguous = caller.major_indices.is_contiguous() and caller.col_indices.is_contiguous()
    if not contiguous or loader.runtime.unavailable() is not None:
        return _equal(cached, caller)
    return same_by_kernel(cached, caller, device)


def _equal(cached: SparsePattern, caller: SparsePattern) -> bool:
    return torch.equal(cached.major_indices, caller.major_indices) and torch.equal(
        cached.col_indices, caller.col_indices
    )


def same_by_kernel(cached: SparsePattern, caller: SparsePattern, device: Device) -> bool:
    """`same_indices` by the kernel, on the current device; all index tensors are contiguous."""
    major, cols = caller.major_indices, caller.col_indices
    kernel, thread_results = _kernel_and_results(cols.device, device.index, cols.dtype)
    results = thread_results.own
    results.reset()
    longest = max(major.numel(), cols.numel())
    blocks = max(1, min(ceil_div(longest, _INDICES_PER_BLOCK), device.sm_count * _BLOCKS_PER_SM))
    kernel(
        blocks, cached.major_indices.data_ptr(), cached.col_indices.data_ptr(), major.data_ptr(),
        cols.data_ptr(), results.state, results.address, major.numel(),
        cols.numel(),
    )  # fmt: skip
    return results.wait(device.index)[0] == _SAME


@functools.cache
def _kernel_and_results(
    torch_device: torch.device, device_index: int, dtype: torch.dtype
) -> tuple[Callable[..., None], ThreadResults]:
    """The kernel for indices of this dtype, and the word in which it reports. They share one cache
    look-up, which every comparison makes."""
    kernel = loader.runtime.load_kernel(
        SAME_INDICES, macros_of(dtype), SameIndicesArguments, device_index
    )
    return kernel, ThreadResults(torch_device, words=1, state_words=1)


def macros_of(dtype: torch.dtype) -> Macros:
    return macros({"INDEX": INDEX_DTYPES[dtype], "SAME": _SAME, "DIFFERENT": _DIFFERENT})
