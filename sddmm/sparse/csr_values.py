"""CSR tensors of values, with right gradients for unsorted columns and duplicates.

torch's own function sorts and merges the gradient's entries (seen with 2.11 and 2.13), so that
values in any other order get the gradients of their neighbours, or an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# The CSR tensor of values that need no gradient.
constant_csr_tensor = functools.partial(torch.sparse_csr_tensor, check_invariants=False)


def csr_tensor(values: Tensor, crow: Tensor, cols: Tensor, shape: tuple[int, int]) -> Tensor:
    """The CSR tensor of these values, differentiable in them."""
    if torch.is_grad_enabled() and values.requires_grad:
        apply: Callable[..., Tensor] = _CsrOfValues.apply
        return apply(values, crow, cols, shape)
    return constant_csr_tensor(crow, cols, values, shape, device=values.device)


class _CsrOfValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, crow: Tensor, cols: Tensor, shape: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(crow, cols)
        return constant_csr_tensor(crow, cols, values, shape, device=values.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        crow, cols = ctx.saved_tensors
        if not _has_indices(grad, crow, cols):
            rows = torch.arange(len(crow) - 1, device=crow.device).repeat_interleave(crow.diff())
            dense = grad if grad.layout == torch.strided else grad.to_dense()
            return dense[rows, cols], None, None, None
        return grad.values(), None, None, None


def _has_indices(grad: Tensor, crow: Tensor, cols: Tensor) -> bool:
    """Whether a gradient is a CSR tensor of these very indices, as that of `values()` is."""
    if grad.layout != torch.sparse_csr or grad._nnz() != len(cols):
        return False
    if grad.col_indices().data_ptr() == cols.data_ptr():
        return True
    return torch.equal(grad.crow_indices(), crow) and torch.equal(grad.col_indices(), cols)
