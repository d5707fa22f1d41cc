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
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES

SHARE_BYTES, CUT_ROW_BYTES, SLOT_BYTES = 48, 12, 8
"""The sizes of RowShare, of CutRow (row_shares.cuh), and of the two slots of a share."""

# The 64-bit words of the kernel's State, and of its results: the cuts and the pieces.
_STATE_WORDS, _RESULT_WORDS = 3, 2


class Arguments(ctypes.Structure):
    """The parameters of spmm_shares/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("rows", "shares", "slots", "cut_rows")),
        *((name, POINTER) for name in ("state", "next_state", "results")),
        *((name, LONG) for name in ("nnz", "block_size")),
        *((name, INT) for name in ("m", "blocks", "warps", "aligns_warps")),
    ]


SPMM_SHARES = KernelSpec("spmm_shares", "spmm_shares", tuple(DTYPES), threads=128)


@functools.lru_cache(maxsize=64)
def load(runtime: loader.CudaRuntime, device_index: int) -> Kernel:
    own = macros({"STATE_WORDS": _STATE_WORDS})
    return runtime.load_kernel(SPMM_SHARES, own, Arguments, device_index)


class RowShares(NamedTuple):
    """The share of each warp of each block, as the kernels read it.

    memory: the shares of blocks of so many warps; then, of blocks of one warp that list the rows
    that they cut, the slots of all shares, and the cut rows. cuts: the rows that several blocks
    sum, or where they are not listed the blocks that begin within a row. pieces: of all rows that
    are listed.
    """

    memory: Tensor
    blocks: int
    warps: int
    cuts: int
    pieces: int

    @property
    def address(self) -> int:
        return self.memory.data_ptr()

    @property
    def slots_address(self) -> int:
        return self.memory.data_ptr() + self.blocks * self.warps * SHARE_BYTES

    @property
    def cut_rows_address(self) -> int:
        return self.slots_address + self.blocks * SLOT_BYTES

    def begins(self, blocks: list[int]) -> list[int]:
        """The first nonzero of each of these blocks; waits for the GPU."""
        words = self.memory[: self.blocks * self.warps * SHARE_BYTES].view(torch.int64)
        begins: list[int] = words.view(self.blocks, -1)[blocks, 0].tolist()  # RowShare.begin
        return begins


def share_rows(
    nonzeros: Nonzeros,
    m: int,
    warps_per_block: int,
    share: int,
    device: Device,
    lists_cut_rows: bool = False,
    aligns_warps: bool = False,
) -> RowShares:
    """Shares of so many nonzeros and rows, of `nonzeros` that are sorted by row; when the GPU has
    written them. lists_cut_rows: whether the rows that blocks cut are listed, by blocks of one
    warp. aligns_warps: whether the share of a warp, as that of a block, ends where a row ends
    nearby. Of nonzeros in another order, or out of range, the shares are of no use: an analysis
    that has yet to find that out may still run."""
    assert warps_per_block == 1 or not lists_cut_rows, "a row is cut where a block ends"
    nnz = nonzeros.cols.numel()
    block_size = share * warps_per_block
    blocks = max(1, ceil_div(nnz + m, block_size))
    warps = blocks * warps_per_block
    size = warps * SHARE_BYTES
    if lists_cut_rows:
        size += blocks * (SLOT_BYTES + CUT_ROW_BYTES)
    memory = torch.empty(size, dtype=torch.uint8, device=nonzeros.rows.device)
    shares = RowShares(memory, blocks, warps_per_block, 0, 0)
    results = _results(nonzeros.rows.device).own
    results.reset()
    load(loader.runtime, device.index)(  # in the order of Arguments
        ceil_div(warps, SPMM_SHARES.threads // 32), nonzeros.rows.data_ptr(), shares.address,
        shares.slots_address if lists_cut_rows else 0,
        shares.cut_rows_address if lists_cut_rows else 0,
        results.state, results.next_state, results.address, nnz, block_size, m, blocks,
        warps_per_block, aligns_warps,
    )  # fmt: skip
    results.swap_state()
    cuts, pieces = results.wait(device.index)
    return shares._replace(cuts=cuts, pieces=pieces)


@functools.cache
def _results(torch_device: torch.device) -> ThreadResults:
    """The words in which the kernel reports, both of which it writes last."""
    return ThreadResults(torch_device, _RESULT_WORDS, _STATE_WORDS, polled=_RESULT_WORDS)
