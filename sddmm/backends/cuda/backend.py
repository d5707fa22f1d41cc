"""The GPU kernels of this package, as one backend."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gemm_core.runtime.device import Device
from sddmm.backends.base import MANY_CALLS, FirstRun
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.block_planner import BlockPlanner, BlockProducts
from sddmm.backends.cuda.executor import GpuExecutor
from sddmm.backends.cuda.kernels.column_runs.host import looks_like_mask
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.registry import (
    ATTENTION_KERNELS,
    BLOCK_KERNELS,
    KERNELS,
    SPMM_KERNELS,
)
from sddmm.backends.cuda.kernels.row_gather.host import RowGather
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES
from sddmm.backends.cuda.kernels.tile import BlockTileKernel, TileKernel
from sddmm.backends.cuda.one_off import OneOffPlanner
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.backends.cuda.single_run import MakeRuns, SingleRun, form_of_runs
from sddmm.backends.cuda.spec import AttentionKernel, GpuKernel, ProductKernel
from sddmm.backends.cuda.tile_costs import runs_at_once, tiles_pay
from sddmm.backends.cuda.tiled_run import TiledRun, TilesAtOnce
from sddmm.memory import out_of_memory
from sddmm.problem import alike

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, Problem, SddmmProblem, SpmmProblem
    from sddmm.sparse.pattern import SparsePattern


E = TypeVar("E")

_log = logging.getLogger(__name__)


class CudaBackend:
    """Serves every problem on a CUDA device that a kernel computes."""

    name = "cuda"
    plans_by_calls = True

    def __init__(
        self,
        kernels: Mapping[str, GpuKernel] = KERNELS,
        product_kernels: Mapping[str, ProductKernel] = SPMM_KERNELS,
        attention_kernels: Mapping[str, AttentionKernel] = ATTENTION_KERNELS,
    ) -> None:
        self.planner: Planner[SddmmProblem, GpuExecutor] = Planner(kernels, GpuExecutor)
        self.products: Planner[SpmmProblem, ProductExecutor] = Planner(
            product_kernels, ProductExecutor
        )
        self.attention: Planner[AttentionProblem, AttentionExecutor] = Planner(
            attention_kernels, AttentionExecutor
        )
        self.one_off = OneOffPlanner(tuple(kernels.values()))
        self.blocks = BlockPlanner(BLOCK_KERNELS)
        self.block_products = BlockProducts(SPMM_TILES)
        self._single_runs = functools.lru_cache(maxsize=1024)(self._find_single_runs)

    @property
    def kernels(self) -> Sequence[str]:
        return (*self.planner.kernels, *self.blocks.kernels)

    def available(self) -> str | None:
        return loader.runtime.unavailable()

    def refuses(self, problem: SddmmProblem) -> str | None:
        reason = loader.runtime.refuses(problem.device)
        return reason or self.planner.refuses(problem, _device(problem))

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        first_run: FirstRun | None = None,
    ) -> GpuExecutor:
        def prepare(device: Device) -> GpuExecutor:
            return self._prepare(pattern, problem, device, kernel, calls, first_run)

        return _on_device(problem, prepare)

    def _prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        device: Device,
        kernel: str | None,
        calls: int,
        first_run: FirstRun | None,
    ) -> GpuExecutor:
        if problem.blocksize is not None or kernel in self.blocks.kernels:
            executor = self.blocks.prepare(pattern, problem, device, kernel)
            if executor is not None:
                return executor
            pattern, problem = pattern.expanded, problem._replace(blocksize=None)
        if kernel is None and (calls <= 1 or problem.nnz == 0):
            executor = self.one_off.prepare(pattern, problem, device, first_run)
            if executor is not None:
                return executor
        return self.planner.prepare(pattern, problem, device, kernel, calls)

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        reason = loader.runtime.refuses(problem.device)
        return reason or self.products.refuses(problem, _device(problem))

    def prepare_product(
        self, pattern: SparsePattern, problem: SpmmProblem, transpose: bool = False
    ) -> ProductExecutor:
        def prepare(device: Device) -> ProductExecutor:
            if pattern.blocksize is not None:
                executor = self.block_products.prepare(pattern, problem, device, transpose)
                if executor is not None:
                    return executor
            return self.products.prepare(pattern.expanded, problem, device, transpose=transpose)

        return _on_device(problem, prepare)

    def refuses_attention(self, problem: AttentionProblem) -> str | None:
        reason = loader.runtime.refuses(problem.device)
        return reason or self.attention.refuses(problem, _device(problem))

    def prepare_attention(
        self, pattern: SparsePattern, problem: AttentionProblem
    ) -> AttentionExecutor:
        def prepare(device: Device) -> AttentionExecutor:
            return self.attention.prepare(pattern.expanded, problem, device)

        return _on_device(problem, prepare)

    def single_runs(
        self, problem: SddmmProblem, is_csr: bool, is_kept: bool
    ) -> SingleRun[Any] | None:
        """None unless a kernel that takes nonzeros in any order serves, or may have to."""
        if problem.blocksize is not None or not SingleRun.can_serve(problem):
            return None
        device = _device(problem)
        by_rows = gather_rows.serves(problem, device, is_csr, is_kept)
        kernels, make_runs = self._single_runs(alike(problem), device, is_csr, is_kept, by_rows)
        if make_runs is None or any(k.refuses(problem, device) is not None for k in kernels):
            return None
        names = " or ".join(kernel.name for kernel in kernels)
        _log.debug("single runs of %s by %s, without a plan", problem, names)
        return make_runs(problem, device)

    def _find_single_runs(
        self, problem: SddmmProblem, device: Device, is_csr: bool, is_kept: bool, by_rows: bool
    ) -> tuple[Sequence[GpuKernel], MakeRuns | None]:
        """The kernels for a single run of any problem that is alike to this, and what makes runs by
        them."""
        choice = self.one_off.choose(problem, device, by_rows)
        gather = choice.candidates[-1].kernel if choice.candidates else None
        if not isinstance(gather, RowGather):
            return (), None
        make_gathers = form_of_runs(gather, problem, device, is_csr, is_kept, by_rows)
        tiles, pay = choice.late, None
        if choice.most_tiles is not None:
            pay = choice.most_tiles.allow
        elif tiles is not None:
            pay = functools.partial(tiles_pay, tiles.kernel, gather, device, by_rows)
        elif len(choice.candidates) > 1:
            tiles = choice.candidates[0]
        if tiles is None:
            return (gather,), make_gathers
        if pay is None and not tiles.lists_tiles and runs_at_once(tiles.kernel, problem):
            assert isinstance(tiles.kernel, BlockTileKernel)
            at_once = functools.partial(
                TilesAtOnce, is_csr=is_csr, tile_kernel=tiles.kernel, request=tiles.request,
                make_gathers=make_gathers,
            )  # fmt: skip
            return (tiles.kernel, gather), at_once
        if not isinstance(tiles.kernel, TileKernel):
            return (), None
        # gather_rows finds the rows itself.
        request = tiles.request._replace(row_ids_too=tiles.request.row_ids_too and not by_rows)
        by_tiles = functools.partial(
            TiledRun, gather, is_csr=is_csr, tile_kernel=tiles.kernel, request=request,
            make_gathers=make_gathers, lists_tiles=tiles.lists_tiles, tiles_pay=pay,
            may_pay=functools.partial(looks_like_mask, device) if choice.is_probed else None,
        )  # fmt: skip
        return (tiles.kernel, gather), by_tiles


def _on_device(problem: Problem, prepare: Callable[[Device], E]) -> E:
    """prepare(device) while the problem's device is torch's current one, as launches need it."""
    device, current = _device(problem), loader.runtime.current_device()
    try:
        if device.index == current:
            return prepare(device)
        with torch.cuda.device(device.index):
            return prepare(device)
    except torch.OutOfMemoryError as error:
        row_ids_bytes = 4 * problem.nnz
        what = f"preparing a plan of {problem.nnz} nonzeros, at least,"
        raise out_of_memory(what, row_ids_bytes, problem.device) from error


def _device(problem: Problem) -> Device:
    """The GPU whose kernels read tensors of the problem's torch device."""
    return loader.runtime.device(loader.runtime.index_of(problem.device))
