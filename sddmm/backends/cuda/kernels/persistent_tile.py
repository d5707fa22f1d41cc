"""The base of the tile kernels of Hopper whose blocks stay for many tiles, mostly in clusters."""

from __future__ import annotations

import abc
import ctypes
import functools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from gemm_core.runtime.tensor_map import TensorMap, is_tma_readable, pad_for_tma
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import (
    KernelPlan,
    LaunchFn,
    address,
    make_launch,
    rows_are_contiguous,
)
from sddmm.backends.cuda.kernels.scale_samples.host import (
    SAMPLES_DTYPE,
    SampleFn,
    scaling_us,
    then_scaled,
)
from sddmm.backends.cuda.kernels.tile import (
    ROW_OFFSETS,
    BindOnce,
    LaunchTiles,
    TileKernel,
    tile_args,
)
from sddmm.backends.cuda.layouts import TileList, TileWork
from sddmm.backends.cuda.spec import macros, type_macros
from sddmm.dtypes import HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.backends.cuda.cost_model import DeviceModel
    from sddmm.problem import SddmmProblem

# Blocks of a cluster; they share the longer side of their tiles' operands.
_CLUSTER = 2
# The elements of k that a stage holds: 128 bytes of each row.
BLOCK_K = 64
# The parameters at the end that make the struct as long as it must be.
_UNUSED = 9


class Arguments(ctypes.Structure):
    """The parameters of the kernels: tile_wgmma/kernel.cu and tile_wgmma_async/kernel.cu."""

    _fields_ = [
        ("a", TensorMap),
        ("b", TensorMap),
        *((name, POINTER) for name in ("out", "cols", "perm", "tiles")),
        *ROW_OFFSETS,
        ("head_out", LONG),
        ("alpha", DOUBLE),
        *((name, INT) for name in ("tile_count", "heads", "k")),
        *((f"unused{i}", INT) for i in range(_UNUSED)),
    ]


class KernelArrays(NamedTuple):
    """What a kernel reads of its tiles: arguments by name, and what keeps their memory alive."""

    args: dict[str, int]
    owner: object


class PersistentTileKernel(TileKernel):
    """Serves half types on Hopper, by wgmma on operands that TMA loads.

    Another launch multiplies by S's values: the few warps that store have no time to read them.
    """

    parameters: ClassVar[type[ctypes.Structure]] = Arguments
    # The blocks of a cluster.
    cluster: ClassVar[int] = _CLUSTER

    @property
    def boxes(self) -> tuple[int, int]:
        """The rows of A, and of B, that TMA copies at once: each block of a cluster loads a half of
        the longer side of a tile."""
        block_m, block_n = self.block
        if self.defines["A_IS_SHARED"]:
            return block_m // _CLUSTER, block_n
        return block_m, block_n // _CLUSTER

    def arrays(self, work: TileWork, blocks: int) -> KernelArrays:
        """The tiles and their nonzeros. blocks: of threads, of a problem with one head; the best
        order of tiles may depend on it."""
        return KernelArrays(tile_args(work), work)

    def tiles_us(
        self, problem: SddmmProblem, tiles: int, nnz: int, runs: int, model: DeviceModel
    ) -> float:
        run_us = super().tiles_us(problem, tiles, nnz, runs, model)
        return run_us + scaling_us(problem, model) if problem.scaled else run_us

    def _tiles_of_longest(self, count: int, sm_count: int) -> float:
        """The last tiles are faster where some multiprocessors have none: half of these count."""
        most = ceil_div(count, sm_count)
        return most if count <= sm_count else (most + count / sm_count) / 2

    @abc.abstractmethod
    def sampling(self, work: TileWork, problem: SddmmProblem) -> dict[str, int | bool]:
        """The macros by which the nonzeros of these tiles are sampled."""

    def plan(self, work: TileWork, problem: SddmmProblem, device: Device) -> KernelPlan:
        launcher = _Launcher(self, work, problem, device)
        return KernelPlan(launcher.bind, _accepts, pad_for_tma)

    def once(self, problem: SddmmProblem, device: Device) -> BindOnce:
        if self.parameters is not Arguments:  # of arrays that a plan makes
            return super().once(problem, device)
        return _Once(self, problem, device).bind

    def blocks(self, tiles: TileList, problem: SddmmProblem, device: Device) -> int:
        """The blocks of threads that compute these tiles of each head: as many as run at once."""
        resident = max(1, device.sm_count // self.cluster)
        count = ceil_div(tiles.length * (problem.heads or 1), self.cluster)
        return self.cluster * min(count, resident)

    def tensor_maps(self, a: Tensor, b_t: Tensor) -> tuple[bytes, bytes]:
        """The maps by which TMA copies the operands."""
        rows_a, rows_b = self.boxes
        tensor_map = loader.runtime.tensor_map
        return tensor_map(a, rows_a, BLOCK_K), tensor_map(b_t, rows_b, BLOCK_K)


class _Once:
    """Binds operands for single runs in straight code: what follows from the problem is kept."""

    def __init__(self, spec: PersistentTileKernel, problem: SddmmProblem, device: Device) -> None:
        self._spec, self._problem, self._device = spec, problem, device
        self._sizes = problem.heads or 1, problem.k, *[0] * _UNUSED

    def bind(self, a: Tensor, b_t: Tensor) -> LaunchTiles:
        a, b_t = (x if _accepts(x) else pad_for_tma(x) for x in (a, b_t))
        return functools.partial(self._launch, (a, b_t), self._spec.tensor_maps(a, b_t))

    def _launch(
        self,
        operands: tuple[Tensor, Tensor],  # they may be copies, which live until the launch
        tensor_maps: tuple[bytes, bytes],
        work: TileWork,
        values: int,
        out: int,
        alpha: float,
    ) -> None:
        problem = self._problem
        if not values:
            self._sample(tensor_maps, work, problem.out_dtype, out, alpha)
            return
        sample = functools.partial(self._sample, tensor_maps, work, SAMPLES_DTYPE)
        then_scaled(sample, problem, self._device)(values, out, alpha)

    def _sample(
        self,
        tensor_maps: tuple[bytes, bytes],
        work: TileWork,
        out_dtype: torch.dtype,
        out: int,
        alpha: float,
    ) -> None:
        spec, problem, offsets = self._spec, self._problem, work.row_offsets
        blocks = spec.blocks(work.tiles, problem, self._device)
        sampling = tuple(spec.sampling(work, problem).items())
        kernel = _load(
            loader.runtime, spec, problem.dtype, out_dtype, sampling, self._device.index
        )  # fmt: skip
        kernel(  # in the order of Arguments
            blocks, *tensor_maps, out, work.cols.data_ptr(), address(work.perm),
            work.tiles.coords.data_ptr(), offsets.offsets.data_ptr(), *offsets[1:], problem.nnz,
            alpha, work.tiles.length, *self._sizes,
        )  # fmt: skip


class _Launcher:
    """Binds operands to launches over fixed tiles; there is one with values, one without."""

    def __init__(
        self, spec: PersistentTileKernel, work: TileWork, problem: SddmmProblem, device: Device
    ) -> None:
        self._spec, self._work, self._problem, self._device = spec, work, problem, device
        self._blocks = spec.blocks(work.tiles, problem, device)
        self._arrays = spec.arrays(work, max(1, min(work.tiles.length, self._blocks)))

    def bind(self, a: Tensor, b_t: Tensor) -> LaunchFn:
        tensor_maps = dict(zip(("a", "b"), self._spec.tensor_maps(a, b_t), strict=True))
        expected = self._problem.scaled
        launches = {expected: self._launch(expected, tensor_maps)}

        def launch(values: int, out: int, alpha: float) -> None:
            scaled = values != 0
            if scaled not in launches:
                launches[scaled] = self._launch(scaled, tensor_maps)
            launches[scaled](values, out, alpha)

        return launch

    def _launch(self, scaled: bool, tensor_maps: dict[str, bytes]) -> LaunchFn:
        if scaled:
            sample = self._sample(SAMPLES_DTYPE, tensor_maps)
            return then_scaled(sample, self._problem, self._device)
        sample = self._sample(self._problem.out_dtype, tensor_maps)
        return lambda values, out, alpha: sample(out, alpha)

    def _sample(self, out_dtype: torch.dtype, tensor_maps: dict[str, bytes]) -> SampleFn:
        problem = self._problem
        sampling = self._spec.sampling(self._work, problem)
        kernel = _load(
            loader.runtime, self._spec, problem.dtype, out_dtype, tuple(sampling.items()),
            self._device.index,
        )  # fmt: skip
        return make_launch(kernel, self._blocks, {
            **tensor_maps, **self._arrays.args, "head_out": problem.nnz,
            "heads": problem.heads or 1, "k": problem.k,
        }, ("out", "alpha"))  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _load(
    runtime: loader.CudaRuntime,
    spec: PersistentTileKernel,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    sampling: tuple[tuple[str, int | bool], ...],
    device_index: int,
) -> Kernel:
    """The kernel that samples by these macros; cached, as a first call waits for it."""
    defines = macros({**type_macros(dtype, out_dtype), **spec.defines, **dict(sampling)})
    return runtime.load_kernel(spec, defines, spec.parameters, device_index)


def _accepts(x: Tensor) -> bool:
    return rows_are_contiguous(x) and is_tma_readable(x)


def cluster_tile_facts(
    source: str, block: tuple[int, int], stages: int, other_bytes: int, **defines: int
) -> dict[str, Any]:
    """The facts of a variant that follow from its tile; other_bytes: of shared memory beside the
    stages and their barriers."""
    block_m, block_n = block
    stage_bytes = (block_m + block_n) * BLOCK_K * 2 + 16
    return wgmma_tile_facts(
        source, block, stages * stage_bytes + other_bytes, STAGES=stages, CLUSTER_BLOCKS=_CLUSTER,
        A_IS_SHARED=block_m > block_n, **defines,
    )  # fmt: skip


def wgmma_tile_facts(
    source: str, block: tuple[int, int], shared_bytes: int, **defines: int | bool
) -> dict[str, Any]:
    """The facts of a variant that follow from its tile."""
    block_m, block_n = block
    return {
        "name": f"{source}_{block_m}x{block_n}x{BLOCK_K}",
        "source": source,
        "dtypes": HALF_DTYPES,
        "threads": 384,
        "tile": (block_m, block_n, BLOCK_K),
        "shared_bytes": shared_bytes,
        "min_capability": (9, 0),
        "max_capability": (9, 0),
        "min_k": 1,
        "defines": {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": BLOCK_K, **defines},
    }
