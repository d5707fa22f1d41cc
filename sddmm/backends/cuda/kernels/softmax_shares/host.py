"""Sharing the nonzeros of a pattern among the blocks of row_softmax."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.pinned_results import ThreadResults
from sddmm.backends.cuda.spec import KernelSpec, macros

# Nonzeros of a share: few enough that small problems have blocks for all multiprocessors, and so
# many that the parts of a row of millions are merged in no time.
SHARE = 2048
# The numbers of a SoftmaxShare (softmax_share.cuh).
_SHARE_NUMBERS = 8
# The 64-bit words of the kernel's State, and of its results.
_STATE_WORDS, _RESULT_WORDS = 2, 1

SOFTMAX_SHARES = KernelSpec("softmax_shares", "softmax_shares", (), threads=128)


class Arguments(ctypes.Structure):
    """The parameters of softmax_shares/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("starts", "shares", "state", "next_state", "results")),
        *((name, INT) for name in ("rows", "share_count")),
    ]


@functools.lru_cache(maxsize=64)
def load(runtime: loader.CudaRuntime, device_index: int) -> Kernel:
    own = macros({"SHARE": SHARE, "STATE_WORDS": _STATE_WORDS})
    return runtime.load_kernel(SOFTMAX_SHARES, own, Arguments, device_index)


def share_rows(starts: Tensor, nnz: int, device: Device) -> tuple[Tensor, bool]:
    """(share_count, 8) int32, a SoftmaxShare each, when the GPU has written them; and whether a row
    is longer than a share, and cut.

    starts: (rows + 1,) int32, the first nonzero of each row that has any, and their number, nnz.
    """
    count = ceil_div(nnz, SHARE)
    shares = torch.empty((count, _SHARE_NUMBERS), dtype=torch.int32, device=starts.device)
    results = _results(starts.device).own
    results.reset()
    load(loader.runtime, device.index)(  # in the order of Arguments
        ceil_div(count, SOFTMAX_SHARES.threads), starts.data_ptr(), shares.data_ptr(),
        results.state, results.next_state, results.address, starts.numel() - 1, count,
    )  # fmt: skip
    results.swap_state()
    (cuts,) = results.wait(device.index)
    return shares, cuts > 0


@functools.cache
def _results(torch_device: torch.device) -> ThreadResults:
    return ThreadResults(torch_device, _RESULT_WORDS, _STATE_WORDS)
