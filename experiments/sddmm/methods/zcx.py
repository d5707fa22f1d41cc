"""A re-implementation of zcx, the SDDMM by WMMA tiles of 16 x 16 of the published log.

It follows a description of the COO version, which builds its tile index on the CPU; it is not the
author's code. The author's later system is https://github.com/CX9898/BSMR-SDDMM. Operands whose
sizes are no multiples of 16 are padded with zeros, beforehand, which is not counted.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case
from experiments.sddmm.gpu_kernel import gpu_kernel
from gemm_core.arithmetic import ceil_div
from gemm_core.ladder.wmma_layout import check_wmma_layout
from gemm_core.runtime.launch import INT, POINTER

_TILE, _THREADS = 16, 512


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "out", "tiles", "tile_index")),
        *((name, POINTER) for name in ("tile_offset", "position")),
        *((name, INT) for name in ("count", "k")),
    ]


def refuses(case: Case) -> str | None:
    if not case.device.startswith("cuda"):
        return "it is a GPU kernel"
    if case.heads > 1:
        return "it computes one head"
    if case.a.dtype != torch.float16:
        return f"it computes float16, not {case.dtype}"
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'sddmm[cpu]')"
    return None


def prepare(case: Case) -> Run:
    rows, cols = case.pattern.row_ids.cpu().numpy(), case.pattern.col_indices.cpu().numpy()
    arrays = tile_index(rows, cols, case.m, case.n)
    tiles, index, tile_offset, position = (torch.from_numpy(x).to(case.device) for x in arrays)
    a, b = _padded(case.a), _padded(case.b.mT)
    check_wmma_layout(torch.cuda.current_device())
    kernel = gpu_kernel(Path(__file__).with_suffix(".cu"), "wmma_tiles", Arguments, _THREADS)
    count = len(tiles)

    def run() -> Tensor:
        out = torch.empty(case.nnz, device=case.device)
        kernel(
            ceil_div(count * 32, _THREADS), a.data_ptr(), b.data_ptr(), out.data_ptr(),
            tiles.data_ptr(), index.data_ptr(), tile_offset.data_ptr(), position.data_ptr(), count,
            a.shape[1],
        )  # fmt: skip
        return out

    return run


def tile_index(rows: np.ndarray, cols: np.ndarray, m: int, n: int) -> tuple[np.ndarray, ...]:
    """The published preparation, on one thread: the nonzeros of each tile that has any.

    Returns, all int32: the coordinates of the tiles (t, 2), the offset of each tile's first nonzero
    (t + 1,), and for the nonzeros tile by tile their offset in the 16 x 16 tile and their position
    in the pattern.
    """
    across = ceil_div(n, _TILE)
    index: tuple[np.ndarray, ...] = _kernels()["group"](rows, cols, ceil_div(m, _TILE), across)
    return index


def _padded(x: Tensor) -> Tensor:
    rows, k = (ceil_div(size, _TILE) * _TILE for size in x.shape)
    return torch.nn.functional.pad(x, (0, k - x.shape[1], 0, rows - x.shape[0])).contiguous()


@cache
def _kernels() -> dict[str, Any]:
    """Compiled at first use, so that listing the methods needs no numba."""
    from sddmm.backends.cpu.jit import jit

    @jit
    def group(rows, cols, down, across):
        counts = np.zeros(down * across + 1, np.int32)
        for i in range(rows.size):
            counts[rows[i] // 16 * across + cols[i] // 16] += 1
        number = np.empty(down * across, np.int32)  # the index of each tile that is not empty
        tiles = np.empty((rows.size, 2), np.int32)
        index = np.zeros(rows.size + 1, np.int32)
        count = 0
        for tile in range(down * across):
            if counts[tile] > 0:
                tiles[count, 0], tiles[count, 1] = tile // across, tile % across
                index[count + 1] = index[count] + counts[tile]
                number[tile] = count
                count += 1
        tile_offset = np.empty(rows.size, np.int32)
        position = np.empty(rows.size, np.int32)
        begin = index.copy()
        for i in range(rows.size):
            tile = number[rows[i] // 16 * across + cols[i] // 16]
            tile_offset[begin[tile]] = rows[i] % 16 * 16 + cols[i] % 16
            position[begin[tile]] = i
            begin[tile] += 1
        return tiles[:count].copy(), index[: count + 1].copy(), tile_offset, position

    return {"group": group}
