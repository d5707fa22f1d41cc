"""The tiles of W by stripes, which are the rows of tiles, cut into parts for blocks to compute."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.tile_lines.host import mask_lines
from sddmm.backends.cuda.layouts import TileWork
from sddmm.sparse.indices import BlockSize, expand
from sddmm.sparse.pattern import SparsePattern


class Stripes(NamedTuple):
    """The tiles of W in ascending order of rows and columns, and the parts of rows of tiles.

    All int32. lines: (tiles, side, 4), see tile_lines. columns: (tiles,), the first column of each.
    parts: (count, 4): first tile, last tile + 1, first row, and the slot of the part's sums or -1
    if it is all of its rows. shared: (count, 4): first row, first slot and number of slots of rows
    of several parts, and 1, as slots are adjacent. slots: the number of slots.
    """

    lines: Tensor
    columns: Tensor
    parts: Tensor
    shared: Tensor
    slots: int


# Per block that runs at once: the most stripes that are cut for all parts to run at once, as few of
# more would be cut; and the least parts, as fewer, of alike stripes, leave blocks idle.
_MOST_STRIPES, _LEAST_PARTS = 0.75, 0.8


class Cut(NamedTuple):
    """How stripes are cut into parts for blocks to compute, all at once where that is possible.

    least: the tiles of a part below which it is not cut. resident: the blocks that a multiprocessor
    runs at once. Where stripes are too many for that, parts_per_sm: the parts that it should have,
    and least_of_many: the tiles below which none of them is cut.
    """

    least: int
    least_of_many: int
    resident: int
    parts_per_sm: int

    def pieces(self, tiles: NDArray[np.int64], replicas: int, sm_count: int) -> NDArray[np.int64]:
        """The parts of each stripe. tiles: their numbers, each computed `replicas` times."""
        count, stripes = replicas * int(tiles.sum()), replicas * tiles.size
        at_once = self.resident * sm_count
        limit = self.limit(count, stripes, sm_count)
        pieces = pieces_of(tiles, limit)
        if stripes > _MOST_STRIPES * at_once:
            return pieces
        while (parts := replicas * int(pieces.sum())) > at_once:
            limit += ceil_div(limit, 8)
            pieces = pieces_of(tiles, limit)
        if limit > self.least and parts < _LEAST_PARTS * at_once:
            return pieces_of(tiles, self._limit_of_many(count, sm_count))
        return pieces

    def limit(self, tiles: float, stripes: float, sm_count: int) -> int:
        """The most tiles of a part, of so many tiles and stripes with all replicas. A stripe is
        expected to have half a part more than its share."""
        at_once = self.resident * sm_count
        if stripes > _MOST_STRIPES * at_once:
            return self._limit_of_many(tiles, sm_count)
        return max(self.least, math.ceil(tiles / (at_once - stripes / 2)))

    def _limit_of_many(self, tiles: float, sm_count: int) -> int:
        return max(self.least_of_many, math.ceil(tiles / (self.parts_per_sm * sm_count)))


def stripes_of(
    work: TileWork, shape: tuple[int, int], by_column: bool, replicas: int, cut: Cut, device: Device
) -> Stripes:
    """shape: that of W. by_column: whether `work` lists tiles of the transpose. replicas: how often
    each tile is computed, for other heads or columns of X."""
    coords, (down, across) = work.tiles.coords, (1, 0) if by_column else (0, 1)
    side = work.tiles.block[0]
    # Copied before the next launch, which so runs while the CPU cuts.
    counts = tiles_of_stripes(coords.cpu()[:, down], ceil_div(shape[0], side))
    lines, column = mask_lines(work, device), coords[:, across]
    if by_column or work.layers > 1:
        places = coords[:, down].long() * ceil_div(shape[1], side) + column
        order = places.argsort(stable=True)
        lines, column = lines[order], column[order]
    pieces = cut.pieces(counts, replicas, device.sm_count)
    return Stripes(
        lines, (column * side).contiguous(), *cut_stripes(counts, pieces, side, lines.device)
    )


def stripes_of_blocks(
    pattern: SparsePattern, side: int, by_column: bool, replicas: int, cut: Cut, device: Device
) -> Stripes:
    """As `stripes_of`, from the indices of blocks alone: no nonzero is read, and only blocks are
    sorted, if `by_column`, as the tiles are those of the transpose.

    pattern: a valid block pattern, of blocks whose sides are multiples of `side`.
    """
    assert pattern.blocksize is not None
    (m, n), (bm, bn), gpu = pattern.shape, pattern.blocksize, pattern.device
    rows, cols = expand(pattern.major_indices, pattern.col_indices.numel()), pattern.col_indices
    number = torch.arange(cols.numel(), device=gpu)
    if by_column:
        number = cols.argsort(stable=True)
        along, beside, size = cols[number].long(), rows[number], (bn, bm)
    else:
        along, beside, size = rows.long(), cols, (bm, bn)
    # A block has tiles in `down` stripes, `across` in each.
    down, across = size[0] // side, size[1] // side
    in_row = torch.bincount(along, minlength=(n if by_column else m) // size[0])
    tiles = np.repeat(in_row.cpu().numpy() * across, down)

    i, j = torch.arange(down, device=gpu)[:, None] * side, torch.arange(across, device=gpu) * side
    row, column = (j, i) if by_column else (i, j)  # the first of each tile, in its block
    line = torch.arange(side, device=gpu) * bn
    first = number[:, None, None] * (bm * bn) + row * bn + column
    lines = _full_lines(first[..., None] + line).view(-1, side, 4)
    columns = (beside.long() * size[1])[:, None, None] + j.expand(down, across)
    order = _places(along, in_row, down, across).flatten().argsort()
    pieces = cut.pieces(tiles, replicas, device.sm_count)
    return Stripes(
        lines[order], columns.flatten()[order].to(torch.int32),
        *cut_stripes(tiles, pieces, side, lines.device),
    )  # fmt: skip


def tiles_of_stripes(stripe: Tensor, count: int) -> NDArray[np.int64]:
    """The number of tiles of each of `count` stripes. stripe: that of each tile, on the CPU."""
    return np.bincount(stripe.numpy(), minlength=count)


def pieces_of(tiles: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """The parts of at most `limit` tiles of each stripe; one without tiles has one, which stores
    zeros."""
    return np.maximum((tiles + limit - 1) // limit, 1)


def cut_stripes(
    tiles: NDArray[np.int64], pieces: NDArray[np.int64], rows: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """The parts, the longest first; those of one stripe are about equal.

    tiles, pieces: the number of each stripe's tiles, of `rows` rows each, and of its parts.
    Computed by numpy, as torch takes several times as long for such steps on few numbers, on the
    CPU as on a GPU. Returns parts and shared, which are copied to `device` together, and slots of
    `Stripes`.
    """
    of_part = np.repeat(np.arange(tiles.size), pieces)
    number = np.arange(of_part.size) - (pieces.cumsum() - pieces)[of_part]
    begins, count, cuts = (tiles.cumsum() - tiles)[of_part], tiles[of_part], pieces[of_part]
    first, last = begins + number * count // cuts, begins + (number + 1) * count // cuts
    slots = np.where(pieces > 1, pieces, 0)
    first_slot = slots.cumsum() - slots
    slot = np.where(cuts > 1, first_slot[of_part] + number, -1)
    longest = (first - last).argsort(kind="stable")
    parts = np.stack([first, last, of_part * rows, slot], axis=1)[longest]
    which = slots.nonzero()[0]
    shared = np.stack([which * rows, first_slot[which], pieces[which], which * 0 + 1], axis=1)
    both = torch.from_numpy(np.concatenate([parts, shared]).astype(np.int32)).to(device)
    return both[: len(parts)], both[len(parts) :], int(slots.sum())


def divides(side: int, blocksize: BlockSize) -> bool:
    """Whether blocks are made of whole tiles with this side."""
    return blocksize[0] % side == 0 == blocksize[1] % side


def _places(along: Tensor, in_row: Tensor, down: int, across: int) -> Tensor:
    """(blocks, down, across): where each tile is among all, which come by stripe. along: the row of
    blocks of each block, ascending; in_row: the blocks of each row."""
    first = (in_row.cumsum(0) - in_row)[along]
    within = torch.arange(along.numel(), device=along.device) - first
    i = torch.arange(down, device=along.device)[:, None]
    j = torch.arange(across, device=along.device)
    before = first[:, None, None] * down + in_row[along][:, None, None] * i
    return (before + within[:, None, None]) * across + j


def _full_lines(first: Tensor) -> Tensor:
    """(..., side, 4) int32 lines whose positions all hold nonzeros; see tile_lines. first: (...,
    side), the first nonzero of each."""
    side = first.shape[-1]
    lines = torch.zeros(*first.shape, 4, dtype=torch.int32, device=first.device)
    lines[..., 0] = first
    lines[..., 1] = (1 << side) - 1 if side < 32 else -1
    lines[..., 2] = 0 if side < 64 else -1
    return lines
