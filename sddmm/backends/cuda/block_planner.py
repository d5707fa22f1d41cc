"""The planners of block patterns: which kernel computes a problem by blocks, or none.

Where none serves, as gathering nonzeros one by one should take less, or blocks are not made of the
whole tiles that a product needs, the planner of all patterns plans the expanded pattern.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import Explanation, GpuExecutor
from sddmm.backends.cuda.facts import CountedFacts, TileCounts
from sddmm.backends.cuda.kernels.block import BlockKernel
from sddmm.backends.cuda.kernels.row_gather.costs import gather_us
from sddmm.backends.cuda.kernels.spmm_tile.host import SpmmTile
from sddmm.backends.cuda.layouts import int32
from sddmm.backends.cuda.pattern_layouts import AheadLayouts, PatternLayouts
from sddmm.backends.cuda.planning_context import refused
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.backends.cuda.spec import ROW_IDS
from sddmm.sparse.indices import compress

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem, SpmmProblem
    from sddmm.sparse.indices import BlockSize
    from sddmm.sparse.pattern import SparsePattern


class BlockPlanner:
    """Plans the problems of block patterns by the kernels that compute whole blocks."""

    def __init__(self, kernels: Mapping[str, BlockKernel]) -> None:
        self.kernels = kernels
        self._rank = functools.lru_cache(maxsize=1024)(self._ranking)

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        device: Device,
        kernel: str | None = None,
    ) -> GpuExecutor | None:
        """The launch for a block pattern, or None where no block kernel is to serve it.

        kernel: the name that the caller requests, perhaps of a kernel of nonzeros; ValueError if a
        block kernel refuses.
        """
        if kernel is not None:
            if kernel not in self.kernels:
                return None
            chosen = self.kernels[kernel]
            reason = chosen.refuses(problem, device)
            if reason is not None:
                raise ValueError(f"kernel {kernel!r} {reason}")
            return _prepared(chosen, pattern, problem, device, lambda: [_requested(kernel)])
        ranking = self._rank(problem, device)
        gathered = gather_us(problem, problem.nnz, device_model(device))
        if not ranking or gathered < ranking[0][0]:
            return None

        def explanation() -> list[str]:
            (_, best), *others = ((us, f"{x.name}: {us:.3g} us predicted") for us, x in ranking)
            lines = [f"kernel   {best}", *(f"  not    {other}" for _, other in others)]
            lines.append(f"  not    gathering each nonzero: {gathered:.3g} us predicted")
            return lines + refused(self.kernels.values(), problem, device)

        return _prepared(ranking[0][1], pattern, problem, device, explanation)

    def _ranking(self, problem: SddmmProblem, device: Device) -> list[tuple[float, BlockKernel]]:
        """The kernels that serve with their predicted microseconds, the fastest first."""
        model = device_model(device)
        ranking = [
            (kernel.block_cost(problem, model).run_us, kernel)
            for kernel in self.kernels.values()
            if kernel.refuses(problem, device) is None
        ]
        return sorted(ranking, key=lambda prediction: prediction[0])


class _Prediction(NamedTuple):
    run_us: float
    kernel: SpmmTile


class BlockProducts:
    """Plans products of block patterns by these kernels, of tiles that blocks are made of.

    They follow from the indices of blocks: no nonzero is read, sorted or counted.
    """

    def __init__(self, kernels: tuple[SpmmTile, ...]) -> None:
        self._kernels = kernels
        self._rank = functools.lru_cache(maxsize=1024)(self._ranking)

    def prepare(
        self, pattern: SparsePattern, problem: SpmmProblem, device: Device, transpose: bool = False
    ) -> ProductExecutor | None:
        """The launches for a block pattern, or None where no kernel is to serve it.

        transpose: the problem is that of its transpose. ValueError, as SparsePattern.check, for a
        wrong pattern.
        """
        blocksize = pattern.blocksize
        assert blocksize is not None
        ranking = self._rank(problem, blocksize, device)
        if not ranking:
            return None
        layouts = PatternLayouts(pattern.blocks, device)
        try:
            blocks = layouts.by_column() if transpose else layouts.by_row()
        except ValueError:
            pattern.check()  # whose message counts the nonzeros, not the blocks
            raise
        if transpose:
            offsets = compress(blocks.rows, pattern.shape[1] // blocksize[1])
        else:
            offsets = int32(pattern.major_indices)
        plan = ranking[0].kernel.prepare_blocks(
            blocks, offsets, blocksize, problem, transpose, device
        )
        loader.runtime.wait(device.index)  # the next call may come on another stream

        def explanation() -> list[str]:
            best, *others = (f"{x.kernel.name}: {x.run_us:.3g} us predicted" for x in ranking)
            reasons = (
                (x.name, x.refuses_blocks(problem, blocksize, device)) for x in self._kernels
            )
            others += [f"{name}: {reason}" for name, reason in reasons if reason is not None]
            return [f"kernel   {best}", *(f"  not    {other}" for other in others)]

        return ProductExecutor((plan,), explanation, device.index)

    def _ranking(
        self, problem: SpmmProblem, blocksize: BlockSize, device: Device
    ) -> list[_Prediction]:
        """The kernels that serve, the fastest first."""
        model = device_model(device)
        ranking = []
        for kernel in self._kernels:
            side = kernel.side
            if kernel.refuses_blocks(problem, blocksize, device) is None:
                count = problem.nnz // side**2
                counts = {(side, side): TileCounts(count, count, ())}
                facts = CountedFacts(problem.nnz, problem.nnz // side, True, counts, ())
                cost = kernel.cost_us(problem, facts, model)
                if cost is not None:
                    ranking.append(_Prediction(cost.run_us, kernel))
        return sorted(ranking, key=lambda prediction: prediction.run_us)


def _requested(kernel: str) -> str:
    return f"kernel   {kernel}, as demanded"


def _prepared(
    kernel: BlockKernel,
    pattern: SparsePattern,
    problem: SddmmProblem,
    device: Device,
    explanation: Explanation,
) -> GpuExecutor:
    """Bound to the blocks' indices while the GPU still checks them."""
    layouts = AheadLayouts(pattern.blocks, device, ROW_IDS)
    try:
        plan = kernel.plan_blocks(layouts.by_row(), problem, device)
    finally:
        try:
            layouts.wait()
        except ValueError:
            pattern.check()  # whose message counts the nonzeros, not the blocks
            raise
    return GpuExecutor((plan,), explanation, device.index)
