"""tile_simt: dense tiles by multiply-adds on CUDA cores, in exact float32."""

from __future__ import annotations

import torch

from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.tile import BlockTileKernel

_PAD = 4  # elements between two rows of a stage, against bank conflicts
_LAST_STAGE = 2  # the time of an element of k past all whole stages of rows, over that of others

# Where a multiprocessor holds two tiles: the time of one alone, in halves of the time of both.
_ALONE = 1.17


class TileSimt(BlockTileKernel):
    """Serves float32 with its full precision."""

    def timed_k(self, k: int) -> int:
        if self.defines["MAINLOOP"] != "ROWS":
            return super().timed_k(k)
        past_whole = k % self.tile[2]
        return k - past_whole + min(self.tile[2], _LAST_STAGE * past_whole)

    def _tiles_of_longest(self, count: int, sm_count: int) -> float:
        if self.min_blocks != 2:
            return super()._tiles_of_longest(count, sm_count)
        pairs, rest = divmod(count, 2 * sm_count)
        return 2 * pairs + (2 if rest > sm_count else _ALONE * bool(rest))


def tile_simt(
    tile: tuple[int, int, int],
    thread: tuple[int, int],
    min_blocks: int,
    rate: TileRate | None = None,
    *,
    mainloop: str = "TWO_BUFFERS",
    stages: int = 2,
    slices: int = 1,
) -> TileSimt:
    """A variant. thread: the rows and columns of sums of each thread. mainloop: one of those that
    kernel.cu names; that of rows has the padding at the end of each row of k. slices: the parts in
    which the warps share a stage's elements of k."""
    block_m, block_n, block_k = tile
    warps = block_m // (4 * thread[0]), block_n // (8 * thread[1])
    if mainloop == "ROWS":
        stage_elements = (block_m + block_n) * (block_k + _PAD)
    else:
        stage_elements = block_k * (block_m + block_n + 2 * _PAD)
    stage_bytes = stage_elements * torch.float32.itemsize
    return TileSimt(
        name=f"tile_simt_{'sliced_' if slices > 1 else ''}{block_m}x{block_n}x{block_k}",
        source="tile_simt",
        dtypes=(torch.float32,),
        threads=32 * warps[0] * warps[1] * slices,
        tile=tile,
        shared_bytes=max(stages * stage_bytes, max(1, slices - 1) * block_m * block_n * 4),
        min_blocks=min_blocks,
        rate=rate,
        defines={
            "MAINLOOP": mainloop,
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "THREAD_M": thread[0],
            "THREAD_N": thread[1],
            "PAD": _PAD,
            "STAGES": stages,
            "SLICES": slices,
        },
    )
