"""The tiles of W by stripes, which are the rows of tiles, cut into parts for blocks to compute."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE, mask_lines
from sddmm.backends.cuda.layouts import TileWork, int32

# The most tiles of a part, where that leaves enough parts for all multiprocessors.
_LEAST_CUT = 12
# The parts that a multiprocessor should have, so that they hide each other's latencies.
_PARTS_PER_SM = 4


class Stripes(NamedTuple):
    """The tiles of W in ascending order of rows and columns, and the parts of rows of tiles.

    All int32. lines: (tiles, 64, 4), see tile_lines. columns: (tiles,), the first column of each.
    parts: (count, 4): first tile, last tile + 1, first row, and the slot of the part's sums or -1
    if it is all of its rows. shared: (count, 4): first row, first slot and number of slots of rows
    of several parts. slots: the number of slots.
    """

    lines: Tensor
    columns: Tensor
    parts: Tensor
    shared: Tensor
    slots: int


def stripes_of(work: TileWork, m: int, by_column: bool, replicas: int, device: Device) -> Stripes:
    """by_column: whether `work` lists tiles of the transpose. replicas: how often each tile is
    computed, for other heads or columns of X."""
    along, across = work.tiles.coords.long().unbind(1)
    stripe, column = (across, along) if by_column else (along, across)
    lines = mask_lines(work, device)
    if by_column or work.layers > 1:
        width = int(column.max()) + 1 if column.numel() else 1
        order = (stripe * width + column).argsort(stable=True)
        lines, column = lines[order], column[order]
    tiles = torch.bincount(stripe, minlength=ceil_div(m, SIDE))
    limit = part_limit(replicas * work.tiles.length, device)
    return Stripes(
        lines, int32(column * SIDE), *cut_stripes(tiles.cpu(), limit, SIDE, tiles.device)
    )


def part_limit(count: int, device: Device) -> int:
    """The most tiles of a part, where so many are computed in all."""
    return max(_LEAST_CUT, ceil_div(count, _PARTS_PER_SM * device.sm_count))


def cut_stripes(
    tiles: Tensor, limit: int, rows: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Parts of at most `limit` tiles, the longest first; those of one stripe are about equal.

    tiles: the number of each stripe's, of `rows` rows each, on the CPU: to launch each of these
    steps would take longer. Returns parts and shared, on `device`, and slots of `Stripes`.
    """
    ends = tiles.cumsum(0)
    pieces = ((tiles + limit - 1) // limit).clamp_(min=1)
    of_part = torch.repeat_interleave(pieces)
    index = torch.arange(of_part.numel(), device=tiles.device)
    number = index - (pieces.cumsum(0) - pieces)[of_part]
    begins, count, cuts = (ends - tiles)[of_part], tiles[of_part], pieces[of_part]
    first, last = begins + number * count // cuts, begins + (number + 1) * count // cuts
    is_shared = pieces > 1
    slots = torch.where(is_shared, pieces, 0)
    first_slot = slots.cumsum(0) - slots
    slot = torch.where(cuts > 1, first_slot[of_part] + number, -1)
    longest = (last - first).argsort(descending=True, stable=True)
    parts = torch.stack([first, last, of_part * rows, slot], dim=1)[longest]
    which = is_shared.nonzero().squeeze(1)
    shared = torch.stack([which * rows, first_slot[which], pieces[which], which * 0], dim=1)
    return int32(parts).to(device), int32(shared).to(device), int(slots.sum())
