"""Work arrays of a pattern for the GPU kernels: plain torch, the same code on any device."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import wait

T = TypeVar("T")

# Rows of the matrix whose tiles are walked together (tile_list): about as many as the columns in
# flight at once then, so that a wave of tiles touches the fewest rows of A and columns of B.
_BAND_ROWS = 2048
# About the nonzeros up to which the host takes longer to launch sorts than the GPU to run them; an
# estimate, which no measurement stands behind.
FEW_NONZEROS = 2**20


class Nonzeros(NamedTuple):
    """Coordinates of nonzeros: rows and cols are (count,) int32.

    perm: the position of each in the pattern; None if they are all, in the pattern's order.
    """

    rows: Tensor
    cols: Tensor
    perm: Tensor | None


class TileList(NamedTuple):
    """coords: (count, 2) int32, tile row and tile column of each tile; block: a tile's size."""

    coords: Tensor
    block: tuple[int, int]

    @property
    def length(self) -> int:
        return self.coords.shape[0]


class TileOffsets(NamedTuple):
    """The positions at which the nonzeros of each row of each tile begin, and where they end.

    offsets: int32. The first row of the t-th tile of a list, at tile row y and tile column x, has
    entry t * tile_stride + y * tile_row_stride + x * tile_column_stride; each further row is
    row_stride entries on. The nonzeros of a row end where the entry after that of the row says.
    """

    offsets: Tensor
    tile_stride: int
    tile_row_stride: int
    tile_column_stride: int
    row_stride: int


@dataclass(eq=False)
class TileWork:
    """Tiles to compute; cols and perm are (nnz,) int32 of their nonzeros, as in Nonzeros.

    distinct: columns are known to strictly ascend within every row. runs: the maximal sequences of
    nonzeros of a row in consecutive columns; 0 if they were not counted. Where tiles are prepared
    while the analysis still runs, both are set when it is done, before operands are bound. layers:
    how often a tile may be listed (`distinct_tiles.py`). slot_lists: what `slot_lists.py` made of
    them, by its arguments, while plans hold it.
    """

    tiles: TileList
    row_offsets: TileOffsets
    cols: Tensor
    perm: Tensor | None
    distinct: bool = False
    runs: int = 0
    layers: int = 1
    slot_lists: WeakValueDictionary[tuple[int, int | None], Any] = field(
        default_factory=WeakValueDictionary
    )


@dataclass(frozen=True, eq=False)
class WindowList:
    """Pairs of nonzeros of one row, window by window; see windows/kernel.cu. All int32.

    pairs: (count, 2), the row, and both slots in 16 bits each. positions: (count, 2), those of both
    nonzeros in the pattern. window_pairs: (windows + 1,), the first pair of each window, and the
    number of pairs. window_columns: (windows,), the first column of each. band_windows:
    (bands + 1,), the first window of each band, as windows of the same rows are called, and the
    number of windows.
    """

    pairs: Tensor
    positions: Tensor
    window_pairs: Tensor
    window_columns: Tensor
    band_windows: Tensor


def finished(arrays: T, device: torch.device) -> T:
    """The arrays on this device, when it has written them: the next caller may find them in another
    thread, and read them on another stream."""
    if device.type == "cuda":
        wait(device.index)
    return arrays


def by_tile(by_row: TileOffsets, block_m: int) -> TileOffsets:
    """The same where the rows of a tile are adjacent, so that a warp reads few sectors for its own:
    each row's begin and end, of tile column by tile column. by_row: those of one row of the matrix
    after the other, tile by tile, as an analysis finds them."""
    bounds = by_row.offsets.view(-1, by_row.row_stride).unfold(1, 2, 1)
    rows = bounds.shape[0]
    offsets = bounds.transpose(0, 1).contiguous()
    return TileOffsets(offsets, 0, 2 * block_m, 2 * rows, 2)


def int32(x: Tensor) -> Tensor:
    return x.to(torch.int32).contiguous()


def by_row_and_column(nonzeros: Nonzeros, shape: tuple[int, int]) -> Nonzeros:
    """The nonzeros sorted by row and column; duplicates keep their order. shape: the matrix's.

    One key of both is sorted in the fewest launches, and in the least time where it has 32 bits. Of
    64 it is for few nonzeros: many are sorted by two of 32 bits, which take less time and memory;
    by one where columns ascend already, for which this waits for the GPU.
    """
    rows, cols, (m, n) = nonzeros.rows, nonzeros.cols, shape
    has_short_key = m * n <= 2**31 and n < 2**31  # both n and the key are int32
    if has_short_key or rows.numel() <= FEW_NONZEROS:
        key = cols.add(rows if has_short_key else rows.to(torch.int64), alpha=n)
        order = key.argsort(stable=True)
        return _in_order(nonzeros, rows[order], order)
    if never_falls(cols):
        return by_row(nonzeros)
    by_column = torch.argsort(cols, stable=True)
    sorted_rows, order = torch.sort(rows[by_column], stable=True)
    return _in_order(nonzeros, sorted_rows, by_column[order])


def by_row(nonzeros: Nonzeros) -> Nonzeros:
    """The nonzeros sorted by row, in their order within a row."""
    return _in_order(nonzeros, *torch.sort(nonzeros.rows, stable=True))


def _in_order(nonzeros: Nonzeros, sorted_rows: Tensor, order: Tensor) -> Nonzeros:
    positions = order if nonzeros.perm is None else nonzeros.perm[order]
    return Nonzeros(sorted_rows, nonzeros.cols[order], int32(positions))


def never_falls(indices: Tensor) -> bool:
    """Whether no index is less than the one before it; waits for the GPU."""
    return bool((indices[1:] >= indices[:-1]).all())


def tile_ids(nonzeros: Nonzeros, n: int, block: tuple[int, int]) -> Tensor:
    """The number of each nonzero's tile, counted along the rows of tiles; int64."""
    across = ceil_div(n, block[1])
    return (nonzeros.rows // block[0]).to(torch.int64) * across + nonzeros.cols // block[1]


def count_larger_tiles(
    tile_nnz: Tensor, shape: tuple[int, int], base: tuple[int, int], block: tuple[int, int]
) -> Tensor:
    """The nonzeros of each tile of size `block`, which is made of tiles of size `base`.

    tile_nnz: those of each base tile, row of tiles by row of tiles, as in the result; int32.
    """
    if block == base:
        return tile_nnz
    rows, columns = (ceil_div(size, side) for size, side in zip(shape, base, strict=True))
    high, wide = (side // part for side, part in zip(block, base, strict=True))
    down, across = ceil_div(rows, high), ceil_div(columns, wide)
    grid = tile_nnz.view(rows, columns)
    grid = torch.nn.functional.pad(grid, (0, across * wide - columns, 0, down * high - rows))
    grid = grid.view(down, high, across, wide)
    return grid.sum((1, 3), dtype=torch.int32).flatten()


def tile_list(
    tile_nnz: Tensor, shape: tuple[int, int], block: tuple[int, int], min_nnz: int
) -> TileList:
    """The tiles of at least `min_nnz` nonzeros, in bands of tile rows.

    Bands are walked down, then right: tiles that run together so share rows of A and columns of B
    in L2 (gemm_core/raster.cuh). Those of more rows than columns go by pairs side by side, as the
    neighbours of a cluster share the longer side (gemm_core/mainloop_wgmma.cuh).
    """
    listed = (tile_nnz >= min_nnz).nonzero().squeeze(1)
    if listed.numel() == tile_nnz.numel():
        return every_tile(shape, block, tile_nnz.device)
    return TileList(_in_bands(listed, ceil_div(shape[1], block[1]), block), block)


def tiles_in_order(tile_nnz: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> TileList:
    """The tiles that have nonzeros, row of tiles by row of tiles."""
    down, across = (ceil_div(size, side) for size, side in zip(shape, block, strict=True))
    return TileList(int32(tile_nnz.view(down, across).nonzero()), block)


@functools.lru_cache(maxsize=16)
def every_tile(shape: tuple[int, int], block: tuple[int, int], device: torch.device) -> TileList:
    """All tiles, in bands as above; cached, as every pattern of this shape has the same."""
    across = ceil_div(shape[1], block[1])
    tiles = torch.arange(ceil_div(shape[0], block[0]) * across, device=device)
    return TileList(finished(_in_bands(tiles, across, block), device), block)


def _in_bands(tiles: Tensor, across: int, block: tuple[int, int]) -> Tensor:
    band, beside = _BAND_ROWS // block[0], 2 if block[0] > block[1] else 1
    row, column = tiles // across, tiles % across
    strip = row // band * across + column // beside
    order = ((strip * band + row % band) * beside + column % beside).argsort()
    return int32(torch.stack([row[order], column[order]], dim=1))


def nonzeros_outside(nonzeros: Nonzeros, ids: Tensor, tile_nnz: Tensor, min_nnz: int) -> Nonzeros:
    """The nonzeros outside the tiles of at least `min_nnz`; ids: the tile of each nonzero."""
    remaining = (tile_nnz[ids] < min_nnz).nonzero().squeeze(1)
    perm = remaining if nonzeros.perm is None else nonzeros.perm[remaining]
    return Nonzeros(nonzeros.rows[remaining], nonzeros.cols[remaining], int32(perm))


def window_list(nonzeros: Nonzeros, shape: tuple[int, int], window: tuple[int, int]) -> WindowList:
    """Nonzeros in row order, regrouped by windows of so many rows and columns and paired within
    rows. Windows without nonzeros are left out.

    Rows ascend in a window. The last nonzero of an odd number makes a pair with itself, whose
    second position is -1.
    """
    down, across = (max(1, ceil_div(size, side)) for size, side in zip(shape, window, strict=True))
    column = nonzeros.cols // window[1]
    ids = column if down == 1 else nonzeros.rows // window[0] * across + column
    narrow = ids.to(torch.int16 if down * across < 2**15 else torch.int32)
    ascending, order = narrow.sort(stable=True)
    rows, slots = nonzeros.rows[order], (nonzeros.cols - column * window[1])[order]
    positions = int32(order if nonzeros.perm is None else nonzeros.perm[order])

    first = _first_of_pairs(rows, ascending)
    last = max(0, rows.numel() - 1)
    second = (first + 1).clamp_(max=last)  # the next pair's first nonzero, if this one has but one
    alone = torch.ones_like(first, dtype=torch.bool)
    alone[:-1] = first.diff() == 1
    if first.numel():
        alone[-1:] = first[-1:] == last
    second = torch.where(alone, first, second)
    pairs = torch.stack([rows[first], int32(slots[first] | slots[second] << 16)], dim=1)
    both = [positions[first], positions[second].masked_fill_(alone, -1)]
    found, counts = torch.unique_consecutive(int32(ascending[first]), return_counts=True)
    window_pairs = int32(torch.nn.functional.pad(counts.cumsum(0), (1, 0)))
    bands = torch.arange(down + 1, dtype=torch.int32, device=column.device) * across
    band_windows = torch.searchsorted(found, bands, out_int32=True)
    columns = found % across * window[1]
    return WindowList(pairs, torch.stack(both, dim=1), window_pairs, columns, band_windows)


def _first_of_pairs(rows: Tensor, windows: Tensor) -> Tensor:
    """The index of every second nonzero of each run of one row and window, the first included."""
    index = torch.arange(rows.numel(), device=rows.device)
    begins_run = torch.ones_like(rows, dtype=torch.bool)
    begins_run[1:] = (rows.diff() != 0) | (windows.diff() != 0)
    starts = begins_run.nonzero().squeeze(1)
    position_in_run = index - starts[begins_run.cumsum(0) - 1]
    return (position_in_run % 2 == 0).nonzero().squeeze(1)
