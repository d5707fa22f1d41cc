"""hybrid: dense tiles by a tile kernel, all other nonzeros by row_gather.

It has no source of its own: it is a kernel made of two, which launch one after the other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.cost_model import LIST_TILES_LAUNCHES, Cost, DeviceModel, sort_us
from sddmm.backends.cuda.facts import PatternFacts, UniformFacts
from sddmm.backends.cuda.kernels.row_gather.costs import (
    L2_FRACTION,
    gather_us,
    parts_per_nonzero,
)
from sddmm.backends.cuda.kernels.row_gather.host import RowGather
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.spec import GpuKernel, Layouts

if TYPE_CHECKING:
    from sddmm.backends.cuda.executor import KernelPlan
    from sddmm.problem import SddmmProblem

# Predictions are divided by this: two launches must promise so much less than a single kernel.
_WORTH_TWO_LAUNCHES = 0.9
# The most nonzeros of a tile that are told apart: more tiles are never dense.
_MAX_CLASS = 30


class _Split(NamedTuple):
    """Which tile kernel computes the tiles of at least 2^dense_class nonzeros; how many these are,
    how many nonzeros they hold, and what the run takes."""

    kernel: TileKernel
    dense_class: int
    dense: int
    nnz_in_dense: int
    run_us: float


class Hybrid:
    """Pays where a pattern has dense blocks among scattered nonzeros."""

    needs_uniform = False

    def __init__(self, name: str, tile_kernels: tuple[TileKernel, ...], gather: RowGather) -> None:
        self.name = name
        self._tile_kernels = tuple(kernel for kernel in tile_kernels if kernel.rate is not None)
        self._gather = gather

    @property
    def parts(self) -> tuple[GpuKernel, ...]:
        return (*self._tile_kernels, self._gather)

    @property
    def tile_sizes(self) -> tuple[tuple[int, int], ...]:
        return tuple(kernel.block for kernel in self._tile_kernels)

    def refuses(self, problem: SddmmProblem, device: Device) -> str | None:
        if all(kernel.refuses(problem, device) for kernel in self._tile_kernels):
            return f"no tile kernel computes {problem.dtype}"
        return self._gather.refuses(problem, device)

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> None:
        return None  # the dense tiles must be known

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        if facts is None or facts.is_uniform:
            return None
        split = self._split(problem, facts, model)
        if split is None or not 0 < split.nnz_in_dense < problem.nnz:
            return None
        prepare_us = sort_us(problem.nnz, model) + LIST_TILES_LAUNCHES * model.launch_us
        return Cost(split.run_us / _WORTH_TWO_LAUNCHES, prepare_us)

    def prepare(
        self, layouts: Layouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        split = self._split(problem, layouts.facts(), model)
        if split is None:  # too many tiles of any size to be counted together
            uniform = UniformFacts((problem.m, problem.n), problem.nnz)
            split = self._split(problem, uniform, model)
        assert split is not None, "some tile kernel serves"
        block, min_nnz = split.kernel.block, 2**split.dense_class
        # In this order: where another launch multiplies what tiles stored by S's values, it takes
        # all nonzeros, and the gather overwrites its own.
        return (
            split.kernel.plan(layouts.tiles(block, min_nnz), problem, model.device),
            self._gather.plan(layouts.outside_tiles(block, min_nnz), problem, model.device),
        )

    def _split(
        self, problem: SddmmProblem, facts: PatternFacts, model: DeviceModel
    ) -> _Split | None:
        """The split that takes the least time, one into two parts if there is any; None if the
        tiles of no kernel are counted."""
        splits = [
            split
            for kernel in self._tile_kernels
            if kernel.refuses(problem, model.device) is None
            and (split := self._split_by(kernel, problem, facts, model)) is not None
        ]
        in_two = [split for split in splits if 0 < split.nnz_in_dense < problem.nnz]
        return min(in_two or splits, key=lambda split: split.run_us, default=None)

    def _split_by(
        self, kernel: TileKernel, problem: SddmmProblem, facts: PatternFacts, model: DeviceModel
    ) -> _Split | None:
        counts = facts.tiles(kernel.block)
        if counts is None:
            return None
        runs = facts.runs / max(1, problem.nnz) if facts.ascends else 1.0  # per nonzero
        dense_class = _dense_class(kernel, problem, runs, model)
        dense, nnz = counts.from_class(dense_class)
        run_us = kernel.tiles_us(problem, dense, nnz, round(runs * nnz), model)
        parts = parts_per_nonzero(facts, problem.nnz)
        run_us += gather_us(problem, problem.nnz - nnz, model, parts)
        run_us += _read_again_us(kernel, problem, dense, problem.nnz - nnz, model)
        return _Split(kernel, dense_class, dense, nnz, run_us)


def _read_again_us(
    kernel: TileKernel, problem: SddmmProblem, tiles: int, gathered: int, model: DeviceModel
) -> float:
    """Reading from memory the rows of so many tiles, as far as so many nonzeros that are gathered
    have them too, that L2 does not keep for the second launch."""
    (block_m, block_n), heads = kernel.block, problem.heads or 1
    rows = min(problem.m, tiles * block_m, gathered) + min(problem.n, tiles * block_n, gathered)
    operand_bytes = heads * rows * problem.k * problem.dtype.itemsize
    return 1e6 * max(0.0, operand_bytes - L2_FRACTION * model.device.l2_bytes) / model.memory_bytes


def _dense_class(kernel: TileKernel, problem: SddmmProblem, runs: float, model: DeviceModel) -> int:
    """The class of tiles, by the logarithm of their nonzeros, from which on computing a tile takes
    less than gathering them. runs: runs of consecutive columns per nonzero."""
    assert kernel.rate is not None
    gathered_us = 1e6 * problem.k * problem.dtype.itemsize / model.l2_bytes
    scaled_ps = kernel.rate.scaled_ps if problem.scaled else 0.0
    stored_ps = kernel.rate.nonzero_ps + runs * kernel.rate.run_ps + scaled_ps
    stored_us = 1e-6 * stored_ps / model.stores
    saved_us = gathered_us - stored_us  # per nonzero of a tile that is computed
    if saved_us <= 0:
        return _MAX_CLASS
    return max(0, min(_MAX_CLASS, round(math.log2(kernel.one_tile_us(problem, model) / saved_us))))
