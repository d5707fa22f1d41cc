"""The tiles of W by stripes, which are the rows of tiles, cut into parts for blocks to compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.tile_lines.host import block_lines, mask_lines
from sddmm.backends.cuda.layouts import Nonzeros, TileWork
from sddmm.sparse.indices import BlockSize

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    blocks: Nonzeros, offsets: Tensor, blocksize: BlockSize, side: int, by_column: bool,
    replicas: int, cut: Cut, device: Device,
) -> Stripes:  # fmt: skip
    """As `stripes_of`, from the indices of blocks; see `block_lines`."""
    # Copied before the next launch, which so runs while the CPU cuts.
    in_row = np.diff(offsets.cpu().numpy())
    lines, columns = block_lines(blocks, offsets, blocksize, side, by_column, device)
    down, across = (size // side for size in (blocksize[::-1] if by_column else blocksize))
    counts = np.repeat(in_row * across, down)
    pieces = cut.pieces(counts, replicas, device.sm_count)
    return Stripes(lines, columns, *cut_stripes(counts, pieces, side, lines.device))


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
    tiles, pieces = tiles.astype(np.int32), pieces.astype(np.int32)
    stripe = np.repeat(np.arange(tiles.size, dtype=np.int32), pieces)
    number = np.arange(stripe.size, dtype=np.int32) - _begins(pieces)[stripe]
    begin, cuts = _begins(tiles)[stripe], pieces[stripe]
    count = tiles[stripe].astype(np.int64)  # times the number of a part
    first, last = begin + number * count // cuts, begin + (number + 1) * count // cuts
    slots = np.where(pieces > 1, pieces, 0)
    first_slot, which = _begins(slots), slots.nonzero()[0]
    slot = np.where(cuts > 1, first_slot[stripe] + number, -1)
    # Numbers of 16 bits are sorted in a fraction of the time; parts that are longer are alike.
    longest = np.maximum(first - last, -(2**15)).astype(np.int16).argsort(kind="stable")
    both = np.empty((stripe.size + which.size, 4), dtype=np.int32)
    parts, shared = both[: stripe.size], both[stripe.size :]
    columns: list[NDArray[Any]] = [first, last, stripe * rows, slot]
    for i, column in enumerate(columns):
        parts[:, i] = column[longest]
    columns = [which * rows, first_slot[which], pieces[which]]
    for i, column in enumerate(columns):
        shared[:, i] = column
    shared[:, 3] = 1
    on_device = torch.from_numpy(both).to(device)
    return on_device[: len(parts)], on_device[len(parts) :], int(slots.sum())


def _begins(sizes: NDArray[Any]) -> NDArray[Any]:
    """Where each of adjacent ranges of these sizes begins."""
    begins: NDArray[Any] = sizes.cumsum(dtype=np.int32) - sizes
    return begins
