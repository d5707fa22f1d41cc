"""tile_wgmma_async: dense tiles by wgmma, which warps of their own store."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel, ceil_div
from gemm_core.runtime.tensor_map import TensorMap, is_tma_readable, pad_for_tma
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import TileRate
from sddmm.backends.cuda.executor import KernelPlan, LaunchFn, make_launch, rows_are_contiguous
from sddmm.backends.cuda.kernels.tile import ROW_OFFSETS, TileKernel, tile_args
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.spec import macros, type_macros
from sddmm.dtypes import HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# Blocks of a cluster; they share the longer side of their tiles' operands.
_CLUSTER = 2

# The lanes that sample a row of few nonzeros together, and the nonzeros of a row that each of them
# may prefetch, as its registers allow; a whole warp samples a longer row.
_LANES_PER_ROW, _MAX_DEPTH = 8, 4
_WARP_LANES, _WARP_DEPTHS = 32, (2, 4)
# Rows are stored as segments where runs of consecutive columns have at least so many nonzeros.
_SEGMENT_NNZ = 4


class Arguments(ctypes.Structure):
    """The parameters of tile_wgmma_async/kernel.cu."""

    _fields_ = [
        ("a", TensorMap),
        ("b", TensorMap),
        *((name, POINTER) for name in ("values", "out", "cols", "perm", "tiles")),
        *ROW_OFFSETS,
        ("head_out", LONG),
        ("alpha", DOUBLE),
        *((name, INT) for name in ("tile_count", "heads", "k")),
        *((f"unused{i}", INT) for i in range(7)),
    ]


def sampling_macros(
    nnz: int, rows: int, distinct: bool = False, runs: int = 0
) -> dict[str, int | bool]:
    """How the nonzeros of `rows` rows of tiles are sampled.

    distinct: columns strictly ascend within a row of the pattern. runs: the number of its runs of
    consecutive columns, 0 if unknown.
    """
    mean = nnz / max(1, rows)
    spread = math.sqrt(mean)
    segments = distinct and nnz >= _SEGMENT_NNZ * runs > 0
    if mean + spread <= _LANES_PER_ROW * _MAX_DEPTH and not segments:
        lanes = _LANES_PER_ROW
        depth = min(_MAX_DEPTH, math.ceil((mean + 2 * spread) / lanes) or 1)
    else:
        lanes = _WARP_LANES
        depth = _WARP_DEPTHS[mean + 2 * spread > lanes * _WARP_DEPTHS[0]]
    return {"LANES_PER_ROW": lanes, "PREFETCH_DEPTH": depth, "SEGMENTS": segments}


class TileWgmmaAsync(TileKernel):
    """Serves half types on Hopper; ahead of tile_wgmma where k is 256 and more."""

    def plan(self, work: TileWork, problem: SddmmProblem, device: Device) -> KernelPlan:
        launcher = _Launcher(self, work, problem, device)
        return KernelPlan(launcher.bind, _accepts, pad_for_tma)


class _Launcher:
    """Binds operands to launches over fixed tiles; there is one kernel with values, one without."""

    def __init__(
        self, spec: TileWgmmaAsync, work: TileWork, problem: SddmmProblem, device: Device
    ) -> None:
        self._spec, self._work, self._problem, self._device = spec, work, problem, device
        heads = problem.heads or 1
        resident = max(1, device.sm_count // _CLUSTER)
        self._blocks = _CLUSTER * min(ceil_div(work.tiles.length * heads, _CLUSTER), resident)
        self._kernels: dict[bool, Kernel] = {}

    def bind(self, a: Tensor, b_t: Tensor) -> LaunchFn:
        tensor_maps = self._tensor_maps(a, b_t)
        launches = {False: self._launch(False, tensor_maps)}

        def launch(values: int, out: int, alpha: float) -> None:
            weighted = values != 0
            if weighted not in launches:
                launches[weighted] = self._launch(weighted, tensor_maps)
            launches[weighted](values, out, alpha)

        return launch

    def _tensor_maps(self, a: Tensor, b_t: Tensor) -> dict[str, bytes]:
        """The maps of both operands; each block of a cluster loads a half of the longer side."""
        block_m, block_n, block_k = self._spec.tile
        shares_a = self._spec.defines["A_IS_SHARED"]
        rows_a = block_m // _CLUSTER if shares_a else block_m
        rows_b = block_n if shares_a else block_n // _CLUSTER
        return {
            "a": loader.runtime.tensor_map(a, rows_a, block_k),
            "b": loader.runtime.tensor_map(b_t, rows_b, block_k),
        }

    def _launch(self, weighted: bool, tensor_maps: dict[str, bytes]) -> LaunchFn:
        problem = self._problem
        return make_launch(self._kernel(weighted), self._blocks, {
            **tensor_maps, **tile_args(self._work), "head_out": problem.nnz,
            "heads": problem.heads or 1, "k": problem.k,
        })  # fmt: skip

    def _kernel(self, weighted: bool) -> Kernel:
        if weighted not in self._kernels:
            work, problem = self._work, self._problem
            rows = work.tiles.length * self._spec.tile[0]
            # Tiles of more rows take the registers that finding segments needs.
            distinct = work.distinct and work.perm is None and self._spec.tile[0] <= 128
            defines = macros({
                **type_macros(problem.dtype, problem.out_dtype), **self._spec.defines,
                **sampling_macros(problem.nnz, rows, distinct, work.runs), "WEIGHTED": weighted,
            })  # fmt: skip
            self._kernels[weighted] = loader.runtime.load_kernel(
                self._spec, defines, Arguments, self._device.index
            )
        return self._kernels[weighted]


def _accepts(x: Tensor) -> bool:
    return rows_are_contiguous(x) and is_tma_readable(x)


class StagingSlots(NamedTuple):
    """Slots of 32 rows of sums in shared memory (staging_ring.cuh): their number for each of two
    warpgroups, and the bytes from row to row."""

    slots: int
    pitch: int

    @property
    def bytes(self) -> int:
        return 2 * self.slots * (32 * self.pitch + 16)


def tile_wgmma_async(
    block: tuple[int, int],
    stages: int,
    float_slots: StagingSlots,
    half_slots: StagingSlots,
    rate: TileRate,
    lead: int,
) -> TileWgmmaAsync:
    """A variant; the slots hold float sums, or sums of two bytes. lead: the stages by which the
    second warpgroup follows the first."""
    (block_m, block_n), block_k = block, 64
    stage_bytes = (block_m + block_n) * block_k * 2 + 16
    return TileWgmmaAsync(
        name=f"tile_wgmma_async_{block_m}x{block_n}x{block_k}",
        source="tile_wgmma_async",
        dtypes=HALF_DTYPES,
        threads=384,
        tile=(block_m, block_n, block_k),
        shared_bytes=stages * stage_bytes + 16 + max(float_slots.bytes, half_slots.bytes),
        min_capability=(9, 0),
        max_capability=(9, 0),
        min_k=1,
        rate=rate,
        defines={
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "STAGES": stages,
            "LEAD": lead,
            "CLUSTER_BLOCKS": _CLUSTER,
            "A_IS_SHARED": block_m > block_n,
            "FLOAT_SLOTS": float_slots.slots,
            "FLOAT_PITCH": float_slots.pitch,
            "HALF_SLOTS": half_slots.slots,
            "HALF_PITCH": half_slots.pitch,
        },
    )
