"""Where the rows of sorted nonzeros begin."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import INT, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pinned_results import ThreadResults
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES

# The 64-bit words of the kernel's State.
_STATE_WORDS = 2


class Arguments(ctypes.Structure):
    """The parameters of row_starts/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("rows", "offsets", "state", "next_state", "results")),
        *((name, INT) for name in ("nnz", "m", "longest")),
    ]


ROW_STARTS = KernelSpec("row_starts", "row_starts", tuple(DTYPES), threads=256)


@functools.lru_cache(maxsize=64)
def load(runtime: loader.CudaRuntime, device_index: int) -> Kernel:
    own = macros({"STATE_WORDS": _STATE_WORDS})
    return runtime.load_kernel(ROW_STARTS, own, Arguments, device_index)


def starts_of_short_rows(rows: Tensor, m: int, longest: int, device_index: int) -> Tensor | None:
    """The first nonzero of each of m rows, and their number, (m + 1,) int32; when the GPU has
    written them. None if a row has more than `longest` nonzeros.

    rows: (nnz,) int32, ascending; read rather than CSR's crow_indices, as transposes and sorted COO
    have none. May run before the analysis has checked the rows: if they are not ascending, or out
    of range, nothing is written out of bounds, and the caller discards the result.
    """
    nnz = rows.numel()
    offsets = torch.empty(m + 1, dtype=torch.int32, device=rows.device)
    results = _results(rows.device).own
    results.reset()
    load(loader.runtime, device_index)(  # in the order of Arguments
        ceil_div(nnz + 1, ROW_STARTS.threads), rows.data_ptr(), offsets.data_ptr(),
        results.state, results.next_state, results.address, nnz, m, longest,
    )  # fmt: skip
    results.swap_state()
    (with_long_row,) = results.wait(device_index)
    return None if with_long_row else offsets


@functools.cache
def _results(torch_device: torch.device) -> ThreadResults:
    """The word in which the kernel reports."""
    return ThreadResults(torch_device, words=1, state_words=_STATE_WORDS)
