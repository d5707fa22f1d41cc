"""tile_masks: the first nonzero of each row of each listed tile, and a mask of its columns."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.spec import KernelSpec

TILE_MASKS = KernelSpec("tile_masks", "tile_masks", (), threads=256)


class Arguments(ctypes.Structure):
    """The parameters of tile_masks/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("cols", "tiles", "bounds", "rows")),
        ("row_count", LONG),
        *((name, INT) for name in ("block_m", "block_n")),
    ]


def mask_rows(work: TileWork, device: Device) -> Tensor:
    """(tiles * block_m, 2) int32 of listed tiles whose columns strictly ascend within a row."""
    (block_m, block_n), offsets = work.tiles.block, work.row_offsets
    assert offsets.tile_stride == 2 * block_m, "tiles are listed, with the bounds of their rows"
    rows = torch.empty_like(offsets.offsets)
    count = work.tiles.length * block_m
    loader.runtime.load_kernel(TILE_MASKS, (), Arguments, device.index)(
        ceil_div(count, TILE_MASKS.threads), work.cols.data_ptr(), work.tiles.coords.data_ptr(),
        offsets.offsets.data_ptr(), rows.data_ptr(), count, block_m, block_n,
    )  # fmt: skip
    return rows
