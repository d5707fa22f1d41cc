"""tile_list: the tiles of a pattern that are not empty, for a single run."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import TileList, TileOffsets
from sddmm.backends.cuda.pinned_results import validity_result
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

TILE_LIST = KernelSpec("tile_list", "tile_list", (), threads=256, shared_bytes=32)

_TILES = "a list of {shape} of tiles"


class Arguments(ctypes.Structure):
    """The parameters of tile_list/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("offsets", "tiles", "state", "next_state", "result")),
        *((name, INT) for name in ("tiles_down", "tiles_across", "blocks_across", "block_m")),
    ]


class TileLister:
    """Lists the tiles of single runs of one problem, behind an analysis that finds where the rows
    of all tiles begin. A thread calls `wait` before it launches again."""

    def __init__(self, problem: SddmmProblem, device: Device, block: tuple[int, int]) -> None:
        down, across = ceil_div(problem.m, block[0]), ceil_div(problem.n, block[1])
        blocks_across = ceil_div(across, 32)
        self._block, self._blocks = block, ceil_div(down, 2) * blocks_across
        self._most = (down * across, 2)
        self._sizes = down, across, blocks_across, block[0]
        self._device_index, self._torch_device = device.index, problem.device
        self._results = validity_result(problem.device)
        self._kernel = loader.runtime.load_kernel(TILE_LIST, (), Arguments, device.index)

    def launch(self, offsets: TileOffsets) -> TileList:
        """The list that the GPU will write, with room for all tiles."""
        tiles = new_memory(_TILES, self._most, torch.int32, self._torch_device)
        results = self._results.own
        results.reset()
        self._kernel(
            self._blocks, offsets.offsets.data_ptr(), tiles.data_ptr(), results.state,
            results.next_state, results.address, *self._sizes,
        )  # fmt: skip
        results.swap_state()
        return TileList(tiles, self._block)

    def wait(self, tiles: TileList) -> TileList:
        """The tiles that were found. Of a pattern that is not right, or whose columns do not
        ascend, they mean nothing."""
        (count,) = self._results.own.wait(self._device_index)
        return TileList(tiles.coords[:count], self._block)
