"""The rows of the nonzeros of a CSR pattern, and whether it is valid; nothing else is found."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pinned_results import PinnedResults
from sddmm.backends.cuda.spec import KernelSpec, Macros, macros
from sddmm.dtypes import INDEX_DTYPES

_ITEMS_PER_THREAD = 8
_BLOCKS_PER_SM = 5  # of a wave; more indices are walked by the same blocks


class ExpandArguments(ctypes.Structure):
    """The parameters of expand_csr/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("crow_indices", "col_indices", "row_ids", "cols_int32")),
        *((name, POINTER) for name in ("state", "next_state", "result")),
        ("nnz", LONG),
        ("nnz_per_warp", LONG),
        ("m", INT),
        ("n", INT),
    ]


EXPAND_CSR = KernelSpec(
    "expand_csr", "expand_csr", (), threads=256, shared_bytes=256 // 32 * 64 * 4
)


def launch_sizes(m: int, nnz: int, device: Device) -> tuple[int, int]:
    """The blocks that expand a pattern of so many rows and nonzeros, and the nonzeros of a warp."""
    per_block = EXPAND_CSR.threads * _ITEMS_PER_THREAD
    blocks = min(ceil_div(max(nnz, m + 1), per_block), _BLOCKS_PER_SM * device.sm_count)
    return blocks, ceil_div(nnz, blocks * per_block) * 32 * _ITEMS_PER_THREAD


def macros_of(dtype: torch.dtype) -> Macros:
    return macros({"INDEX": INDEX_DTYPES[dtype], "ITEMS_PER_THREAD": _ITEMS_PER_THREAD})


@functools.cache
def kernel_and_results(
    torch_device: torch.device, device_index: int, dtype: torch.dtype
) -> tuple[Callable[..., None], PinnedResults]:
    """The kernel for indices of this dtype, and the word in which it reports: whether the pattern
    is invalid."""
    kernel = loader.runtime.load_kernel(EXPAND_CSR, macros_of(dtype), ExpandArguments, device_index)
    return kernel, PinnedResults(torch_device, words=1, state_words=1)
