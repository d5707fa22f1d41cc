"""CSR and BSR tensors of values, with right gradients for unsorted indices and duplicates.

torch's own functions sort and merge the entries of the gradient, or its blocks (seen with 2.11 and
2.13), so that values in any other order get the gradients of their neighbours, or an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sddmm.sparse.indices import BlockSize, expand


def csr_tensor(crow: Tensor, cols: Tensor, shape: tuple[int, int], values: Tensor) -> Tensor:
    """The CSR tensor of these values, (nnz,); differentiable in them."""
    if values.requires_grad and torch.is_grad_enabled():
        return _differentiable(crow, cols, shape, values)
    return torch.sparse_csr_tensor(
        crow, cols, values, shape, device=values.device, check_invariants=False
    )


def bsr_tensor(
    crow: Tensor, cols: Tensor, shape: tuple[int, int], blocksize: BlockSize, values: Tensor
) -> Tensor:
    """The BSR tensor of these values, (nnz,), block by block; differentiable in them."""
    blocks = values.contiguous().view(cols.numel(), *blocksize)
    if blocks.requires_grad and torch.is_grad_enabled():
        return _differentiable(crow, cols, shape, blocks)
    return torch.sparse_bsr_tensor(
        crow, cols, blocks, shape, device=blocks.device, check_invariants=False
    )


def _differentiable(crow: Tensor, cols: Tensor, shape: tuple[int, int], values: Tensor) -> Tensor:
    apply: Callable[..., Tensor] = _TensorOfValues.apply
    return apply(crow, cols, shape, values)


class _TensorOfValues(torch.autograd.Function):
    """The CSR tensor of values, (nnz,), or the BSR tensor of blocks, (blocks, bm, bn)."""

    @staticmethod
    def forward(
        ctx: Any, crow: Tensor, cols: Tensor, shape: tuple[int, int], values: Tensor
    ) -> Tensor:
        ctx.save_for_backward(crow, cols)
        ctx.blocksize = values.shape[1:]
        if ctx.blocksize:  # autograd follows neither of these calls
            return bsr_tensor(crow, cols, shape, ctx.blocksize, values)
        return csr_tensor(crow, cols, shape, values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        crow, cols = ctx.saved_tensors
        layout = torch.sparse_bsr if ctx.blocksize else torch.sparse_csr
        if _has_indices(grad, layout, crow, cols):
            return None, None, None, grad.values()
        dense = grad if grad.layout == torch.strided else grad.to_dense()
        if ctx.blocksize:
            (m, n), (bm, bn) = dense.shape, ctx.blocksize
            dense = dense.view(m // bm, bm, n // bn, bn).transpose(1, 2)
        return None, None, None, dense[expand(crow, cols.numel()), cols]


def _has_indices(grad: Tensor, layout: torch.layout, crow: Tensor, cols: Tensor) -> bool:
    """Whether a gradient is a tensor of these very indices, as that of `values()` is."""
    if grad.layout != layout or grad.col_indices().numel() != cols.numel():
        return False
    if grad.col_indices().data_ptr() == cols.data_ptr():
        return True
    return torch.equal(grad.crow_indices(), crow) and torch.equal(grad.col_indices(), cols)
