"""Sharing the nonzeros and the rows of a pattern among warps."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.pinned_results import ThreadResults
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.dtypes import DTYPES

SHARE_BYTES = 48
"""The size of RowShare (row_shares.cuh)."""


class Arguments(ctypes.Structure):
    """The parameters of spmm_shares/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("rows", "shares", "has_cuts")),
        *((name, LONG) for name in ("nnz", "block_size")),
        *((name, INT) for name in ("m", "blocks", "warps")),
    ]


SPMM_SHARES = KernelSpec("spmm_shares", "spmm_shares", tuple(DTYPES), threads=128)


def load(runtime: loader.CudaRuntime, device_index: int) -> Kernel:
    return runtime.load_kernel(SPMM_SHARES, (), Arguments, device_index)


class RowShares(NamedTuple):
    """The share of each warp of each block, as the kernels read it. has_cuts: whether any row is
    summed by several blocks."""

    shares: Tensor
    blocks: int
    has_cuts: bool

    def begins(self, blocks: list[int]) -> list[int]:
        """The first nonzero of each of these blocks; waits for the GPU."""
        of_blocks = self.shares.view(torch.int64).view(self.blocks, -1)[:, 0]  # RowShare.begin
        begins: list[int] = of_blocks[blocks].tolist()
        return begins


def share_rows(
    nonzeros: Nonzeros, m: int, warps_per_block: int, share: int, device: Device
) -> RowShares:
    """Shares of so many nonzeros and rows, of `nonzeros` that are sorted by row; when the GPU has
    written them."""
    nnz = nonzeros.cols.numel()
    block_size = share * warps_per_block
    blocks = max(1, ceil_div(nnz + m, block_size))
    warps = blocks * warps_per_block
    memory = torch.empty(warps * SHARE_BYTES, dtype=torch.uint8, device=nonzeros.rows.device)
    results = _results(nonzeros.rows.device).own
    results.reset()
    load(loader.runtime, device.index)(  # in the order of Arguments
        ceil_div(warps, SPMM_SHARES.threads // 32), nonzeros.rows.data_ptr(), memory.data_ptr(),
        results.address, nnz, block_size, m, blocks, warps_per_block,
    )  # fmt: skip
    return RowShares(memory, blocks, bool(results.wait(device.index)[0]))


@functools.cache
def _results(torch_device: torch.device) -> ThreadResults:
    """The word in which the kernel reports: whether there are cuts."""
    return ThreadResults(torch_device, words=1, state_words=0, polled=0)
