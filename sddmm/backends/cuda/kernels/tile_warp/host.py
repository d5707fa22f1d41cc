"""tile_warp: small dense tiles in half types, a warp each."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import DeviceModel, TileRate
from sddmm.backends.cuda.executor import (
    KernelPlan,
    LaunchFn,
    address,
    make_launch,
    operand_args,
    rows_are_contiguous,
)
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.kernels.tile_masks.host import mask_rows
from sddmm.backends.cuda.layouts import TileList, TileWork
from sddmm.backends.cuda.spec import macros, type_macros
from sddmm.dtypes import HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

_THREADS = 128
_STEP_BYTES = 64  # bytes of a row that a warp loads at once

# The most tiles that a warp computes, and the warps of a multiprocessor that are worth more than
# tiles that share rows of A.
_MAX_TILES_PER_WARP, _WARPS_PER_SM = 4, 64


class Arguments(ctypes.Structure):
    """The parameters of tile_warp/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "cols", "perm", "tiles", "rows")),
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("tile_count", "tiles_per_warp", "warps_per_head", "heads")),
        *((name, INT) for name in ("m", "n", "k")),
        ("alpha", DOUBLE),
    ]


@dataclass(frozen=True, eq=False)
class TileWarp(TileKernel):
    """Serves half types; pays where the full tiles of a pattern are this small.

    min_blocks_of_others: as min_blocks, for rows of more than 128 bytes, and for those that do not
    start at multiples of 16 bytes: their loads take more registers.
    """

    min_blocks_of_others: int = 1

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> None:
        return None  # so many tiles are listed where they are not empty

    def plan(self, work: TileWork, problem: SddmmProblem, device: Device) -> KernelPlan:
        work = _by_rows(work)
        heads, count, warps = problem.heads or 1, work.tiles.length, self.threads // 32
        tiles_per_warp = min(
            _MAX_TILES_PER_WARP, max(1, count * heads // (device.sm_count * _WARPS_PER_SM))
        )
        warps_per_head = ceil_div(count, tiles_per_warp)
        rows = mask_rows(work, device) if work.distinct else work.row_offsets.offsets
        row_bytes = problem.k * problem.dtype.itemsize
        fixed: dict[str, Any] = {
            **type_macros(problem.dtype, problem.out_dtype), **self.defines,
            **self._passes(row_bytes), "MASKED": work.distinct,
        }  # fmt: skip
        kernels: dict[int, Kernel] = {}

        def specialise(load_bytes: int) -> Kernel:
            short = row_bytes <= 2 * _STEP_BYTES and load_bytes == 16
            min_blocks = self.min_blocks if short else self.min_blocks_of_others
            defines = macros({**fixed, "LOAD_BYTES": load_bytes, "MIN_BLOCKS": min_blocks})
            return loader.runtime.load_kernel(self, defines, Arguments, device.index)

        def bind(a: Tensor, b_t: Tensor) -> LaunchFn:
            args, alignment = operand_args(a, b_t)
            load_bytes = math.gcd(alignment, row_bytes)
            if load_bytes not in kernels:
                kernels[load_bytes] = specialise(load_bytes)
            return make_launch(kernels[load_bytes], ceil_div(heads * warps_per_head, warps), {
                **args, "cols": work.cols.data_ptr(), "perm": address(work.perm),
                "tiles": work.tiles.coords.data_ptr(), "rows": rows.data_ptr(),
                "head_out": problem.nnz, "tile_count": count, "tiles_per_warp": tiles_per_warp,
                "warps_per_head": warps_per_head, "heads": heads, "m": problem.m, "n": problem.n,
                "k": problem.k,
            })  # fmt: skip

        return KernelPlan(bind, rows_are_contiguous)

    def _passes(self, row_bytes: int) -> dict[str, int | bool]:
        """How a row is loaded: a short one at once, a long one in passes."""
        steps = ceil_div(max(1, row_bytes), _STEP_BYTES)
        small = self.tile[0] == 16
        if steps > (4 if small else 2):
            steps = 2 if small else 1
        return {
            "STEPS": steps,
            "ONE_PASS": row_bytes <= steps * _STEP_BYTES,
            "NO_TAIL": row_bytes > 0 == row_bytes % (steps * _STEP_BYTES),
        }


def _by_rows(work: TileWork) -> TileWork:
    """The same tiles row by row, so that neighbours share rows of A and store to the same rows."""
    (block_m, _), coords = work.tiles.block, work.tiles.coords
    order = (coords[:, 0].long() * (1 << 32) + coords[:, 1]).argsort()
    bounds = work.row_offsets.offsets.view(-1, block_m, 2)[order].contiguous()
    return TileWork(
        TileList(coords[order].contiguous(), work.tiles.block),
        work.row_offsets._replace(offsets=bounds), work.cols, work.perm, work.distinct, work.runs,
    )  # fmt: skip


def tile_warp(size: int, min_blocks: tuple[int, int], rate: TileRate | None = None) -> TileWarp:
    """The variant whose tiles have this many rows and columns. min_blocks: for short aligned rows,
    and for others."""
    return TileWarp(
        name=f"tile_warp_{size}x{size}",
        source="tile_warp",
        dtypes=HALF_DTYPES,
        threads=_THREADS,
        tile=(size, size, 32),
        min_blocks=min_blocks[0],
        min_blocks_of_others=min_blocks[1],
        rate=rate,
        defines={"FRAGMENTS_M": size // 16, "FRAGMENTS_N": size // 8},
    )
