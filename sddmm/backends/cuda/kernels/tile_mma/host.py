"""tile_mma: dense tiles by mma.sync, in half types, TF32 or 3xTF32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.kernels.tile import BlockTileKernel, block_tile_facts
from sddmm.dtypes import HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

_SHORT_K = 64  # the elements of k that two operands of 64 rows may have in the stages' memory


@dataclass(frozen=True, eq=False)
class TileMma(BlockTileKernel):
    """Serves half types, or float32 where the caller accepts TF32.

    hopper_min_blocks: as min_blocks, on Hopper, for which the compiler needs fewer registers.
    short_min_blocks: as min_blocks, where k is at most 64 and rows are stored as segments: then all
    of k is in shared memory at once, and no registers hold the next stage. 0: always by stages.
    """

    hopper_min_blocks: int = 0
    short_min_blocks: int = 0

    def main_loop(
        self, problem: SddmmProblem, device: Device, segments: bool
    ) -> dict[str, str | int | bool]:
        macros = super().main_loop(problem, device, segments)
        if self.short_min_blocks and segments and problem.k <= _SHORT_K:
            return {**macros, "STAGES": 1, "BLOCK_K": _SHORT_K, "MIN_BLOCKS": self.short_min_blocks}
        if self.hopper_min_blocks and device.capability == (9, 0):
            macros["MIN_BLOCKS"] = self.hopper_min_blocks
        return macros


def tile_mma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    min_blocks: int,
    precision: str = "ieee",
    rate: TileRate | None = None,
    hopper_min_blocks: int = 0,
    short_min_blocks: int = 0,
) -> TileMma:
    """A variant; precision "ieee" stands for half types, which have no other."""
    dtypes = HALF_DTYPES if precision == "ieee" else (torch.float32,)
    return TileMma(
        name=name,
        source="tile_mma",
        dtypes=dtypes,
        precision=precision,
        rate=rate,
        hopper_min_blocks=hopper_min_blocks,
        short_min_blocks=short_min_blocks,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": stages,
            "SPLIT": precision == "tf32x3",
        },
        **block_tile_facts(tile, warps, stages, min_blocks, dtypes[0].itemsize),
    )
