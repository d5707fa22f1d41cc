"""block_simt: full blocks in exact float32, by gemm_core's main loop on CUDA cores."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.block import Arguments, BlockKernel, BlockRate
from sddmm.backends.cuda.spec import macros, type_macros

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# Elements added to each row of a transposed tile in shared memory (block_simt/kernel.cu).
_PAD = 4


@dataclass(frozen=True, eq=False)
class BlockSimt(BlockKernel):
    """Serves float32, exactly, whatever precision the caller accepts."""

    def specialise(self, problem: SddmmProblem, device: Device, alignment: int) -> Kernel:
        return _specialise(loader.runtime, self, problem.out_dtype, device, alignment == 16)


@functools.lru_cache(maxsize=1024)
def _specialise(
    runtime: loader.CudaRuntime,
    spec: BlockSimt,
    out_dtype: torch.dtype,
    device: Device,
    aligned: bool,
) -> Kernel:
    blocks = spec.min_blocks
    if device.capability >= (10, 0):  # for which the compiler takes more registers
        blocks = blocks * 3 // 4
    defines = macros({
        **type_macros(torch.float32, out_dtype), **spec.defines, "MIN_BLOCKS": blocks,
        "ALIGNED_A": aligned, "ALIGNED_B": aligned,
    })  # fmt: skip
    return runtime.load_kernel(spec, defines, Arguments, device.index)


def block_simt(
    name: str,
    tile: tuple[int, int, int],
    thread: tuple[int, int],
    min_blocks: int,
    rate: BlockRate,
) -> BlockSimt:
    """A variant; thread: rows and columns of sums that a thread holds."""
    warps = tile[0] // (4 * thread[0]), tile[1] // (8 * thread[1])
    return BlockSimt(
        name=name,
        source="block_simt",
        dtypes=(torch.float32,),
        threads=32 * warps[0] * warps[1],
        shared_bytes=2 * tile[2] * (tile[0] + tile[1] + 2 * _PAD) * 4,
        min_blocks=min_blocks,
        max_nnz=2**63 - 1,
        covering=tile[:2],
        rate=rate,
        defines={
            "TILE_M": tile[0],
            "TILE_N": tile[1],
            "TILE_K": tile[2],
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "THREAD_M": thread[0],
            "THREAD_N": thread[1],
        },
    )
