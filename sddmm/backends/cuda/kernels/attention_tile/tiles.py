"""The tiles of a mask, by rows of tiles, as the tile kernels of attention read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.spmm_tile.stripes import (
    cut_stripes,
    pieces_of,
    tiles_of_stripes,
)
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE, mask_lines
from sddmm.backends.cuda.layouts import TileWork
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    work: TileWork, by_column: bool, shape: tuple[int, int], heads: int,
    resident: Mapping[int, int], device: Device, least_cut: int = LEAST_CUT,
) -> AttentionTiles:  # fmt: skip
    """The tiles of a pattern of this shape.

    by_column: whether `work` lists the tiles of the transpose. resident: the rows that a block may
    have, those to be preferred first, and how many such blocks a multiprocessor holds. least_cut:
    the least number of tiles at which parts are cut.
    """
    stripe, column = work.tiles.coords.unbind(1)[:: -1 if by_column else 1]
    width, layers = ceil_div(shape[1], SIDE), work.layers
    layer = _layer(stripe.long() * width + column) if layers > 1 else 0
    keys = tile = None  # of tiles that stay as `work` lists them
    for rows in resident:
        stacked = rows // SIDE  # tiles of 64 x 64 that make one of `rows` x 64
        if stacked == 1 and layers == 1 and not by_column:
            keys = tile = None
            break
        keys = (stripe.long() // stacked * width + column) * layers + layer
        keys, tile = torch.unique(keys, return_inverse=True)
        if keys.numel() * stacked <= _MOST_STACKED * tile.numel():
            break
    # Copied before the next launches, which so run while the CPU cuts.
    if keys is None:
        stripe_of_tile = work.tiles.coords.cpu()[:, 0]
    else:
        stripe_of_tile = keys.cpu() // (width * layers)
        column = keys // layers % width
    counts = tiles_of_stripes(stripe_of_tile, ceil_div(shape[0], rows))
    lines = mask_lines(work, device)
    masks = lines[:, :, 1:3].contiguous().view(torch.int64).squeeze(2)
    if by_column:
        masks = transposed_bits(masks)
    if keys is not None:
        at, size = (tile, stripe % stacked), (keys.numel(), stacked, SIDE)
        lines = lines.new_zeros(*size, 4).index_put_(at, lines)
        masks = masks.new_zeros(size).index_put_(at, masks)
    lines, masks = lines.view(-1, rows, 4), masks.view(-1, rows)
    places = torch.stack([(column * SIDE).to(torch.int32), _row_flags(masks)], dim=1)
    limit = part_limit(counts, heads, resident[rows], device, least_cut)
    parts, shared, slots = cut_stripes(counts, pieces_of(counts, limit), rows, lines.device)
    return AttentionTiles(rows, places, masks, lines, parts, shared, slots, by_column, work.perm)


def _row_flags(masks: Tensor) -> Tensor:
    """The flags of `AttentionTiles.places`, (tiles,) int32. masks: (tiles, rows)."""
    groups = masks.view(-1, masks.shape[1] // _FLAG_ROWS, _FLAG_ROWS)
    flags = (groups == -1).all(2) + (groups == 0).all(2) * 2**16
    bits = torch.arange(groups.shape[1], device=masks.device)
    return (flags << bits).sum(1, dtype=torch.int32)


def _layer(places: Tensor) -> Tensor:
    """How many tiles before each have the same place."""
    _, group, counts = torch.unique(places, return_inverse=True, return_counts=True)
    order = group.argsort(stable=True)
    before = (counts.cumsum(0) - counts)[group]
    layer = torch.empty_like(order)
    layer[order] = torch.arange(order.numel(), device=order.device) - before[order]
    return layer


def part_limit(
    counts: NDArray[np.int64], heads: int, resident: int, device: Device, least_cut: int = LEAST_CUT
) -> int:
    """The most tiles of a part, of rows of tiles that have `counts` and are computed for each head.

    Parts fill a GPU evenly, but must be merged, so rows that balance themselves stay whole.
    """
    blocks, held = heads * counts.size, resident * device.sm_count
    count, most = int(counts.sum()), int(counts.max()) if counts.size else 0
    share = heads * count / held
    is_even = most * counts.size <= _EVEN * count
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
