"""tile_lines: the first nonzero of each line of each listed tile, and a mask of its positions."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.spec import KernelSpec, macros

TILE_LINES = KernelSpec("tile_lines", "tile_lines", (), threads=256)
# The side of most tiles, and of the small ones that one warp multiplies.
SIDE, SMALL_SIDE = 64, 16


class Arguments(ctypes.Structure):
    """The parameters of tile_lines/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("indices", "tiles", "bounds", "lines")),
        ("line_count", LONG),
    ]


def mask_lines(work: TileWork, device: Device) -> Tensor:
    """(tiles, side, 4) int32 of listed square tiles whose indices strictly ascend within a line."""
    side = work.tiles.block[0]
    assert work.tiles.block == (side, side)
    assert work.row_offsets.tile_stride == 2 * side, "tiles are listed, with the bounds of lines"
    count = work.tiles.length * side
    lines = torch.empty(work.tiles.length, side, 4, dtype=torch.int32, device=work.cols.device)
    loader.runtime.load_kernel(TILE_LINES, macros({"SIDE": side}), Arguments, device.index)(
        ceil_div(count, TILE_LINES.threads), work.cols.data_ptr(), work.tiles.coords.data_ptr(),
        work.row_offsets.offsets.data_ptr(), lines.data_ptr(), count,
    )  # fmt: skip
    return lines
