"""Lists of the nonzeros of tiles, slot by slot, for kernels that look none of them up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sddmm.backends.cuda.layouts import TileWork, finished, int32

# Tiles of 128 rows are handed on in four slots of 32 rows each (staging_ring.cuh).
SLOTS, _SLOT_ROWS = 4, 32


@dataclass(frozen=True, eq=False)
class SlotLists:
    """coords: (tiles, 2) int32, tile row and tile column of each. entries: (nonzeros, 2) int32, the
    position of each in the pattern's values, and one more than the element of its slot that has its
    sum. starts: (SLOTS * tiles + 1,) int32, the first entry of each slot of each tile, and their
    number.
    """

    coords: Tensor
    entries: Tensor
    starts: Tensor


def slot_lists(work: TileWork, pitch: int, blocks: int | None = None) -> SlotLists:
    """The nonzeros of `work`, whose tiles have 128 rows, by tile and slot and row.

    pitch: the elements from row to row of a slot. blocks: the blocks of threads that share the
    tiles; these then go down their columns (`_by_columns`), and of a tile first one half of the
    rows is computed, then the other. If None, tiles keep the order of `work`, and both halves are
    computed at once. The caller holds what is returned: `work` has it as long as somebody does.
    """
    lists: SlotLists | None = work.slot_lists.get((pitch, blocks))
    if lists is None:
        made = finished(_slot_lists(work, pitch, blocks), work.cols.device)
        lists = work.slot_lists.setdefault((pitch, blocks), made)
    return lists


def _slot_lists(work: TileWork, pitch: int, blocks: int | None) -> SlotLists:
    offsets, coords = work.row_offsets, work.tiles.coords
    device = coords.device
    index = torch.arange(work.tiles.length, device=device)
    if blocks is not None:
        index = _by_columns(coords, blocks)
        coords = coords[index]
    tile_rows, tile_columns = coords.to(torch.int64).unbind(1)
    first_rows = index * offsets.tile_stride + tile_rows * offsets.tile_row_stride
    first_rows += tile_columns * offsets.tile_column_stride
    order = _rows_by_slot(device, in_turns=blocks is not None)
    rows = (first_rows[:, None] + order * offsets.row_stride).flatten()
    bounds = offsets.offsets.flatten()
    begins, ends = bounds[rows], bounds[rows + 1]

    counts = ends - begins
    ends_in_list = counts.cumsum(0)
    starts = torch.zeros(SLOTS * work.tiles.length + 1, dtype=torch.int32, device=device)
    starts[1:] = ends_in_list[_SLOT_ROWS - 1 :: _SLOT_ROWS]

    row = torch.repeat_interleave(counts)  # of tiles, one after the other
    shift = begins - ends_in_list + counts  # from the place in the list to the number of a nonzero
    nonzeros = torch.arange(row.numel(), device=device) + shift[row]
    first_columns = tile_columns * work.tiles.block[1]
    columns = work.cols[nonzeros] - first_columns[row // (SLOTS * _SLOT_ROWS)]
    elements = row % _SLOT_ROWS * pitch + columns + 1
    positions = nonzeros if work.perm is None else work.perm[nonzeros]
    entries = torch.stack([int32(positions), int32(elements)], dim=1)
    return SlotLists(coords.contiguous(), entries, starts)


def _by_columns(coords: Tensor, blocks: int) -> Tensor:
    """The order of tiles in which each block of threads, which takes about as many as the others,
    one after the other, stays in a column of tiles for long. In a column, rows are in the order of
    time over all of its blocks, so that the columns go down together, and the results of a row,
    which are neighbours, leave L2 together."""
    rows, columns = coords.to(torch.int64).unbind(1)
    by_column = (columns << 32 | rows).argsort()
    place = torch.arange(by_column.numel(), device=coords.device)
    block = ((place + 1) * blocks - 1).div(by_column.numel(), rounding_mode="floor")
    first_place = (block * by_column.numel()).div(blocks, rounding_mode="floor")
    by_time = (columns[by_column] << 32 | place - first_place).argsort(stable=True)
    order = torch.empty_like(by_column)
    order[by_time] = by_column
    return order


def _rows_by_slot(device: torch.device, in_turns: bool) -> Tensor:
    """The rows of a tile in the order in which slots are filled: of each half, which a warpgroup
    has, first rows 0 to 7 of each 16, then the others; both halves at the same time, or in turns.
    """
    rows = torch.arange(SLOTS * _SLOT_ROWS, device=device)
    slot, sixteen, row = rows // _SLOT_ROWS, rows // 8 % 4, rows % 8
    half, part = (slot // 2, slot % 2) if in_turns else (slot % 2, slot // 2)
    return half * 64 + sixteen * 16 + part * 8 + row
