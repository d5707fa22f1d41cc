"""hybrid: dense tiles by a tile kernel, all other nonzeros by row_gather.

It has no source of its own: it is a kernel made of two, which launch one after the other.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.cost_model import Cost, DeviceModel, TileStats, sort_us
from sddmm.backends.cuda.kernels.row_gather.host import RowGather, gather_us
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.spec import AnalysisRequest, GpuKernel, Layouts

if TYPE_CHECKING:
    from sddmm.backends.cuda.executor import KernelPlan
    from sddmm.problem import SddmmProblem

# Predictions are divided by this: two launches must promise so much less than a single kernel.
_WORTH_TWO_LAUNCHES = 0.9


class Hybrid:
    """Pays where a pattern has dense blocks among scattered nonzeros."""

    def __init__(self, name: str, tile_kernels: tuple[TileKernel, ...], gather: RowGather) -> None:
        self.name = name
        self._tile_kernels = tuple(kernel for kernel in tile_kernels if kernel.rate is not None)
        self._gather = gather
        self._tile_kernel = functools.lru_cache(maxsize=256)(self._fastest_tile_kernel)

    @property
    def parts(self) -> tuple[GpuKernel, ...]:
        return (*self._tile_kernels, self._gather)

    def refuses(self, problem: SddmmProblem, device: Device) -> str | None:
        if all(kernel.refuses(problem, device) for kernel in self._tile_kernels):
            return f"no tile kernel computes {problem.dtype}"
        return self._gather.refuses(problem, device)

    def needs(self, problem: SddmmProblem, model: DeviceModel) -> AnalysisRequest:
        return self._tile_kernel(problem, model).needs(problem, model)

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> None:
        return None  # the dense tiles must be known

    def cost_us(
        self, problem: SddmmProblem, stats: TileStats | None, model: DeviceModel
    ) -> Cost | None:
        if stats is None or not 0 < stats.nnz_in_dense < problem.nnz:
            return None
        tile_kernel = self._tile_kernel(problem, model)
        run_us = tile_kernel.tiles_us(problem, stats.dense, model)
        run_us += gather_us(problem, problem.nnz - stats.nnz_in_dense, model)
        return Cost(run_us / _WORTH_TWO_LAUNCHES, sort_us(problem.nnz, model))

    def prepare(
        self, layouts: Layouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        tiles, rest = layouts.tiles(dense_only=True), layouts.outside_dense_tiles()
        tile_kernel = self._tile_kernel(problem, model)
        return (
            tile_kernel.plan(tiles, problem, model.device),
            self._gather.plan(rest, problem, model.device),
        )

    def _fastest_tile_kernel(self, problem: SddmmProblem, model: DeviceModel) -> TileKernel:
        """The tile kernel with the least time for all of the matrix."""

        def whole_us(kernel: TileKernel) -> float:
            return kernel.tiles_us(problem, kernel.tiles(problem.m, problem.n), model)

        serving = (k for k in self._tile_kernels if not k.refuses(problem, model.device))
        return min(serving, key=whole_us)
