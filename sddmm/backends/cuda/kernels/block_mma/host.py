"""block_mma: full blocks by mma.sync, in half types, from global memory into fragments."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.block import Arguments, BlockKernel, BlockRate
from sddmm.backends.cuda.spec import macros, type_macros
from sddmm.dtypes import HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# Elements of k that a warp multiplies in one step.
_STEP_K = 32


@dataclass(frozen=True, eq=False)
class BlockMma(BlockKernel):
    """Serves half types. steps_in_flight: steps of k whose loads a warp has in flight at once."""

    steps_in_flight: int = 1

    def specialise(self, problem: SddmmProblem, device: Device, alignment: int) -> Kernel:
        step = math.gcd(alignment, problem.k * problem.dtype.itemsize)
        no_tail = step == 16 and problem.k % _STEP_K == 0
        return _specialise(loader.runtime, self, problem.dtype, problem.out_dtype, device, step,
                           no_tail)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _specialise(
    runtime: loader.CudaRuntime,
    spec: BlockMma,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    step: int,
    no_tail: bool,
) -> Kernel:
    # Tails need more registers than whole steps of k, and loads of few bytes more still.
    steps, blocks = spec.steps_in_flight, spec.min_blocks
    if step < 8:
        steps, blocks = 1, max(1, blocks // 2)
    elif not no_tail:
        blocks = blocks * 3 // 4
    defines = macros({
        **type_macros(dtype, out_dtype), **spec.defines, "LOAD_BYTES": step, "NO_TAIL": no_tail,
        "STEPS_IN_FLIGHT": steps, "MIN_BLOCKS": blocks,
    })  # fmt: skip
    return runtime.load_kernel(spec, defines, Arguments, device.index)


def block_mma(
    name: str,
    warp_tile: tuple[int, int],
    warps: tuple[int, int],
    steps_in_flight: int,
    min_blocks: int,
    rate: BlockRate,
) -> BlockMma:
    """A variant: warps down and across a tile, each with its part of it. Blocks have four warps."""
    return BlockMma(
        name=name,
        source="block_mma",
        dtypes=HALF_DTYPES,
        threads=128,
        min_blocks=min_blocks,
        max_nnz=2**63 - 1,
        covering=(warp_tile[0] * warps[0], warp_tile[1] * warps[1]),
        tiles_per_block=4 // (warps[0] * warps[1]),
        rate=rate,
        steps_in_flight=steps_in_flight,
        defines={
            "WARP_M": warp_tile[0],
            "WARP_N": warp_tile[1],
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
        },
    )
