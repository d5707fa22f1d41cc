"""The base of all tile kernels, which compute dense tiles and store the sampled entries."""

from __future__ import annotations

import abc
import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.addressing import fits_32bit_offsets
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import (
    LIST_TILES_LAUNCHES,
    Cost,
    DeviceModel,
    TileRate,
    are_segments,
    further_rounds,
    sort_us,
    unaligned_factor,
)
from sddmm.backends.cuda.executor import (
    KernelPlan,
    LaunchFn,
    address,
    make_launch,
    operand_args,
    row_pitch,
    rows_are_contiguous,
)
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.row_gather.loads import LINE_BYTES
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.spec import (
    AnalysisRequest,
    KernelSpec,
    Layouts,
    macros,
    type_macros,
)

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

_INT32 = 2**31
# What divides the addresses of all rows of aligned operands, in bytes.
ALIGNED = 16

# The time of a block from its launch to its end where it finds its tile empty: of two loads that
# depend on each other. And the part of it for each further head, whose loads find the same in L2.
_SKIP_US, _FURTHER_SKIP = 2.1, 0.5

LaunchTiles = Callable[[TileWork, int, int, float], None]
"""launch(work, values, out, alpha): launch on bound operands when the pattern is analysed. values,
out: addresses."""

BindOnce = Callable[[Tensor, Tensor], LaunchTiles]
"""bind(a, b_t): bind operands for a single run."""

# The members of TileOffsets (tile_offsets.cuh).
ROW_OFFSETS = (
    ("row_offsets.offsets", POINTER),
    ("row_offsets.tile_stride", LONG),
    ("row_offsets.tile_row_stride", LONG),
    ("row_offsets.tile_column_stride", INT),
    ("row_offsets.row_stride", INT),
)


@dataclass(frozen=True, eq=False)
class TileKernel(KernelSpec, abc.ABC):
    """A kernel that computes whole tiles. Without a `rate` it serves on request only."""

    rate: TileRate | None = None

    @abc.abstractmethod
    def plan(self, work: TileWork, problem: SddmmProblem, device: Device) -> KernelPlan:
        """The launch that computes these tiles of the problem."""

    def once(self, problem: SddmmProblem, device: Device) -> BindOnce:
        """What binds operands for single runs, while their patterns are analysed. A subclass that
        is quick on small problems makes no plan."""

        def launch(
            a: Tensor, b_t: Tensor, work: TileWork, values: int, out: int, alpha: float
        ) -> None:
            plan = self.plan(work, problem, device)
            a, b_t = (x if plan.accepts(x) else plan.to_accepted(x) for x in (a, b_t))
            plan.bind(a, b_t)(values, out, alpha)

        return lambda a, b_t: functools.partial(launch, a, b_t)

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> AnalysisRequest | None:
        request = AnalysisRequest(self.tile[:2], tile_row_offsets=True)
        fits = request.offset_count((problem.m, problem.n)) < _INT32
        return request if fits else None

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        counts = None if facts is None or self.rate is None else facts.tiles(self.block)
        if facts is None or counts is None:
            return None
        # Nonzeros that must be sorted are stored one by one.
        runs = facts.runs if facts.ascends else problem.nnz
        prepare_us = LIST_TILES_LAUNCHES * model.launch_us
        if not facts.ascends:
            prepare_us += sort_us(problem.nnz, model)
        run_us = self.tiles_us(problem, counts.nonempty, problem.nnz, runs, model)
        run_us += counts.launched_empty * self._empty_tile_us(problem, model)
        return Cost(run_us, prepare_us)

    def prepare(
        self, layouts: Layouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        return (self.plan(layouts.tiles(self.block), problem, model.device),)

    @property
    def tile_sizes(self) -> tuple[tuple[int, int], ...]:
        return () if self.rate is None else (self.block,)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a tile."""
        return self.tile[:2]

    def tiles_us(
        self, problem: SddmmProblem, tiles: int, nnz: int, runs: int, model: DeviceModel
    ) -> float:
        """Computing so many tiles with so many nonzeros, in so many runs of consecutive columns.

        The multiprocessor with the most tiles takes longest. Blocks that share it hide each other's
        latencies; a block alone runs at half the rate of all that could be there.
        """
        assert self.rate is not None
        heads, sm_count = problem.heads or 1, model.device.sm_count
        count = heads * tiles
        if count == 0 or nnz == 0:
            return model.launch_us
        per_sm = max(self._tiles_of_longest(count, sm_count), ceil_div(self.min_blocks, 2))
        tile_us = self._stored_tile_us(problem, nnz / tiles, runs / tiles, model)
        return model.launch_us + self.rate.start_us + per_sm * sm_count * tile_us

    def _tiles_of_longest(self, count: int, sm_count: int) -> float:
        """How many of so many tiles the multiprocessor with the most has, in the time of each."""
        return ceil_div(count, sm_count)

    def _stored_tile_us(
        self, problem: SddmmProblem, nnz: float, runs: float, model: DeviceModel
    ) -> float:
        """The time of a tile, of its nonzeros and runs."""
        assert self.rate is not None
        rate, (block_m, block_n), segments = self.rate, self.block, are_segments(nnz, runs)
        scaled_ps = 0.0
        if problem.scaled:
            scaled_ps = nnz * (rate.scaled_segment_ps if segments else rate.scaled_ps)
        fixed_us = rate.segment_us if segments else None
        if rate.full_us is not None and nnz == block_m * block_n:
            fixed_us = rate.full_us
        if fixed_us is not None:
            return self.one_tile_us(problem, model, fixed_us, 1e-6 * scaled_ps / model.stores)
        rounds = block_m * further_rounds(nnz / block_m)
        ps = nnz * rate.nonzero_ps + runs * rate.run_ps + rounds * rate.round_ps + scaled_ps
        return self.one_tile_us(problem, model, stored_us=1e-6 * ps / model.stores)

    def timed_k(self, k: int) -> int:
        """The elements of k of whole stages in the time that k takes."""
        return ceil_div(k, self.tile[2]) * self.tile[2]

    @property
    def skips_empty_tiles(self) -> bool:
        """Whether a block ends at once if its tile turns out to have no nonzeros."""
        return False

    def _empty_tile_us(self, problem: SddmmProblem, model: DeviceModel) -> float:
        """Launching a tile without nonzeros, of all heads."""
        heads = problem.heads or 1
        if not self.skips_empty_tiles:
            return heads * self.one_tile_us(problem, model)
        first_us = _SKIP_US / (model.device.sm_count * self.min_blocks)
        return first_us * (1 + _FURTHER_SKIP * (heads - 1))

    def one_tile_us(
        self,
        problem: SddmmProblem,
        model: DeviceModel,
        fixed_us: float | None = None,
        stored_us: float = 0.0,
    ) -> float:
        """The time of a tile, where as many run as the device holds. fixed_us: another than that
        of most patterns. stored_us: by which storing its nonzeros lengthens it."""
        assert self.rate is not None, f"{self.name} has no measured rate"
        block_m, block_n, _ = self.tile
        k = self.timed_k(problem.k)
        arithmetic_us = 2e6 * block_m * block_n * k / (self.rate.flops * model.tensor_cores)
        row_bytes = problem.k * problem.dtype.itemsize
        arithmetic_us *= unaligned_factor(self.rate.unaligned, row_bytes)
        if row_bytes % LINE_BYTES:
            arithmetic_us *= self.rate.within_lines
        fixed_us = self.rate.fixed_us if fixed_us is None else fixed_us
        return self.rate.combined_us(arithmetic_us, fixed_us / model.tensor_cores + stored_us)


def tile_args(work: TileWork) -> dict[str, int]:
    """The arguments that list the tiles and locate the nonzeros of each of their rows."""
    offsets = work.row_offsets
    return {
        "cols": work.cols.data_ptr(),
        "perm": address(work.perm),
        "tiles": work.tiles.coords.data_ptr(),
        "tile_count": work.tiles.length,
        "row_offsets.offsets": offsets.offsets.data_ptr(),
        "row_offsets.tile_stride": offsets.tile_stride,
        "row_offsets.tile_row_stride": offsets.tile_row_stride,
        "row_offsets.tile_column_stride": offsets.tile_column_stride,
        "row_offsets.row_stride": offsets.row_stride,
    }


class Arguments(ctypes.Structure):
    """The parameters of every BlockTileKernel: TileArguments of tile_kernel.cuh."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "cols", "perm", "tiles")),
        ("is_invalid", POINTER),
        *ROW_OFFSETS,
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("tile_count", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


class BlockTileKernel(TileKernel):
    """A tile kernel of which each block computes one tile, whose operands cp.async loads."""

    @property
    def skips_empty_tiles(self) -> bool:
        return True

    def main_loop(
        self, problem: SddmmProblem, device: Device, segments: bool
    ) -> dict[str, str | int | bool]:
        """The macros of the main loop. segments: whether rows are stored as segments."""
        return {**self.defines, "BLOCK_K": self.tile[2], "MIN_BLOCKS": self.min_blocks}

    def stores_segments(self, aligned: bool) -> bool:
        """Whether it can store rows as segments. aligned: of the operands, to 16 bytes."""
        return True

    def plan(self, work: TileWork, problem: SddmmProblem, device: Device) -> KernelPlan:
        blocks = work.tiles.length * (problem.heads or 1)

        def bind(a: Tensor, b_t: Tensor) -> LaunchFn:
            args, alignment = operand_args(a, b_t)
            aligned = alignment == ALIGNED
            storing = row_storing(work, problem.nnz, self.block[0], self.stores_segments(aligned))
            kernel = specialise(loader.runtime, self, problem, device, aligned, storing)
            return make_launch(kernel, blocks, {
                **args, **tile_args(work), "head_out": problem.nnz,
                "is_invalid": 0, "m": problem.m, "n": problem.n, "k": problem.k,
            })  # fmt: skip

        return KernelPlan(bind, _accepts)

    def once(self, problem: SddmmProblem, device: Device) -> BindOnce:
        return _Once(self, problem, device).bind


class _Once:
    """Binds operands for single runs in straight code: what follows from the problem is kept."""

    def __init__(self, spec: BlockTileKernel, problem: SddmmProblem, device: Device) -> None:
        self._spec, self._problem, self._device = spec, problem, device
        self._heads, self._sizes = problem.heads or 1, (problem.m, problem.n, problem.k)
        # A problem takes long to hash, as `specialise` must.
        self._kernels: dict[tuple[bool, RowStoring], Kernel] = {}

    def bind(self, a: Tensor, b_t: Tensor) -> LaunchTiles:
        a, b_t = (x if _accepts(x) else x.contiguous() for x in (a, b_t))
        args, alignment = operand_args(a, b_t)
        return functools.partial(self._launch, (a, b_t), args, alignment == ALIGNED)

    def _launch(
        self,
        operands: tuple[Tensor, Tensor],  # they may be copies, which live until the launch
        args: dict[str, int],
        aligned: bool,
        work: TileWork,
        values: int,
        out: int,
        alpha: float,
    ) -> None:
        spec, offsets, nnz = self._spec, work.row_offsets, self._problem.nnz
        count = work.tiles.length
        storing = row_storing(work, nnz, spec.block[0], spec.stores_segments(aligned))
        kernel = self._kernels.get((aligned, storing))
        if kernel is None:
            kernel = specialise(loader.runtime, spec, self._problem, self._device, aligned, storing)
            self._kernels[aligned, storing] = kernel
        kernel(  # in the order of Arguments
            count * self._heads, args["a"], args["b"], values, out, work.cols.data_ptr(),
            address(work.perm), work.tiles.coords.data_ptr(), 0, offsets.offsets.data_ptr(),
            *offsets[1:], args["pitch_a"], args["pitch_b"], args["head_a"], args["head_b"], nnz,
            count, *self._sizes, alpha,
        )  # fmt: skip


class RowStoring(NamedTuple):
    """How the rows of a tile are stored: as segments of consecutive columns, or by eight lanes each
    with so many nonzeros of a lane prefetched."""

    segments: bool
    prefetch_depth: int

    @property
    def macros(self) -> dict[str, int | bool]:
        return {"SEGMENTS": self.segments, "PREFETCH_DEPTH": self.prefetch_depth}


def row_storing(work: TileWork, nnz: int, block_m: int, segments: bool = True) -> RowStoring:
    """As segments, where rows mostly are such; else as much is prefetched as the mean row needs."""
    is_mask = work.distinct and work.perm is None and are_segments(nnz, work.runs)
    if is_mask and segments:
        return RowStoring(True, 1)
    return scattered(nnz, work.tiles.length, block_m)


def scattered(nnz: int, tiles: int, block_m: int) -> RowStoring:
    """How rows of any columns are stored, in so many tiles of block_m rows."""
    mean = nnz / max(1, tiles * block_m)
    return RowStoring(False, next((depth for depth in (1, 2) if mean <= 6 * depth), 4))


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    spec: BlockTileKernel,
    problem: SddmmProblem,
    device: Device,
    aligned: bool,
    storing: RowStoring,
) -> Kernel:
    """The kernel for operands whose rows are aligned to 16 bytes, or not; cached, as every pattern
    of a problem has the same, and a first call waits for it."""
    defines: dict[str, Any] = {
        **type_macros(problem.dtype, problem.out_dtype),
        "BLOCK_M": spec.block[0], "BLOCK_N": spec.block[1],
        "ALIGNED_A": aligned, "ALIGNED_B": aligned, **storing.macros,
        **spec.main_loop(problem, device, storing.segments),
    }  # fmt: skip
    return runtime.load_kernel(spec, macros(defines), Arguments, device.index)


def block_tile_facts(
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    min_blocks: int,
    itemsize: int,
    pad: int = 0,
) -> dict[str, Any]:
    """The facts that follow from a block's tile; its sums take the shared memory of the stages
    when these have been read. pad: elements between rows of a stage."""
    block_m, block_n, block_k = tile
    stage_bytes = (block_m + block_n) * (block_k + pad) * itemsize
    return {
        "threads": 32 * warps[0] * warps[1],
        "tile": tile,
        "shared_bytes": max(stages * stage_bytes, block_m * block_n * 4),
        "min_blocks": min_blocks,
    }


def _accepts(x: Tensor) -> bool:
    return rows_are_contiguous(x) and fits_32bit_offsets(x, row_pitch(x))
