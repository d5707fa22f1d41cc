"""BSR tensors of flat values, with right gradients for unsorted blocks and duplicates.

torch's own function sorts and merges the gradient's blocks (seen with 2.11 and 2.13), as it does
for CSR (csr_values.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sddmm.sparse.indices import BlockSize, expand


def bsr_tensor(
    values: Tensor, crow: Tensor, cols: Tensor, blocksize: BlockSize, shape: tuple[int, int]
) -> Tensor:
    """The BSR tensor of these values, (nnz,), block by block; differentiable in them."""
    blocks = values.contiguous().view(cols.numel(), *blocksize)
    if torch.is_grad_enabled() and values.requires_grad:
        apply: Callable[..., Tensor] = _BsrOfBlocks.apply
        return apply(blocks, crow, cols, shape)
    return _constant(blocks, crow, cols, shape)


def _constant(blocks: Tensor, crow: Tensor, cols: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_bsr_tensor(
        crow, cols, blocks, shape, device=blocks.device, check_invariants=False
    )


class _BsrOfBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, blocks: Tensor, crow: Tensor, cols: Tensor, shape: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(crow, cols)
        ctx.blocksize = blocks.shape[1:]
        return _constant(blocks, crow, cols, shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        crow, cols = ctx.saved_tensors
        if _has_indices(grad, crow, cols):
            return grad.values(), None, None, None
        dense = grad if grad.layout == torch.strided else grad.to_dense()
        (m, n), (bm, bn) = dense.shape, ctx.blocksize
        tiles = dense.view(m // bm, bm, n // bn, bn).transpose(1, 2)
        return tiles[expand(crow, cols.numel()), cols], None, None, None


def _has_indices(grad: Tensor, crow: Tensor, cols: Tensor) -> bool:
    """Whether a gradient is a BSR tensor of these very indices, as that of `values()` is."""
    if grad.layout != torch.sparse_bsr or grad.col_indices().numel() != cols.numel():
        return False
    if grad.col_indices().data_ptr() == cols.data_ptr():
        return True
    return torch.equal(grad.crow_indices(), crow) and torch.equal(grad.col_indices(), cols)
