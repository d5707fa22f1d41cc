"""The GPU kernels of sparse attention as methods, each by its name."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.attention.case import Case, Step
from experiments.attention.methods import MASKS, ours
from experiments.bench.methods import Method, Run
from experiments.sddmm import forced_kernel
from experiments.sddmm.unseen import new_pattern
from experiments.spmm.forced import few_dense_tiles
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS


class ForcedKernel(forced_kernel.ForcedKernel):
    """A kernel of attention as a method."""

    __file__ = ours.__file__

    def refuses(self, case: Case) -> str | None:
        has_tiles = bool(ATTENTION_KERNELS[self.kernel].tile_sizes)
        return (few_dense_tiles(case, MASKS) if has_tiles else None) or super().refuses(case)

    def new_plan(self, case: Case) -> AttentionExecutor:
        pattern = new_pattern(case)
        problem = attention_problem(pattern, AttentionOperands(*case.inputs, None, case.scale))
        device = loader.runtime.device(loader.runtime.current_device())
        return CudaBackend().attention.prepare(pattern, problem, device, kernel=self.kernel)

    def prepare(self, case: Case) -> Run:
        executor = self.new_plan(case)
        operands = AttentionOperands(*map(_with_heads, case.inputs), None, case.scale)
        if case.backward:
            executor.prepare_backward()
        run = _Run(case, executor, operands)
        run()
        return run


class _Run:
    """run() of one kernel, on new tensors as the operator makes them."""

    def __init__(self, case: Case, executor: AttentionExecutor, own: AttentionOperands) -> None:
        self._case, self._executor, self._operands = case, executor, own

    def __call__(self) -> Step:
        q, k, v = self._operands[:3]
        out, grad = torch.empty_like(q), self._case.grad
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        self._executor.forward(self._operands, out, lse)
        if not self._case.backward:
            return Step(out.view_as(grad))
        gradients = AttentionGradients(*map(torch.empty_like, (q, k, v)), None)
        self._executor.backward(self._operands, out, lse, _with_heads(grad), None, gradients)
        found = zip(gradients[:3], self._case.inputs, strict=True)
        return Step(out.view_as(grad), *(x.view_as(like) for x, like in found))


def _with_heads(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.unsqueeze(0)


def forced_kernels() -> dict[str, Method]:
    """A method for every kernel that the planner of attention knows."""
    return {name: ForcedKernel(name) for name in ATTENTION_KERNELS}
