"""The tiles of W by stripes, which are the rows of tiles, cut into parts for blocks to compute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE, mask_lines
from sddmm.backends.cuda.layouts import TileWork

# The most tiles of a part, where that leaves enough parts for all multiprocessors.
_LEAST_CUT = 12
# The parts that a multiprocessor should have, so that they hide each other's latencies.
_PARTS_PER_SM = 4


class Stripes(NamedTuple):
    """The tiles of W in ascending order of rows and columns, and the parts of rows of tiles.

    All int32. lines: (tiles, 64, 4), see tile_lines. columns: (tiles,), the first column of each.
    parts: (count, 4): first tile, last tile + 1, first row, and the slot of the part's sums or -1
    if it is all of its rows. shared: (count, 4): first row, first slot and number of slots of rows
    of several parts, and 1, as slots are adjacent. slots: the number of slots.
    """

    lines: Tensor
    columns: Tensor
    parts: Tensor
    shared: Tensor
    slots: int


def stripes_of(
    work: TileWork, shape: tuple[int, int], by_column: bool, replicas: int, device: Device
) -> Stripes:
    """shape: that of W. by_column: whether `work` lists tiles of the transpose. replicas: how often
    each tile is computed, for other heads or columns of X."""
    coords, (down, across) = work.tiles.coords, (1, 0) if by_column else (0, 1)
    # Copied before the next launch, which so runs while the CPU cuts.
    counts = tiles_of_stripes(coords.cpu()[:, down], ceil_div(shape[0], SIDE))
    lines, column = mask_lines(work, device), coords[:, across]
    if by_column or work.layers > 1:
        places = coords[:, down].long() * ceil_div(shape[1], SIDE) + column
        order = places.argsort(stable=True)
        lines, column = lines[order], column[order]
    limit = part_limit(replicas * work.tiles.length, device)
    return Stripes(
        lines, (column * SIDE).contiguous(), *cut_stripes(counts, limit, SIDE, lines.device)
    )


def tiles_of_stripes(stripe: Tensor, count: int) -> NDArray[np.int64]:
    """The number of tiles of each of `count` stripes. stripe: that of each tile, on the CPU."""
    return np.bincount(stripe.numpy(), minlength=count)


def part_limit(count: int, device: Device) -> int:
    """The most tiles of a part, where so many are computed in all."""
    return max(_LEAST_CUT, ceil_div(count, _PARTS_PER_SM * device.sm_count))


def cut_stripes(
    tiles: NDArray[np.int64], limit: int, rows: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Parts of at most `limit` tiles, the longest first; those of one stripe are about equal.

    tiles: the number of each stripe's, of `rows` rows each. Computed by numpy, as torch takes
    several times as long for such steps on few numbers, on the CPU as on a GPU. Returns parts and
    shared, which are copied to `device` together, and slots of `Stripes`.
    """
    pieces = np.maximum((tiles + limit - 1) // limit, 1)
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
