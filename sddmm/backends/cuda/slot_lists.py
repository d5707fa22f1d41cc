"""Lists of the nonzeros of tiles, slot by slot, for kernels that look none of them up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.backends.cuda.layouts import TileWork, finished, int32

# Tiles of 128 rows are handed on in four slots of 32 rows each (staging_ring.cuh).
SLOTS, _SLOT_ROWS = 4, 32


class SlotLists(NamedTuple):
    """entries: (nonzeros, 2) int32, the position of each in the pattern's values, and the element
    of its slot that holds its sum. starts: (SLOTS * tiles + 1,) int32, the first entry of each slot
    of each tile, and their number."""

    entries: Tensor
    starts: Tensor


def slot_lists(work: TileWork, pitch: int) -> SlotLists:
    """The nonzeros of `work`, whose tiles have 128 rows, by tile and slot and row; kept with it.

    pitch: the elements from row to row of a slot.
    """
    lists: SlotLists | None = work.slot_lists.get(pitch)
    if lists is None:
        lists = finished(_slot_lists(work, pitch), work.cols.device)
        work.slot_lists[pitch] = lists
    return lists


def _slot_lists(work: TileWork, pitch: int) -> SlotLists:
    offsets, coords = work.row_offsets, work.tiles.coords.to(torch.int64)
    device = coords.device
    index = torch.arange(work.tiles.length, device=device)
    first_rows = index * offsets.tile_stride + coords[:, 0] * offsets.tile_row_stride
    first_rows += coords[:, 1] * offsets.tile_column_stride
    rows = (first_rows[:, None] + _rows_by_slot(device) * offsets.row_stride).flatten()
    bounds = offsets.offsets.flatten()
    begins, ends = bounds[rows], bounds[rows + 1]

    counts = ends - begins
    ends_in_list = counts.cumsum(0)
    starts = torch.zeros(SLOTS * work.tiles.length + 1, dtype=torch.int32, device=device)
    starts[1:] = ends_in_list[_SLOT_ROWS - 1 :: _SLOT_ROWS]

    row = torch.repeat_interleave(counts)  # of tiles, one after the other
    shift = begins - ends_in_list + counts  # from the place in the list to the number of a nonzero
    nonzeros = torch.arange(row.numel(), device=device) + shift[row]
    tile_columns = coords[:, 1] * work.tiles.block[1]
    columns = work.cols[nonzeros] - tile_columns[row // (SLOTS * _SLOT_ROWS)]
    elements = row % _SLOT_ROWS * pitch + columns
    positions = nonzeros if work.perm is None else work.perm[nonzeros]
    return SlotLists(torch.stack([int32(positions), int32(elements)], dim=1), starts)


def _rows_by_slot(device: torch.device) -> Tensor:
    """The rows of a tile in the order in which slots are filled: both halves in turn, of each first
    rows 0 to 7 of each 16."""
    rows = torch.arange(SLOTS * _SLOT_ROWS, device=device)
    part, half, sixteen, row = rows // 64, rows // 32 % 2, rows // 8 % 4, rows % 8
    return half * 64 + sixteen * 16 + part * 8 + row
