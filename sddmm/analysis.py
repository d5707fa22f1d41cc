"""One pass over a pattern on the GPU: is it valid, how is it ordered, where are its nonzeros."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gemm_core.device import Device
from gemm_core.launch import INT, LONG, POINTER, wait
from sddmm.choose import TileProfile
from sddmm.families import address, loaded
from sddmm.partition import int32
from sddmm.pattern import SparsePattern, compress
from sddmm.spec import KernelSpec, macros

_INVALID, _ROWS_FALL, _COLUMNS_FALL = 1, 2, 4
_NONZEROS_A_BLOCK = 2048  # SPAN of analyse.cu


class AnalyseArguments(ctypes.Structure):
    """Of analyse.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("major", "cols", "rows", "cols_32", "counts")),
        *((name, POINTER) for name in ("state", "results")),
        ("nnz", LONG),
        *((name, INT) for name in ("m", "n", "block_m", "block_n", "least")),
    ]


ANALYSE = KernelSpec("analyse", "analysis", "analyse.cu", (), threads=256, shared_bytes=9 * 1024)


@dataclass(frozen=True)
class Analysis:
    """rows, cols: (nnz,) int32, in the pattern's order.

    counts: nonzeros by tile; `profile` sums them up; `counted`: the tiles' size, and the nonzeros
    from which on they were called worth computing. rows_ascend: rows never fall; columns_ascend:
    columns never fall within a row.
    """

    rows: Tensor
    cols: Tensor
    rows_ascend: bool
    columns_ascend: bool
    counted: tuple[tuple[int, int], int] | None
    counts: Tensor | None
    profile: TileProfile | None


@dataclass(frozen=True)
class Pending:
    """An analysis under way; rows and cols exist, but their values are not there yet."""

    pattern: SparsePattern
    rows: Tensor
    cols: Tensor
    counted: tuple[tuple[int, int], int] | None
    counts: Tensor | None
    read: Callable[[], list[int]]

    def finish(self) -> Analysis:
        """Waits for the GPU. ValueError, as SparsePattern.check, for an invalid pattern."""
        found, *totals = self.read()
        if found & _INVALID:
            self.pattern.check()
            raise ValueError(f"{self.pattern!r} has indices outside its shape")
        return Analysis(
            rows=self.rows,
            cols=self.cols,
            rows_ascend=not found & _ROWS_FALL,
            columns_ascend=not found & _COLUMNS_FALL,
            counted=self.counted,
            counts=self.counts,
            profile=None if self.counts is None else TileProfile(*totals),
        )


def begin(
    pattern: SparsePattern, device: Device, block: tuple[int, int] | None, least: int
) -> Pending:
    """An analysis, without waiting for it. A thread finishes one before it begins another.

    block: of the tiles to count, if any; least: nonzeros that make a tile worth computing whole.
    """
    (m, n), nnz = pattern.shape, pattern.nnz
    major, cols = pattern.major_indices.contiguous(), pattern.col_indices.contiguous()
    narrow = cols.dtype == torch.int32
    rows = major if not pattern.is_csr and narrow else cols.new_empty(nnz, dtype=torch.int32)
    cols_32 = cols if narrow else torch.empty_like(rows)
    counts = None
    if block is not None:
        counts = rows.new_zeros(-(-m // block[0]) * -(-n // block[1]))
    mailbox = _mailbox(cols.device)
    loaded(ANALYSE, _macros(narrow, pattern.is_csr), AnalyseArguments, device.index)(
        -(-max(nnz, m + 1 if pattern.is_csr else 1) // _NONZEROS_A_BLOCK), major.data_ptr(),
        cols.data_ptr(), 0 if rows is major else rows.data_ptr(),
        0 if narrow else cols_32.data_ptr(), address(counts), *mailbox.addresses, nnz, m, n,
        *(block or (1, 1)), least,
    )  # fmt: skip
    counted = None if block is None else (block, least)
    read = functools.partial(mailbox.read, device.index)
    return Pending(pattern, rows, cols_32, counted, counts, read)


@functools.cache
def _macros(narrow: bool, csr: bool) -> tuple[tuple[str, str], ...]:
    return macros({"INDEX": "int" if narrow else "gemm_core::i64", "CSR": csr})


class _Mailbox(threading.local):
    """Where a thread's analyses on a device leave what they found: in memory of the host.

    A copy from the device would cost more than the analysis of a small pattern. Each thread has its
    own, as it waits for the answer before it asks again.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.state = torch.zeros(5, dtype=torch.int64, device=device)
        self.results = torch.zeros(4, dtype=torch.int64, pin_memory=on_gpu)
        self.on_gpu = on_gpu
        self.addresses = self.state.data_ptr(), self.results.data_ptr()

    def read(self, index: int) -> list[int]:
        if self.on_gpu:
            wait(index)
        found: list[int] = self.results.tolist()
        return found


_mailbox = functools.cache(_Mailbox)


def crow_of(pattern: SparsePattern, rows: Tensor) -> Tensor:
    """crow_indices, (m + 1,) int32; rows: the pattern's, ascending."""
    if pattern.is_csr:
        return int32(pattern.major_indices)
    return compress(rows, pattern.shape[0])
