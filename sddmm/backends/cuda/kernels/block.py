"""The base of the kernels of block patterns, which compute whole blocks and read no nonzeros."""

from __future__ import annotations

import abc
import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import (
    KernelPlan,
    LaunchFn,
    make_launch,
    operand_args,
    rows_are_contiguous,
)
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.spec import KernelSpec

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

_INT32 = 2**31
# Warps step past the end of k by a few steps.
_MAX_K = _INT32 - 2**10


class Arguments(ctypes.Structure):
    """The parameters of the block kernels (block_tile.cuh)."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "rows", "cols")),
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        ("tile_count", LONG),
        *((name, INT) for name in ("block_count", "block_m", "block_n")),
        *((name, INT) for name in ("tiles_down", "tiles_across", "k")),
        ("alpha", DOUBLE),
    ]


@dataclass(frozen=True, eq=False)
class BlockRate:
    """The speed of a block kernel on an H200: flops per second of whole tiles, however many of
    their rows and columns are a block's."""

    flops: float


@dataclass(frozen=True, eq=False)
class BlockKernel(KernelSpec, abc.ABC):
    """A kernel that computes every block by tiles that cover it.

    covering: rows and columns of a tile. tiles_per_block: tiles that one block of threads computes.
    """

    covering: tuple[int, int] = (0, 0)
    tiles_per_block: int = 1
    rate: BlockRate = BlockRate(1.0)

    @abc.abstractmethod
    def specialise(self, problem: SddmmProblem, device: Device, alignment: int) -> Kernel:
        """The kernel for operands whose rows start at multiples of `alignment` bytes."""

    def refuses(self, problem: SddmmProblem, device: Device) -> str | None:
        if problem.blocksize is None:
            return "computes block patterns (SparsePattern.from_bsr, torch BSR tensors)"
        reason = super().refuses(problem, device)
        if reason is not None:
            return reason
        if self.tile_count(problem) >= _INT32:
            return f"counts tiles in 32 bits, got {self.tile_count(problem)}"
        if problem.k > _MAX_K:
            return f"counts k in 32 bits, beyond its end, got {problem.k}"
        return None

    def tiles_of_block(self, problem: SddmmProblem) -> tuple[int, int]:
        """The tiles down and across a block."""
        assert problem.blocksize is not None
        (bm, bn), (down, across) = problem.blocksize, self.covering
        return ceil_div(bm, down), ceil_div(bn, across)

    def tile_count(self, problem: SddmmProblem) -> int:
        assert problem.blocksize is not None
        down, across = self.tiles_of_block(problem)
        blocks = problem.nnz // (problem.blocksize[0] * problem.blocksize[1])
        return blocks * down * across * (problem.heads or 1)

    def block_cost(self, problem: SddmmProblem, model: DeviceModel) -> Cost:
        """The predicted microseconds of a run: the tiles, and the values that are stored."""
        flops = 2 * self.tile_count(problem) * self.covering[0] * self.covering[1] * problem.k
        stored = (problem.heads or 1) * problem.nnz * problem.out_dtype.itemsize
        computing = flops / (self.rate.flops * model.tensor_cores)
        return Cost(model.launch_us + 1e6 * (computing + stored / model.memory_bytes))

    def plan_blocks(self, blocks: Nonzeros, problem: SddmmProblem, device: Device) -> KernelPlan:
        """The launch that computes these blocks: their block rows and block columns, in order."""
        assert problem.blocksize is not None
        down, across = self.tiles_of_block(problem)
        tiles = self.tile_count(problem)
        fixed = {
            "block_count": blocks.cols.numel(), "block_m": problem.blocksize[0],
            "block_n": problem.blocksize[1], "tiles_down": down, "tiles_across": across,
            "tile_count": tiles, "head_out": problem.nnz, "k": problem.k,
        }  # fmt: skip

        def bind(a: Tensor, b_t: Tensor) -> LaunchFn:
            args, alignment = operand_args(a, b_t)
            kernel = self.specialise(problem, device, alignment)
            return make_launch(kernel, ceil_div(tiles, self.tiles_per_block), {
                **args, **fixed, "rows": blocks.rows.data_ptr(), "cols": blocks.cols.data_ptr(),
            })  # fmt: skip

        return KernelPlan(bind, rows_are_contiguous)
