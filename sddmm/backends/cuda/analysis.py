"""One pass over a pattern on the GPU: whether it is valid, how it is ordered, its tiles."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER, UINT
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import TileOffsets
from sddmm.backends.cuda.pinned_results import PinnedResults, ThreadResults
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, KernelSpec, Macros, macros
from sddmm.dtypes import INDEX_DTYPES

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern

# The 64-bit words of the kernel's results (row segments, runs, five flags) and of the state that
# its blocks accumulate. It writes the counts of segments and of runs last.
_RESULT_WORDS, _STATE_WORDS, _POLLED_WORDS = 7, 3, 2
INVALID_WORD = 2  # the first flag: whether the pattern is wrong
_INVALID_STATE_WORD = 2  # the same, for kernels of the device
# The nonzeros, or entries of crow_indices, that a warp of the kernel reads at once: many of CSR
# with columns of 4 bytes on Hopper, as others leave too few registers; and the most that a block
# reads in all.
_MANY_WARP_ITEMS, _WARP_ITEMS, _MAX_BLOCK_ITEMS = 256, 128, 2**15


class AnalyseArguments(ctypes.Structure):
    """The parameters of analyse/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("major_indices", "col_indices", "row_ids", "cols_int32")),
        *((name, POINTER) for name in ("tile_nnz", "tile_row_offsets")),
        *((name, POINTER) for name in ("state", "next_state", "results")),
        ("nnz", LONG),
        *((name, INT) for name in ("share", "m", "n", "tiles_across", "offset_count")),
        *(
            field
            for name in ("tile_row", "tile_column")
            for field in ((f"{name}.factor", UINT), (f"{name}.shift", INT))
        ),
    ]


def invalid_by_last(results: PinnedResults) -> int:
    """The address of the word that tells the next kernel on this stream, which is behind the last
    analysis, whether the pattern is wrong."""
    results.read_by_next_launch()
    return results.next_state + 8 * _INVALID_STATE_WORD


def raise_invalid(pattern: SparsePattern) -> NoReturn:
    """Raise a ValueError, as SparsePattern.check, for a pattern that a kernel found invalid."""
    pattern.check()
    raise ValueError(f"{pattern!r} has indices outside its shape")


ANALYSE = KernelSpec("analyse", "analyse", (), threads=256, shared_bytes=13 * 1024)


@dataclass(slots=True, eq=False)
class Analysis:
    """The results of one pass over a pattern.

    row_ids, cols: (nnz,) int32, in the pattern's order; row_ids are None where tile row offsets
    were requested in place of them. tile_nnz: nonzeros by tile, row of tiles by row of tiles.
    offsets: the row offsets of every tile, valid if the pattern `ascends`: rows never fall, nor do
    columns in a row.
    distinct: it ascends and no position is there twice, so that columns strictly ascend.
    ascends_by_column: rows fall, but columns never do, nor rows in a column.
    row_segments: the non-empty parts of rows as wide as a tile, if it ascends. runs: the maximal
    sequences of nonzeros of a row, in the pattern's order, in consecutive columns.

    Until `wait` has returned the GPU may still write: tensors exist, but hold no values yet, and
    all other fields have none.
    """

    request: AnalysisRequest
    row_ids: Tensor | None
    cols: Tensor
    tile_nnz: Tensor | None
    offsets: TileOffsets | None
    _pattern: SparsePattern | None
    _read_results: Callable[[], list[int]]
    rows_ascend: bool = False
    ascends: bool = False
    distinct: bool = False
    ascends_by_column: bool = False
    row_segments: int = 0
    runs: int = 0

    @property
    def done(self) -> bool:
        return self._pattern is None

    def wait(self) -> Analysis:
        """Block until the GPU is done. ValueError, as SparsePattern.check, for a wrong pattern."""
        pattern = self._pattern
        if pattern is None:
            return self
        self.row_segments, self.runs, *flags = self._read_results()
        invalid, rows_fall, columns_fall, columns_repeat, unordered = flags
        self._pattern = None  # a pattern may keep this analysis, which would be a cycle
        if invalid:
            raise_invalid(pattern)
        self.rows_ascend = not rows_fall
        self.ascends = not (rows_fall or columns_fall)
        self.distinct = self.ascends and not columns_repeat
        self.ascends_by_column = bool(rows_fall) and not unordered
        return self


def launch(pattern: SparsePattern, device: Device, request: AnalysisRequest = ROW_IDS) -> Analysis:
    """Launch an analysis without waiting for it. A thread waits before it launches another.

    ValueError for nonzeros of a matrix without rows.
    """
    major, cols = pattern.major_indices.contiguous(), pattern.col_indices.contiguous()
    nnz, csr = cols.numel(), pattern.is_csr
    if nnz > 0 and pattern.shape[0] == 0:  # the kernel reads nothing then
        raise_invalid(pattern)
    narrow = cols.dtype == torch.int32
    cols_int32 = cols if narrow else cols.new_empty(nnz, dtype=torch.int32)
    row_ids = major if not csr and narrow else None
    if row_ids is None and (request.row_ids_too or not request.tile_row_offsets):
        # As the result was allocated: in a first call a second function of torch takes longer.
        row_ids = torch.empty(nnz, dtype=torch.int32, device=cols.device)
    at_once = blocks_at_once(device, narrow, csr)
    sizes = sizes_of(pattern.shape, max(nnz, major.numel() - 1) + 1, request, at_once)
    tile_nnz = offsets = None
    if request.count_tiles:
        tile_nnz = cols.new_zeros(sizes.tiles, dtype=torch.int32)
    if request.tile_row_offsets:
        memory = cols.new_empty(sizes.offset_count, dtype=torch.int32)
        offsets = TileOffsets(memory, 0, sizes.tile_row_stride, 1, sizes.row_stride)
    kernel, thread_results = kernel_and_results(
        cols.device, device.index, device.capability, narrow, csr
    )
    results = thread_results.own
    results.reset()
    kernel(
        sizes.blocks, major.data_ptr(), cols.data_ptr(),
        0 if row_ids is None or row_ids is major else row_ids.data_ptr(),
        0 if narrow else cols_int32.data_ptr(), 0 if tile_nnz is None else tile_nnz.data_ptr(),
        0 if offsets is None else offsets.offsets.data_ptr(), results.state, results.next_state,
        results.address, nnz, *sizes.parameters,
    )  # fmt: skip
    results.swap_state()
    read = functools.partial(results.wait, device.index)
    return Analysis(request, row_ids, cols_int32, tile_nnz, offsets, pattern, read)


@functools.lru_cache(maxsize=1024)
def reciprocal(divisor: int) -> tuple[int, int]:
    """(factor, shift) so that x // divisor is (2 x * factor >> 32) >> shift for x < 2^31; factor <
    2^32.

    Granlund and Montgomery, Division by invariant integers using multiplication (1994).
    """
    shift = (divisor - 1).bit_length()
    return ceil_div(1 << 31 + shift, divisor), shift


class Sizes(NamedTuple):
    """Sizes of one analysis: the number of blocks that the kernel is launched with, the number of
    tiles, and the length and the two strides of the row-offset array. parameters: the kernel's,
    from `share` on."""

    blocks: int
    tiles: int
    offset_count: int
    row_stride: int
    tile_row_stride: int
    parameters: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def sizes_of(shape: tuple[int, int], items: int, request: AnalysisRequest, at_once: int) -> Sizes:
    """items: the nonzeros, or entries of crow_indices, that the kernel reads. at_once: the blocks
    that run at the same time; equal shares occupy them as few times as blocks can count theirs."""
    warps = ANALYSE.threads // 32
    waves = ceil_div(items, at_once * _MAX_BLOCK_ITEMS)
    share = ceil_div(ceil_div(items, at_once * waves * warps), _MANY_WARP_ITEMS) * _MANY_WARP_ITEMS
    block_m, block_n = (max(size, 1) for size in request.block or shape)
    across = ceil_div(shape[1], block_n)
    row_stride = across + 1
    offset_count = request.offset_count(shape)
    parameters = (
        share, *shape, across, offset_count if request.tile_row_offsets else 0,
        *reciprocal(block_m), *reciprocal(block_n),
    )  # fmt: skip
    return Sizes(
        ceil_div(items, share * warps), request.tile_count(shape), offset_count, row_stride,
        block_m * row_stride, parameters,
    )  # fmt: skip


def blocks_at_once(device: Device, narrow: bool, csr: bool) -> int:
    """The blocks of the kernel that run at the same time."""
    return device.sm_count * _blocks_per_sm(narrow, csr)


def _blocks_per_sm(narrow: bool, csr: bool) -> int:
    return 4 if narrow or csr else 3  # pairs of 8 bytes take registers


def macros_of(narrow: bool, csr: bool, capability: tuple[int, int]) -> Macros:
    reads_many = narrow and csr and capability == (9, 0)
    return macros({
        "INDEX": INDEX_DTYPES[torch.int32 if narrow else torch.int64], "CSR": csr,
        "MIN_BLOCKS": _blocks_per_sm(narrow, csr),
        "WARP_ITEMS": _MANY_WARP_ITEMS if reads_many else _WARP_ITEMS,
        "MAX_BLOCK_ITEMS": _MAX_BLOCK_ITEMS, "RESULT_WORDS": _RESULT_WORDS,
        "STATE_WORDS": _STATE_WORDS,
    })  # fmt: skip


@functools.cache
def kernel_and_results(
    torch_device: torch.device,
    device_index: int,
    capability: tuple[int, int],
    narrow: bool,
    csr: bool,
) -> tuple[Callable[..., None], ThreadResults]:
    """The kernel for indices of this kind, and the words in which it reports. They share one cache
    look-up, which every analysis makes."""
    kernel = loader.runtime.load_kernel(
        ANALYSE, macros_of(narrow, csr, capability), AnalyseArguments, device_index
    )
    return kernel, ThreadResults(torch_device, _RESULT_WORDS, _STATE_WORDS, _POLLED_WORDS)
