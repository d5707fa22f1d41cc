"""Work arrays of a pattern for the GPU kernels: plain torch, the same code on any device."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.sparse.indices import row_major

# Rows of the matrix whose tiles are walked together (tile_list): about as many as columns are under
# way at once then, so that a wave of tiles touches the fewest rows of A and columns of B.
_BAND_ROWS = 2048


class Nonzeros(NamedTuple):
    """rows, cols: (count,) int32, of each nonzero; order: its place in the pattern, or None."""

    rows: Tensor
    cols: Tensor
    order: Tensor | None


class SortedRows(NamedTuple):
    """CSR with ascending columns: crow (m + 1,), cols (nnz,) int32; order as in Nonzeros."""

    crow: Tensor
    cols: Tensor
    order: Tensor | None


class TileList(NamedTuple):
    """places: (count, 2) int32, row and column of each tile in tiles; block: its size."""

    places: Tensor
    block: tuple[int, int]

    @property
    def length(self) -> int:
        return self.places.shape[0]


class TileStarts(NamedTuple):
    """Where the nonzeros of each row of each tile begin; the next entry is where they end.

    starts: int32. That of the first row of the tile at place (y, x), the t-th of its list, lies at
    t * by_tile + y * by_tile_row + x * by_tile_column, those of the next rows by_row further each.
    """

    starts: Tensor
    by_tile: int
    by_tile_row: int
    by_tile_column: int
    by_row: int


class TileWork(NamedTuple):
    """Tiles to compute; cols, order: (nnz,) int32, of their nonzeros, as in Nonzeros."""

    tiles: TileList
    starts: TileStarts
    cols: Tensor
    order: Tensor | None


class WindowList(NamedTuple):
    """Nonzeros window by window; see windows.cu. starts: (windows + 1,), all int32."""

    rows: Tensor
    slots: Tensor
    order: Tensor
    starts: Tensor
    width: int


def int32(x: Tensor) -> Tensor:
    return x.to(torch.int32).contiguous()


def by_row_and_column(nonzeros: Nonzeros, shape: tuple[int, int]) -> Nonzeros:
    """Sorted, stable among duplicates."""
    rows, cols, order = nonzeros
    sorting = row_major(rows, cols, shape)
    places = sorting if order is None else order[sorting]
    return Nonzeros(rows[sorting], cols[sorting], int32(places))


def tile_ids(nonzeros: Nonzeros, n: int, block: tuple[int, int]) -> Tensor:
    """Of each nonzero, the number of its tile, counted along the rows of tiles; int64."""
    across = -(-n // block[1])
    return (nonzeros.rows // block[0]).to(torch.int64) * across + nonzeros.cols // block[1]


def tile_list(
    counts: Tensor, shape: tuple[int, int], block: tuple[int, int], least: int, chosen: int
) -> TileList:
    """The `chosen` tiles of at least `least` nonzeros, in bands of tile rows.

    Bands are walked down, then right: tiles that run together so share rows of A and columns of B
    in L2 (gemm_core/raster.cuh). Those of more rows than columns go by pairs side by side, as the
    neighbours of a cluster share the longer side (gemm_core/mainloop_wgmma.cuh).
    """
    if chosen == counts.numel():
        return every_tile(shape, block, counts.device)
    found = (counts >= least).nonzero().squeeze(1)
    return TileList(_walked(found, -(-shape[1] // block[1]), block), block)


@functools.lru_cache(maxsize=16)
def every_tile(shape: tuple[int, int], block: tuple[int, int], device: torch.device) -> TileList:
    """All tiles, in bands as above; kept, as they are the same for every pattern of this shape."""
    across = -(-shape[1] // block[1])
    tiles = torch.arange(-(-shape[0] // block[0]) * across, device=device)
    return TileList(_walked(tiles, across, block), block)


def _walked(tiles: Tensor, across: int, block: tuple[int, int]) -> Tensor:
    band, beside = _BAND_ROWS // block[0], 2 if block[0] > block[1] else 1
    row, column = tiles // across, tiles % across
    strip = row // band * across + column // beside
    order = ((strip * band + row % band) * beside + column % beside).argsort()
    return int32(torch.stack([row[order], column[order]], dim=1))


def outside(nonzeros: Nonzeros, ids: Tensor, counts: Tensor, least: int) -> Nonzeros:
    """The nonzeros of tiles with fewer than `least`."""
    left = (counts[ids] < least).nonzero().squeeze(1)
    order = left if nonzeros.order is None else nonzeros.order[left]
    return Nonzeros(nonzeros.rows[left], nonzeros.cols[left], int32(order))


def window_list(nonzeros: Nonzeros, n: int, width: int) -> WindowList:
    """The nonzeros, given by row, by window of `width` columns, and by row within a window."""
    count = -(-n // width)
    window = nonzeros.cols // width
    narrow = window.to(torch.int16 if count < 2**15 else torch.int32)
    ascending, order = narrow.sort(stable=True)
    bounds = torch.arange(count + 1, dtype=narrow.dtype, device=window.device)
    starts = torch.searchsorted(ascending, bounds, out_int32=True)
    place = order if nonzeros.order is None else nonzeros.order[order]
    slots = (nonzeros.cols - window * width)[order]
    return WindowList(nonzeros.rows[order], int32(slots), int32(place), starts, width)
