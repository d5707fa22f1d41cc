"""Work arrays of a pattern for the GPU kernels: plain torch, the same code on any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.pattern import SparsePattern


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


class WindowList(NamedTuple):
    """Nonzeros window by window; see windows.cu. starts: (windows + 1,), all int32."""

    rows: Tensor
    slots: Tensor
    order: Tensor
    starts: Tensor
    width: int


def int32(x: Tensor) -> Tensor:
    return x.to(torch.int32).contiguous()


def as_stored(pattern: SparsePattern) -> Nonzeros:
    """The nonzeros in the pattern's own order."""
    return Nonzeros(int32(pattern.row_ids), int32(pattern.col_indices), None)


def by_row(pattern: SparsePattern) -> Nonzeros:
    """The nonzeros row by row; in the pattern's own order where its rows never fall."""
    grouping = pattern.by_row
    if grouping.order is None:
        return as_stored(pattern)
    rows = pattern.row_ids[grouping.order]
    return Nonzeros(int32(rows), int32(grouping.minor), int32(grouping.order))


def sorted_rows(pattern: SparsePattern, grouped: Nonzeros) -> SortedRows:
    """The nonzeros, which `grouped` has by row, by column within a row; stable."""
    crow, (rows, cols, order) = int32(pattern.by_row.compressed), grouped
    if bool(((cols[1:] >= cols[:-1]) | (rows[1:] != rows[:-1])).all()):
        return SortedRows(crow, cols, order)
    sorting = torch.argsort(rows.to(torch.int64) * pattern.shape[1] + cols, stable=True)
    places = sorting if order is None else order[sorting]
    return SortedRows(crow, cols[sorting], int32(places))


def tile_ids(rows: Tensor, cols: Tensor, n: int, block: tuple[int, int]) -> Tensor:
    """Of each nonzero, the number of its tile, counted along the rows of tiles; int64."""
    across = -(-n // block[1])
    return (rows // block[0]).to(torch.int64) * across + cols // block[1]


def tile_counts(ids: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> Tensor:
    """Nonzeros of every tile of the matrix, int32."""
    tiles = -(-shape[0] // block[0]) * -(-shape[1] // block[1])
    counts = torch.zeros(tiles, dtype=torch.int32, device=ids.device)
    return counts.scatter_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))


def tile_list(
    counts: Tensor, shape: tuple[int, int], block: tuple[int, int], least: int, band: int
) -> TileList:
    """Tiles of at least `least` nonzeros, in bands of `band` tile rows walked down, then right.

    Tiles that run together so share rows of A and columns of B in L2 (gemm_core/raster.cuh).
    """
    across = -(-shape[1] // block[1])
    chosen = (counts >= least).nonzero().squeeze(1)
    row, column = chosen // across, chosen % across
    walked = (row // band * across + column) * band + row % band
    order = walked.argsort()
    places = torch.stack([row[order], column[order]], dim=1)
    return TileList(int32(places), block)


def outside(nonzeros: Nonzeros, ids: Tensor, counts: Tensor, least: int) -> Nonzeros:
    """The nonzeros of tiles with fewer than `least`."""
    left = (counts[ids] < least).nonzero().squeeze(1)
    order = left if nonzeros.order is None else nonzeros.order[left]
    return Nonzeros(nonzeros.rows[left], nonzeros.cols[left], int32(order))


def window_list(nonzeros: Nonzeros, n: int, width: int) -> WindowList:
    """The nonzeros, given by row, by window of `width` columns, and by row within a window."""
    count = -(-n // width)
    window = nonzeros.cols // width
    order = window.to(torch.int16 if count < 2**15 else torch.int32).argsort(stable=True)
    starts = torch.zeros(count + 1, dtype=torch.int32, device=window.device)
    per_window = torch.zeros(count, dtype=torch.int64, device=window.device)
    per_window.scatter_add_(0, window.to(torch.int64), torch.ones_like(window, dtype=torch.int64))
    starts[1:] = per_window.cumsum(0)
    place = order if nonzeros.order is None else nonzeros.order[order]
    slots = (nonzeros.cols - window * width)[order]
    return WindowList(nonzeros.rows[order], int32(slots), int32(place), starts, width)
