"""tile_stats: how many tiles of a size hold how many nonzeros, from the counts of smaller tiles."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.facts import TileCounts
from sddmm.backends.cuda.spec import KernelSpec, Macros, macros

# Classes of tiles by the logarithm of their nonzeros, which are counted in 32 bits.
_CLASSES = 31
# The 64-bit words of the statistics: nonzeros and tiles by class, and full tiles.
_STATS_WORDS = 2 * _CLASSES + 1
_BLOCKS_PER_SM = 8

TILE_STATS = KernelSpec("tile_stats", "tile_stats", (), threads=256, shared_bytes=512)


class Arguments(ctypes.Structure):
    """The parameters of tile_stats/kernel.cu."""

    _fields_ = [
        ("base_nnz", POINTER),
        ("stats", POINTER),
        *((name, INT) for name in ("base_rows", "base_columns", "rows", "columns")),
        *((name, INT) for name in ("block_m", "block_n", "m", "n", "tiles_across", "tiles")),
    ]


def count_by_class(
    base_nnz: Tensor,
    base: tuple[int, int],
    shape: tuple[int, int],
    blocks: tuple[tuple[int, int], ...],
    device: Device,
) -> dict[tuple[int, int], TileCounts]:
    """The counts of tiles of these sizes; waits for the GPU.

    base_nnz: the nonzeros of each tile of size `base`, of which the others are made.
    """
    stats = base_nnz.new_zeros(len(blocks), _STATS_WORDS, dtype=torch.int64)
    kernel = loader.runtime.load_kernel(TILE_STATS, MACROS, Arguments, device.index)
    base_grid = [ceil_div(size, side) for size, side in zip(shape, base, strict=True)]
    for block, block_stats in zip(blocks, stats, strict=True):
        across = ceil_div(shape[1], block[1])
        tiles = ceil_div(shape[0], block[0]) * across
        kernel(
            max(1, min(ceil_div(tiles, TILE_STATS.threads), device.sm_count * _BLOCKS_PER_SM)),
            base_nnz.data_ptr(), block_stats.data_ptr(), *base_grid, block[0] // base[0],
            block[1] // base[1], *block, *shape, across, tiles,
        )  # fmt: skip
    return {
        block: TileCounts(
            nonempty=sum(words[_CLASSES:-1]),
            full=words[-1],
            by_class=tuple(zip(words[_CLASSES:-1], words[:_CLASSES], strict=True)),
        )
        for block, words in zip(blocks, stats.tolist(), strict=True)
    }


MACROS: Macros = macros({"CLASSES": _CLASSES, "STATS_WORDS": _STATS_WORDS})
