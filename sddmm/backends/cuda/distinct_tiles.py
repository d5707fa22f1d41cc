"""Tiles of a pattern with duplicates, listed so that none holds two nonzeros at one position."""

from __future__ import annotations

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.tile_bounds.host import search_row_offsets
from sddmm.backends.cuda.layouts import (
    Nonzeros,
    TileList,
    TileWork,
    int32,
    tile_ids,
    tiles_in_order,
)
from sddmm.sparse.indices import compress
from sddmm.sparse.views import CompressedView


def occurrences(rows: Tensor, cols: Tensor) -> Tensor:
    """How many nonzeros before each are at its position; they are sorted by row and column."""
    index = torch.arange(rows.numel(), device=rows.device)
    begins = torch.ones_like(rows, dtype=torch.bool)
    begins[1:] = (rows.diff() != 0) | (cols.diff() != 0)
    return index - torch.where(begins, index, 0).cummax(0).values


def without_duplicates(
    work: TileWork, rows: Tensor, shape: tuple[int, int], device: Device
) -> TileWork:
    """The same nonzeros in tiles that are listed as often as one of their positions holds nonzeros,
    in layers, each of which has the next nonzero of every position; `work` itself if there are no
    duplicates.

    rows: those of the nonzeros of `work`, which are sorted by row and column.
    """
    number = occurrences(rows, work.cols)
    layers = int(number.max()) + 1 if number.numel() else 1
    if layers == 1:
        return work
    works, begin = [], 0
    for layer in range(layers):
        selected = (number == layer).nonzero().squeeze(1)
        perm = selected if work.perm is None else work.perm[selected]
        nonzeros = Nonzeros(rows[selected], work.cols[selected], int32(perm))
        works.append(_tiles_of(nonzeros, work.tiles.block, shape, begin, device))
        begin += selected.numel()
    tiles = TileList(torch.cat([x.tiles.coords for x in works]), work.tiles.block)
    offsets = torch.cat([x.row_offsets.offsets for x in works])
    cols = torch.cat([x.cols for x in works])
    perm = torch.cat([x.perm for x in works if x.perm is not None])
    row_offsets = work.row_offsets._replace(offsets=offsets)
    return TileWork(tiles, row_offsets, cols, perm, distinct=True, layers=layers)


def _tiles_of(
    nonzeros: Nonzeros, block: tuple[int, int], shape: tuple[int, int], begin: int, device: Device
) -> TileWork:
    """The tiles of sorted nonzeros that come after `begin` others."""
    m, n = shape
    count = ceil_div(m, block[0]) * ceil_div(n, block[1])
    tile_nnz = torch.bincount(tile_ids(nonzeros, n, block), minlength=count)
    tiles = tiles_in_order(tile_nnz, shape, block)
    view = CompressedView(int32(compress(nonzeros.rows, m)), nonzeros.cols, nonzeros.perm)
    offsets = search_row_offsets(view, tiles, m, device)
    moved = offsets._replace(offsets=offsets.offsets + begin)
    return TileWork(tiles, moved, nonzeros.cols, nonzeros.perm, distinct=True)
