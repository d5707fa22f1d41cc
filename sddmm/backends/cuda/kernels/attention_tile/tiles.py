"""The tiles of a mask, by rows of tiles, as the tile kernels of attention read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.spmm_tile.stripes import cut_stripes
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE, mask_lines
from sddmm.backends.cuda.layouts import TileWork, int32
from sddmm.memory import new_memory

# The rows that share a flag (`AttentionTiles.places`).
_FLAG_ROWS = 32
# The most tiles of 64 x 64 that stacked tiles may compute for each that has nonzeros.
_MOST_STACKED = 1.3
LEAST_CUT = 12
"""The least number of tiles at which parts of rows of tiles are cut; that of half types."""

# Rows of tiles balance themselves if there are so many for each block that the GPU holds, or if
# none has so many times the mean of all.
_ENOUGH, _EVEN = 1.5, 1.5


class AttentionTiles(NamedTuple):
    """The tiles of `rows` x 64 positions of a pattern, by rows of tiles, cut into parts.

    places: (tiles, 2) int32, the first column of each tile, and flags of each 32 of its rows: bit i
    whether they are full, and bit 16 + i whether they are empty. masks: (tiles, rows) int64, whose
    bit c tells whether a nonzero is in column c of the row. lines: (tiles, rows, 4) int32, see
    tile_lines: of the rows, or, if `by_column`, of the 64 columns of each 64 rows. parts, shared,
    slots: see `cut_stripes`. perm: the positions of nonzeros; None if they are their numbers.
    """

    rows: int
    places: Tensor
    masks: Tensor
    lines: Tensor
    parts: Tensor
    shared: Tensor
    slots: int
    by_column: bool
    perm: Tensor | None

    @property
    def part_count(self) -> int:
        return self.parts.shape[0]

    @property
    def shared_count(self) -> int:
        return self.shared.shape[0]

    def arguments(self) -> dict[str, int | float]:
        """The arguments of the kernels that describe tiles, by name."""
        return {
            "lines": self.lines.data_ptr(), "masks": self.masks.data_ptr(),
            "tiles": self.places.data_ptr(), "parts": self.parts.data_ptr(),
            "shared_rows": self.shared.data_ptr(), "part_count": self.part_count,
            "shared_count": self.shared_count, "slots": self.slots,
        }  # fmt: skip


def tiles_by_row(
    work: TileWork, by_column: bool, m: int, heads: int, resident: Mapping[int, int],
    device: Device, least_cut: int = LEAST_CUT,
) -> AttentionTiles:  # fmt: skip
    """The tiles of m rows.

    by_column: whether `work` lists the tiles of the transpose. resident: the rows that a block may
    have, those to be preferred first, and how many such blocks a multiprocessor holds. least_cut:
    the least number of tiles at which parts are cut.
    """
    along, across = work.tiles.coords.long().unbind(1)
    stripe, column = (across, along) if by_column else (along, across)
    width = int(column.max()) + 1 if column.numel() else 1
    layers = work.layers
    layer = _layer(stripe * width + column) if layers > 1 else 0
    for rows in resident:
        stacked = rows // SIDE  # tiles of 64 x 64 that make one of `rows` x 64
        keys = (stripe // stacked * width + column) * layers + layer
        if stacked == 1 and layers == 1 and not by_column:  # as `work` lists them
            tile = torch.arange(keys.numel(), device=keys.device)
            break
        keys, tile = torch.unique(keys, return_inverse=True)
        if keys.numel() * stacked <= _MOST_STACKED * tile.numel():
            break
    lines = mask_lines(work, device)
    masks = lines[:, :, 1:3].contiguous().view(torch.int64).squeeze(2)
    at = (tile, stripe % stacked)
    all_lines = lines.new_zeros(keys.numel(), stacked, SIDE, 4)
    all_lines[at] = lines
    all_masks = masks.new_zeros(keys.numel(), stacked, SIDE)
    all_masks[at] = transposed_bits(masks) if by_column else masks
    flagged = all_masks.view(-1, rows // _FLAG_ROWS, _FLAG_ROWS)
    bit = 1 << torch.arange(flagged.shape[1], device=keys.device)
    flags = (flagged == -1).all(2) * bit + (flagged == 0).all(2) * (bit << 16)
    stripe_column = keys // layers
    places = torch.stack([stripe_column % width * SIDE, flags.sum(1)], dim=1)
    counts = torch.bincount(stripe_column // width, minlength=ceil_div(m, rows)).cpu()
    limit = part_limit(counts, heads, resident[rows], device, least_cut)
    parts, shared, slots = cut_stripes(counts, limit, rows, keys.device)
    return AttentionTiles(
        rows, int32(places), all_masks, all_lines, parts, shared, slots, by_column, work.perm
    )


def _layer(places: Tensor) -> Tensor:
    """How many tiles before each have the same place."""
    _, group, counts = torch.unique(places, return_inverse=True, return_counts=True)
    order = group.argsort(stable=True)
    before = (counts.cumsum(0) - counts)[group]
    layer = torch.empty_like(order)
    layer[order] = torch.arange(order.numel(), device=order.device) - before[order]
    return layer


def part_limit(
    counts: Tensor, heads: int, resident: int, device: Device, least_cut: int = LEAST_CUT
) -> int:
    """The most tiles of a part, of rows of tiles that have `counts` and are computed for each head.

    Parts fill a GPU evenly, but must be merged, so rows that balance themselves stay whole.
    """
    blocks, held = heads * counts.numel(), resident * device.sm_count
    count, most = int(counts.sum()), int(counts.max()) if counts.numel() else 0
    share = heads * count / held
    is_even = most * counts.numel() <= _EVEN * count
    is_balanced = blocks >= _ENOUGH * held or (is_even and blocks >= device.sm_count)
    return max(least_cut, math.ceil(share * (2 if is_balanced else 0.5)))


def transposed_bits(masks: Tensor) -> Tensor:
    """(tiles, 64) int64 as matrices of 64 x 64 bits, each transposed.

    Exchanges blocks of bits off the diagonal, of 32 x 32 and then of half the size each time
    (Warren, Hacker's Delight, section 7-3).
    """
    size, low = SIDE // 2, 2**32 - 1
    while size > 0:
        first, second = masks.view(-1, SIDE // (2 * size), 2, size).unbind(2)
        changed = ((first >> size) ^ second) & low
        masks = torch.stack([first ^ (changed << size), second ^ changed], dim=2).view(-1, SIDE)
        size //= 2
        low ^= low << size
    return masks


def padded(columns: int) -> int:
    """The columns that the kernels compute: a power of two, from 16 on."""
    return max(16, 1 << max(0, columns - 1).bit_length())


def new_pieces(count: int, device: torch.device) -> Tensor | None:
    """Memory for so many floats of parts of rows of tiles."""
    if count == 0:
        return None
    return new_memory("parts of rows of tiles", (count,), torch.float32, device)
