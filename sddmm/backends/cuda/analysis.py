"""One pass over a pattern on the GPU: is it valid, how is it ordered, where are its nonzeros."""

from __future__ import annotations

import ctypes
import functools
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER, UINT
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import TileProfile
from sddmm.backends.cuda.layouts import TileStarts, int32
from sddmm.backends.cuda.loader import address
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import INDEX_DTYPES
from sddmm.sparse.indices import compress
from sddmm.sparse.pattern import SparsePattern

# The 64-bit words of the kernel's results (segments, three tile statistics, three flags) and of the
# state that its blocks accumulate.
_RESULT_WORDS, _STATE_WORDS = 7, 4
_NOTHING_YET = -1
_EMPTY = array("q", [_NOTHING_YET, *[0] * (_RESULT_WORDS - 1)])
_LOOKS = 2000  # at what an analysis has found, some 0.1 ms
_ITEMS_PER_BLOCK = 2048  # nonzeros, or entries of crow_indices, that a block of the kernel reads


class AnalyseArguments(ctypes.Structure):
    """Of analyse.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("major_indices", "col_indices", "row_ids", "cols_int32")),
        *((name, POINTER) for name in ("tile_nnz", "tile_row_offsets")),
        *((name, POINTER) for name in ("state", "next_state", "results")),
        ("nnz", LONG),
        *((name, INT) for name in ("m", "n", "tiles_across", "min_tile_nnz", "offset_count")),
        *(
            field
            for name in ("tile_row", "tile_column")
            for field in ((f"{name}.factor", UINT), (f"{name}.shift", INT))
        ),
    ]


ANALYSE = KernelSpec("analyse", "analysis", "analyse", (), threads=256, shared_bytes=12 * 1024)


class Wanted(NamedTuple):
    """What to find of a pattern, beside its order.

    block: size of its tiles, by default the whole. least: if not 0, count the nonzeros
    of each; tiles of so many are worth computing whole. starts: where the nonzeros of each row of
    every tile begin, instead of each nonzero's row.
    """

    block: tuple[int, int] | None = None
    least: int = 0
    starts: bool = False


ROWS = Wanted()


@dataclass(slots=True)
class Analysis:
    """rows, cols: (nnz,) int32, in the pattern's order; rows are None if not wanted.

    counts: nonzeros by tile; `profile` sums them up. starts: of every tile, of use if `ascends`:
    rows never fall, and columns never within a row. segments: parts of rows, as wide as a tile,
    that are not empty, if it ascends.

    Until `finish` the GPU may be at it: tensors exist, but their values are not there yet, and
    nothing else is known.
    """

    wanted: Wanted
    rows: Tensor | None
    cols: Tensor
    counts: Tensor | None
    starts: TileStarts | None
    _pattern: SparsePattern | None
    _read: Callable[[], list[int]]
    rows_ascend: bool = False
    ascends: bool = False
    segments: int = 0
    profile: TileProfile | None = None

    @property
    def finished(self) -> bool:
        return self._pattern is None

    def finish(self) -> Analysis:
        """Waits for the GPU. ValueError, as SparsePattern.check, for an invalid pattern."""
        pattern = self._pattern
        if pattern is None:
            return self
        self.segments, *totals, invalid, rows_fall, columns_fall = self._read()
        self._pattern = None  # which may keep this analysis
        if invalid:
            pattern.check()
            raise ValueError(f"{pattern!r} has indices outside its shape")
        self.rows_ascend = not rows_fall
        self.ascends = not (rows_fall or columns_fall)
        if self.counts is not None:
            self.profile = TileProfile(*totals)
        return self


def begin(pattern: SparsePattern, device: Device, wanted: Wanted = ROWS) -> Analysis:
    """An analysis, without waiting for it. A thread finishes one before it begins another."""
    nnz, csr = pattern.nnz, pattern.is_csr
    major, cols = pattern.major_indices.contiguous(), pattern.col_indices.contiguous()
    narrow = cols.dtype == torch.int32
    cols_32 = cols if narrow else cols.new_empty(nnz, dtype=torch.int32)
    rows = major if not csr and narrow else None
    if rows is None and not wanted.starts:
        rows = torch.empty_like(cols_32)
    sizes = _sizes(pattern.shape, wanted)
    counts = starts = None
    if wanted.least:
        counts = cols.new_zeros(sizes.tiles, dtype=torch.int32)
    if wanted.starts:
        room = cols.new_empty(sizes.entries, dtype=torch.int32)
        starts = TileStarts(room, 0, sizes.by_tile_row, 1, sizes.by_row)
    kernel, mailbox = _tools(cols.device, device.index, narrow, csr)
    mailbox.empty()
    longest = max(nnz, major.numel() - 1) + 1
    kernel(
        -(-longest // _ITEMS_PER_BLOCK), major.data_ptr(), cols.data_ptr(),
        0 if rows is major else address(rows), 0 if narrow else cols_32.data_ptr(),
        address(counts), 0 if starts is None else starts.starts.data_ptr(), *mailbox.addresses,
        nnz, *sizes.parameters,
    )  # fmt: skip
    mailbox.turn()
    read = functools.partial(mailbox.read, device.index)
    return Analysis(wanted, rows, cols_32, counts, starts, pattern, read)


def _reciprocal(divisor: int) -> tuple[int, int]:
    """factor, shift: x // divisor is x * factor >> shift for x < 2^31, and factor below 2^32.

    Granlund and Montgomery, Division by invariant integers using multiplication (1994).
    """
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


class _Sizes(NamedTuple):
    """Of an analysis: tiles; of the starts of every tile, entries in all, from row to row and from
    one row of tiles to the next. parameters: of the kernel, from m on."""

    tiles: int
    entries: int
    by_row: int
    by_tile_row: int
    parameters: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _sizes(shape: tuple[int, int], wanted: Wanted) -> _Sizes:
    block_m, block_n = (max(size, 1) for size in wanted.block or shape)
    down, across = -(-shape[0] // block_m), -(-shape[1] // block_n)
    by_row = across + 1
    by_tile_row = block_m * by_row
    entries = down * by_tile_row
    reciprocals = (*_reciprocal(block_m), *_reciprocal(block_n))
    parameters = (*shape, across, wanted.least, entries if wanted.starts else 0, *reciprocals)
    return _Sizes(down * across, entries, by_row, by_tile_row, parameters)


def counts_starts(shape: tuple[int, int], block: tuple[int, int]) -> bool:
    """Whether 32 bits count the entries of where nonzeros begin in every tile."""
    return _sizes(shape, Wanted(block, starts=True)).entries < 2**31


def macros_of(narrow: bool, csr: bool) -> tuple[tuple[str, str], ...]:
    index = INDEX_DTYPES[torch.int32 if narrow else torch.int64]
    return macros(
        {
            "INDEX": index,
            "CSR": csr,
            "ITEMS_PER_BLOCK": _ITEMS_PER_BLOCK,
            "RESULT_WORDS": _RESULT_WORDS,
            "STATE_WORDS": _STATE_WORDS,
        }
    )


class _Mailbox(threading.local):
    """Where a thread's analyses on a device leave what they found: in memory of the host.

    A copy from the device would cost more than the analysis of a small pattern, and so would the
    driver's wait. Each thread has its own, as it waits for the answer before it asks again.
    """

    def __init__(self, device: torch.device) -> None:
        self.states = torch.zeros(2, _STATE_WORDS, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self.results = torch.zeros(len(_EMPTY), dtype=torch.int64, device="cpu", pin_memory=pinned)
        words = (ctypes.c_int64 * len(_EMPTY)).from_address(self.results.data_ptr())
        self.found = memoryview(words).cast("B").cast("q")
        one, other = (state.data_ptr() for state in self.states)
        results = self.results.data_ptr()
        self.addresses, self._next = (one, other, results), (other, one, results)

    def empty(self) -> None:
        self.found[:] = _EMPTY

    def turn(self) -> None:
        """What was launched adds up in one state and empties the other, for the next."""
        self.addresses, self._next = self._next, self.addresses

    def read(self, index: int) -> list[int]:
        found = self.found
        for _ in range(_LOOKS):
            if found[0] != _NOTHING_YET:
                return found.tolist()
        loader.runtime.wait(index)  # for a long analysis; or one that failed, which this tells
        return found.tolist()


@functools.cache
def _tools(
    place: torch.device, index: int, narrow: bool, csr: bool
) -> tuple[Callable[..., None], _Mailbox]:
    """The kernel for such indices, and where it leaves what it finds; looked up together."""
    kernel = loader.runtime.load_kernel(ANALYSE, macros_of(narrow, csr), AnalyseArguments, index)
    return kernel, _Mailbox(place)


def crow_of(pattern: SparsePattern, rows: Tensor) -> Tensor:
    """crow_indices, (m + 1,) int32; rows: the pattern's, ascending."""
    if pattern.is_csr:
        return int32(pattern.major_indices)
    return compress(rows, pattern.shape[0])
