"""tile_lines: the first nonzero of each line of each listed tile, and a mask of its positions; and
block_lines: those of the tiles of which blocks are made."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.layouts import Nonzeros, TileWork
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.sparse.indices import BlockSize

TILE_LINES = KernelSpec("tile_lines", "tile_lines", (), threads=256)
BLOCK_LINES = KernelSpec("block_lines", "block_lines", (), threads=256)
# The side of most tiles; those that one warp multiplies are of 16 or 32.
SIDE = 64


class Arguments(ctypes.Structure):
    """The parameters of tile_lines/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("indices", "tiles", "bounds", "lines")),
        ("line_count", LONG),
    ]


class BlockArguments(ctypes.Structure):
    """The parameters of block_lines/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("rows", "cols", "perm", "offsets", "lines", "columns")),
        ("line_count", LONG),
        *((name, INT) for name in ("block_m", "block_n")),
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


def block_lines(
    blocks: Nonzeros, offsets: Tensor, blocksize: BlockSize, side: int, by_column: bool,
    device: Device,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(tiles, side, 4) and (tiles,) int32: the lines and the first column of each tile, by stripes.

    blocks: their rows, which ascend, and columns, in units of blocks; `by_column` those of the
    transpose. offsets: (rows of blocks + 1,) int32, the first block of each. blocksize: as blocks
    are stored; `side` divides both.
    """
    (bm, bn), gpu = blocksize, blocks.cols.device
    tiles = blocks.cols.numel() * (bm // side) * (bn // side)
    lines = torch.empty(tiles, side, 4, dtype=torch.int32, device=gpu)
    columns = torch.empty(tiles, dtype=torch.int32, device=gpu)
    defines = macros({"SIDE": side, "BY_COLUMN": by_column})
    loader.runtime.load_kernel(BLOCK_LINES, defines, BlockArguments, device.index)(
        ceil_div(tiles * side, BLOCK_LINES.threads), blocks.rows.data_ptr(),
        blocks.cols.data_ptr(), address(blocks.perm), offsets.data_ptr(), lines.data_ptr(),
        columns.data_ptr(), tiles * side, bm, bn,
    )  # fmt: skip
    return lines, columns
