"""torch's CSR functions (cuSPARSE on a GPU), which serve where our kernels cannot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sddmm.backends.base import (
    MANY_CALLS,
    FirstRun,
    PreparedAttention,
    by_head,
    head_weights,
    joined,
    product_heads,
)
from sddmm.sparse.indices import compress

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem
    from sddmm.sparse.pattern import SparsePattern
    from sddmm.sparse.views import CompressedView


class TorchCsrBackend:
    """Serves float32 and float64 on the CPU and on CUDA devices."""

    name = "torch_csr"
    plans_by_calls = False
    kernels = ()

    def available(self) -> str | None:
        return None

    def refuses(self, problem: SddmmProblem) -> str | None:
        if problem.dtype not in (torch.float32, torch.float64):
            return f"torch.sparse.sampled_addmm computes float32 and float64, not {problem.dtype}"
        if problem.device.type not in ("cpu", "cuda"):
            return f"torch.sparse.sampled_addmm runs on cpu and cuda, not on {problem.device}"
        if problem.k == 0 or problem.nnz == 0:
            return "torch.sparse.sampled_addmm does not take empty problems"
        if problem.m * problem.n >= 2**63:
            return f"counts positions in 64 bits, which {problem.m}x{problem.n} exceed"
        return None

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        first_run: FirstRun | None = None,
    ) -> TorchCsrExecutor:
        pattern.check()
        return TorchCsrExecutor(pattern, problem)

    def single_runs(self, problem: SddmmProblem, is_csr: bool, is_kept: bool) -> None:
        return None

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        if problem.device.type not in ("cpu", "cuda"):
            return f"torch's CSR product runs on cpu and cuda, not on {problem.device}"
        return None

    def prepare_product(
        self, pattern: SparsePattern, problem: SpmmProblem, transpose: bool = False
    ) -> CsrProduct:
        return CsrProduct((pattern.T if transpose else pattern).by_row, problem)

    def refuses_attention(self, problem: AttentionProblem) -> str | None:
        return "torch has no attention over a CSR pattern"

    def prepare_attention(
        self, pattern: SparsePattern, problem: AttentionProblem
    ) -> PreparedAttention:
        raise ValueError(self.refuses_attention(problem))


class TorchCsrExecutor:
    """Samples every distinct position once, by a CSR tensor, and copies it to its duplicates.

    With duplicates in a CSR tensor cuSPARSE leaves values of dense patterns unwritten (seen with
    CUDA 13.0), and takes no more nonzeros than positions.
    """

    notes = ()

    def __init__(self, pattern: SparsePattern, problem: SddmmProblem) -> None:
        n = problem.n
        flat = pattern.row_ids.to(torch.int64) * n + pattern.col_ids
        distinct, position = torch.unique(flat, return_inverse=True)
        self._sampled = torch.sparse_csr_tensor(
            compress(distinct // n, problem.m), distinct % n,
            torch.zeros(distinct.shape, dtype=problem.dtype, device=problem.device),
            pattern.shape, device=problem.device, check_invariants=False,
        )  # fmt: skip
        self._position = None if torch.equal(distinct, flat) else position

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        for head_a, head_b, target in by_head(a, b.mT, out):
            product = torch.sparse.sampled_addmm(
                self._sampled, head_a, head_b.mT, beta=0.0, alpha=alpha
            )
            samples = product.values()
            if self._position is not None:
                samples = samples[self._position]
            target.copy_(samples if values is None else samples * values)  # rounded once


class CsrProduct:
    """torch's CSR product (cuSPARSE on a GPU, where it adds with atomics), one head at a time.

    Products and sums have the wider dtype of the operands, float32 at least: torch's CPU product
    has no half types, and cuSPARSE adds partial sums of halves as halves. The result is rounded
    once. view: the nonzeros by row.
    """

    notes = ("torch's CSR product, head by head",)

    def __init__(self, view: CompressedView, problem: SpmmProblem) -> None:
        self._problem = problem
        self._size = _padded_size((problem.m, problem.n), problem.nnz)
        indptr = view.indptr
        empty_rows = self._size[0] - problem.m
        if empty_rows:
            indptr = torch.cat([indptr, indptr[-1:].expand(empty_rows)])
        self._indptr, self._indices = indptr, view.indices.to(indptr.dtype)
        self._perm = view.perm

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        dense = joined(dense, beyond)
        problem, dtype = self._problem, self._problem.accumulator
        for target, head_values, head in product_heads(out, values, dense):
            head = head.to(dtype)
            if self._size[1] > problem.n:  # pad copies, even where it adds nothing
                head = torch.nn.functional.pad(head, (0, 0, 0, self._size[1] - problem.n))
            product = self._matrix(head_weights(head_values, factors, dtype)) @ head
            target.copy_((product if alpha == 1 else product.mul_(alpha))[: problem.m])

    def _matrix(self, weights: Tensor) -> Tensor:
        if self._perm is not None:
            weights = weights[self._perm]
        return torch.sparse_csr_tensor(  # cuSPARSE reads no strides, and torch does not ask
            self._indptr, self._indices, weights.contiguous(), self._size,
            device=weights.device, check_invariants=False,
        )  # fmt: skip


def _padded_size(size: tuple[int, int], nnz: int) -> tuple[int, int]:
    """The size, or a larger one of at least `nnz` positions: cuSPARSE takes no more nonzeros.

    Duplicates may be more than positions. To merge them is wrong where the dense operand holds an
    infinity: two weights of opposite signs make NaN of it, their sum does not.
    """
    if nnz <= size[0] * size[1]:
        return size
    side = math.isqrt(nnz - 1) + 1
    return max(size[0], side), max(size[1], side)
