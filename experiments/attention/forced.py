"""The GPU kernels of sparse attention as methods, each by its name."""

from __future__ import annotations

import torch
from torch import Tensor

import sddmm
from experiments.attention.case import Case, Step
from experiments.attention.methods import MASKS, ours
from experiments.bench.methods import Method, Run
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS

# Tile kernels are measured on masks, and where at least 1 in so many positions is stored.
_POSITIONS = 500


class ForcedKernel:
    """A method that runs one kernel of attention, whatever the planner would choose."""

    __file__ = ours.__file__

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def refuses(self, case: Case) -> str | None:
        """The words in which the kernel refuses the problem, or the pattern."""
        is_sparse = case.family not in MASKS and case.nnz * _POSITIONS < case.m * case.n
        if ATTENTION_KERNELS[self.kernel].tile_sizes and is_sparse:
            return f"not measured: few tiles are dense where 1 in {_POSITIONS} positions is stored"
        try:
            _executor(self.kernel, case)
        except ValueError as error:
            return str(error)
        return None

    def prepare(self, case: Case) -> Run:
        executor = _executor(self.kernel, case)
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


def _executor(kernel: str, case: Case) -> AttentionExecutor:
    """The kernel prepared for a pattern that finds nothing prepared before; ValueError if it
    refuses."""
    pattern = sddmm.SparsePattern.from_csr(
        case.pattern.major_indices, case.pattern.col_indices, case.pattern.shape
    )
    problem = attention_problem(pattern, AttentionOperands(*case.inputs, None, case.scale))
    device = loader.runtime.device(loader.runtime.current_device())
    return CudaBackend().attention.prepare(pattern, problem, device, kernel=kernel)


def forced_kernels() -> dict[str, Method]:
    """A method for every kernel that the planner of attention knows."""
    return {name: ForcedKernel(name) for name in ATTENTION_KERNELS}
