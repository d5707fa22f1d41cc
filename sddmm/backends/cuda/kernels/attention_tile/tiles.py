"""The tiles of a mask, by rows of tiles, as the tile kernels of attention read them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.spmm_tile.stripes import Stripes, stripes_of
from sddmm.backends.cuda.layouts import TileWork
from sddmm.errors import out_of_memory


class AttentionTiles(NamedTuple):
    """The tiles of a pattern by rows of tiles, cut into parts (`Stripes`).

    places: (tiles, 2) int32, the first column of each tile, and whether it is full. by_column:
    whether the lines of tiles are their columns. perm: the positions of nonzeros; None if they are
    their numbers.
    """

    stripes: Stripes
    places: Tensor
    by_column: bool
    perm: Tensor | None

    @property
    def slots(self) -> int:
        return self.stripes.slots

    @property
    def part_count(self) -> int:
        return self.stripes.parts.shape[0]

    @property
    def shared_count(self) -> int:
        return self.stripes.shared.shape[0]

    def arguments(self) -> dict[str, int | float]:
        """The arguments of the kernels that describe tiles, by name."""
        stripes = self.stripes
        return {
            "lines": stripes.lines.data_ptr(), "tiles": self.places.data_ptr(),
            "parts": stripes.parts.data_ptr(), "shared_rows": stripes.shared.data_ptr(),
            "part_count": self.part_count, "shared_count": self.shared_count, "slots": self.slots,
        }  # fmt: skip


def tiles_by_row(
    work: TileWork, by_column: bool, m: int, heads: int, device: Device
) -> AttentionTiles:
    """The tiles of m rows. by_column: whether `work` lists the tiles of the transpose."""
    stripes = stripes_of(work, m, by_column, heads, device)
    is_full = (stripes.lines[:, :, 1:3] == -1).flatten(1).all(1)
    places = torch.stack([stripes.columns, is_full.to(torch.int32)], dim=1)
    return AttentionTiles(stripes, places, by_column, work.perm)


def padded(columns: int) -> int:
    """The columns that the kernels compute: a power of two, from 16 on."""
    return max(16, 1 << max(0, columns - 1).bit_length())


def new_pieces(count: int, device: torch.device) -> Tensor | None:
    """Memory for so many floats of parts of rows of tiles."""
    if count == 0:
        return None
    try:
        return torch.empty(count, dtype=torch.float32, device=device)
    except torch.OutOfMemoryError as error:
        raise out_of_memory("parts of rows of tiles", 4 * count, device) from error
