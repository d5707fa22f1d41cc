"""tile_bounds: where the nonzeros of each row of each listed tile begin and end."""

from __future__ import annotations

import ctypes

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import TileList, TileOffsets
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.sparse.views import CompressedView

TILE_BOUNDS = KernelSpec("tile_bounds", "tile_bounds", (), threads=256)


class Arguments(ctypes.Structure):
    """The parameters of tile_bounds/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("crow", "cols", "tiles", "bounds")),
        *((name, INT) for name in ("tile_count", "m", "block_m", "block_n")),
    ]


def search_row_offsets(
    rows: CompressedView, tiles: TileList, m: int, device: Device
) -> TileOffsets:
    """The row offsets of the listed tiles, by a binary search for each."""
    count, (block_m, block_n) = tiles.length, tiles.block
    offsets = torch.empty(count, block_m, 2, dtype=torch.int32, device=rows.indices.device)
    loader.runtime.load_kernel(TILE_BOUNDS, (), Arguments, device.index)(
        ceil_div(count * block_m, TILE_BOUNDS.threads), rows.indptr.data_ptr(),
        rows.indices.data_ptr(), tiles.coords.data_ptr(), offsets.data_ptr(), count, m, block_m,
        block_n,
    )  # fmt: skip
    return TileOffsets(offsets, 2 * block_m, 0, 0, 2)
