"""torch.sparse.sampled_addmm (cuSPARSE on a GPU): what serves where our kernels cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.operands import by_head
from sddmm.pattern import SparsePattern
from sddmm.problem import Problem

if TYPE_CHECKING:
    from sddmm.backends import Execute


class TorchCsrBackend:
    name = "torch_csr"

    def available(self) -> str | None:
        return None

    def refuses(self, problem: Problem) -> str | None:
        if problem.dtype not in (torch.float32, torch.float64):
            return f"torch.sparse.sampled_addmm computes float32 and float64, not {problem.dtype}"
        if problem.device.type not in ("cpu", "cuda"):
            return f"torch.sparse.sampled_addmm runs on cpu and cuda, not on {problem.device}"
        if problem.k == 0 or problem.nnz == 0:
            return "torch.sparse.sampled_addmm does not take empty problems"
        if problem.nnz > problem.m * problem.n:
            return (
                f"torch.sparse.sampled_addmm takes at most one nonzero per position: "
                f"{problem.nnz} are more than {problem.m}x{problem.n}"
            )
        return None

    def prepare(self, pattern: SparsePattern, problem: Problem) -> Execute:
        grouping = pattern.by_row
        zeros = torch.zeros(problem.nnz, dtype=problem.dtype, device=problem.device)
        sampled = torch.sparse_csr_tensor(
            grouping.compressed, grouping.minor, zeros, pattern.shape,
            device=problem.device, check_invariants=False,
        )  # fmt: skip
        # Duplicates and unsorted columns are independent entries to this function.
        position = slice(None) if grouping.order is None else grouping.order

        def execute(a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor) -> None:
            for head_a, head_b, target in by_head(a, b.mT, out):
                product = torch.sparse.sampled_addmm(
                    sampled, head_a, head_b.mT, beta=0.0, alpha=alpha
                )
                samples = product.values()
                if values is not None:
                    samples = samples * values[position]
                target[position] = samples.to(problem.out_dtype)  # rounded once

        return execute
