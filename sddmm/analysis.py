"""One pass over a pattern on the GPU: is it valid, how is it ordered, where are its nonzeros."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.device import Device
from gemm_core.launch import INT, LONG, POINTER, UINT, wait
from sddmm.choose import TileProfile
from sddmm.families import address, loaded
from sddmm.partition import TileStarts, int32
from sddmm.pattern import SparsePattern, compress
from sddmm.spec import KernelSpec, macros

_INVALID, _ROWS_FALL, _COLUMNS_FALL = 1, 2, 4
_NOTHING_YET = -1
_LOOKS = 2000  # at what an analysis has found, some 0.1 ms
_NONZEROS_A_BLOCK = 2048  # SPAN of analyse.cu


class AnalyseArguments(ctypes.Structure):
    """Of analyse.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("major", "cols", "rows", "cols_32", "counts", "starts")),
        *((name, POINTER) for name in ("state", "results")),
        ("nnz", LONG),
        *((name, INT) for name in ("m", "n", "across", "least", "parts", "cells")),
        *(
            field
            for name in ("block_m", "block_n", "part_width")
            for field in ((f"{name}_factor", UINT), (f"{name}_shift", INT))
        ),
    ]


ANALYSE = KernelSpec("analyse", "analysis", "analyse.cu", (), threads=256, shared_bytes=12 * 1024)


class Wanted(NamedTuple):
    """What to find of a pattern, beside its order.

    block: size of its tiles, by default the whole. least: if not 0, count the nonzeros
    of each; tiles of so many are worth computing whole. parts: if not 0, where nonzeros begin in so
    many parts of the columns of every tile, instead of each nonzero's row.
    """

    block: tuple[int, int] | None = None
    least: int = 0
    parts: int = 0


ROWS = Wanted()


class Analysis(NamedTuple):
    """rows, cols: (nnz,) int32, in the pattern's order; rows are None if not wanted.

    counts: nonzeros by tile; `profile` sums them up. starts: of every tile, of use if `ascends`:
    rows never fall, and columns never within a row. segments: parts of rows that are not empty, if
    it ascends: as wide as a tile, or as wide as its parts if these are wanted.
    """

    wanted: Wanted
    rows: Tensor | None
    cols: Tensor
    counts: Tensor | None
    starts: TileStarts | None
    rows_ascend: bool
    ascends: bool
    segments: int
    profile: TileProfile | None


class Pending(NamedTuple):
    """An analysis under way; its tensors exist, but their values are not there yet."""

    pattern: SparsePattern
    wanted: Wanted
    rows: Tensor | None
    cols: Tensor
    counts: Tensor | None
    starts: TileStarts | None
    read: Callable[[], list[int]]

    def finish(self) -> Analysis:
        """Waits for the GPU. ValueError, as SparsePattern.check, for an invalid pattern."""
        found, segments, *totals = self.read()
        if found & _INVALID:
            self.pattern.check()
            raise ValueError(f"{self.pattern!r} has indices outside its shape")
        return Analysis(
            self.wanted,
            self.rows,
            self.cols,
            self.counts,
            self.starts,
            rows_ascend=not found & _ROWS_FALL,
            ascends=not found & (_ROWS_FALL | _COLUMNS_FALL),
            segments=segments,
            profile=None if self.counts is None else TileProfile(*totals),
        )


def begin(pattern: SparsePattern, device: Device, wanted: Wanted = ROWS) -> Pending:
    """An analysis, without waiting for it. A thread finishes one before it begins another."""
    shape, nnz, csr = pattern.shape, pattern.nnz, pattern.is_csr
    major, cols = pattern.major_indices.contiguous(), pattern.col_indices.contiguous()
    narrow = cols.dtype == torch.int32
    rows = major if not csr and narrow else None
    if rows is None and not wanted.parts:
        rows = cols.new_empty(nnz, dtype=torch.int32)
    cols_32 = cols if narrow else cols.new_empty(nnz, dtype=torch.int32)
    counts = starts = None
    if wanted.least:
        counts = cols.new_zeros(_tiles_of(shape, wanted.block or shape), dtype=torch.int32)
    if wanted.parts:
        starts = _starts_of_all(cols, shape, wanted.block or shape, wanted.parts)
    entries = max(nnz, shape[0] if csr else 0) + 1
    mailbox = _mailbox(cols.device)
    mailbox.empty()
    loaded(ANALYSE, macros_of(narrow, csr), AnalyseArguments, device.index)(
        -(-entries // _NONZEROS_A_BLOCK), major.data_ptr(), cols.data_ptr(),
        0 if rows is major else address(rows), 0 if narrow else cols_32.data_ptr(),
        address(counts), 0 if starts is None else starts.starts.data_ptr(), *mailbox.addresses,
        nnz, *_sizes(pattern.shape, wanted),
    )  # fmt: skip
    read = functools.partial(mailbox.read, device.index)
    return Pending(pattern, wanted, rows, cols_32, counts, starts, read)


def _reciprocal(divisor: int) -> tuple[int, int]:
    """factor, shift: x // divisor is x * factor >> shift for x < 2^31, and factor below 2^32.

    Granlund and Montgomery, Division by invariant integers using multiplication (1994).
    """
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


@functools.lru_cache(maxsize=1024)
def _sizes(shape: tuple[int, int], wanted: Wanted) -> tuple[int, ...]:
    """From m on, the parameters of the kernel."""
    block_m, block_n = (max(size, 1) for size in wanted.block or shape)
    across, parts = -(-shape[1] // block_n), wanted.parts or 1
    block = block_m, block_n
    cells = entries_of(shape, block, parts) if wanted.parts else 0
    of_row = _by_row(shape, block, parts) - 1 if wanted.parts else across
    divisors = (block_m, block_n, block_n // parts)
    reciprocals = (number for divisor in divisors for number in _reciprocal(divisor))
    return (*shape, across, wanted.least, of_row, cells, *reciprocals)


def _tiles_of(shape: tuple[int, int], block: tuple[int, int]) -> int:
    return -(-shape[0] // block[0]) * -(-shape[1] // block[1])


def entries_of(shape: tuple[int, int], block: tuple[int, int], parts: int) -> int:
    """Of the starts of every tile, row by row of the matrix, and rows to a whole tile."""
    return -(-shape[0] // block[0]) * block[0] * _by_row(shape, block, parts)


def _by_row(shape: tuple[int, int], block: tuple[int, int], parts: int) -> int:
    """Entries from row to row. Those of a tile of four parts start at a multiple of 16 bytes."""
    return (-(-shape[1] // block[1]) * parts // 4 + 1) * 4


def _starts_of_all(
    cols: Tensor, shape: tuple[int, int], block: tuple[int, int], parts: int
) -> TileStarts:
    """Room for the starts of every tile."""
    by_row = _by_row(shape, block, parts)
    starts = cols.new_empty(entries_of(shape, block, parts), dtype=torch.int32)
    return TileStarts(starts, 0, block[0] * by_row, parts, by_row)


@functools.cache
def macros_of(narrow: bool, csr: bool) -> tuple[tuple[str, str], ...]:
    index = "int" if narrow else "gemm_core::i64"
    return macros({"INDEX": index, "CSR": csr, "SHARED_BYTES": ANALYSE.shared_bytes})


class _Mailbox(threading.local):
    """Where a thread's analyses on a device leave what they found: in memory of the host.

    A copy from the device would cost more than the analysis of a small pattern, and so would the
    driver's wait. Each thread has its own, as it waits for the answer before it asks again.
    """

    def __init__(self, device: torch.device) -> None:
        self.state = torch.zeros(6, dtype=torch.int64, device=device)
        self.results = torch.zeros(5, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.addresses = self.state.data_ptr(), self.results.data_ptr()
        self.found = (ctypes.c_int64 * 5).from_address(self.results.data_ptr())

    def empty(self) -> None:
        self.found[0] = _NOTHING_YET

    def read(self, index: int) -> list[int]:
        found = self.found
        for _ in range(_LOOKS):
            if found[0] != _NOTHING_YET:
                return list(found)
        wait(index)  # for a long analysis; or one that failed, which this tells
        return list(found)


_mailbox = functools.cache(_Mailbox)


def crow_of(pattern: SparsePattern, rows: Tensor) -> Tensor:
    """crow_indices, (m + 1,) int32; rows: the pattern's, ascending."""
    if pattern.is_csr:
        return int32(pattern.major_indices)
    return compress(rows, pattern.shape[0])
