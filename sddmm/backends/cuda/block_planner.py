"""The planner of block patterns: which block kernel computes a problem, or none.

Where gathering the nonzeros one by one should take less, as for blocks of one element, no block
kernel serves, and the planner of all patterns plans the expanded pattern.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.executor import Explanation, GpuExecutor
from sddmm.backends.cuda.kernels.block import BlockKernel
from sddmm.backends.cuda.kernels.row_gather.costs import gather_us
from sddmm.backends.cuda.pattern_layouts import AheadLayouts
from sddmm.backends.cuda.planning_context import refused
from sddmm.backends.cuda.spec import ROW_IDS

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
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
