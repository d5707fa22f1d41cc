"""Conversion of torch sparse tensors to the arguments of the operators, and of results back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.sparse.compressed_values import bsr_tensor, csr_tensor
from sddmm.sparse.formats import blocksize_of
from sddmm.sparse.index_tensors import belong_together
from sddmm.sparse.indices import BlockSize, crow_length
from sddmm.sparse.pattern import SparsePattern

KINDS = (
    "a torch sparse COO, CSR or BSR tensor, a scipy.sparse or cupyx coo, csr or csc matrix or "
    "array, a SparsePattern, or the tuple (row_indices, col_indices, shape)"
)


_CSR, _COO, _BSR = torch.sparse_csr, torch.sparse_coo, torch.sparse_bsr
_LAYOUTS = (_CSR, _COO, _BSR)


class Parts(NamedTuple):
    """S as the torch operator takes it: its index tensors (CSR if `compressed`), shape and values.

    wrap: the function that wraps new values like S. blocksize: of BSR, whose index tensors are
    those of the blocks, and whose values are flat here; None for the other forms.
    """

    rows: Tensor
    cols: Tensor
    compressed: bool
    shape: tuple[int, int]
    values: Tensor | None
    wrap: Callable[[Tensor], Any]
    blocksize: BlockSize | None = None


def parts_of_tensor(S: Tensor) -> Parts:
    """The parts of a torch CSR, COO or BSR tensor. Its data is not read."""
    layout, size = S.layout, S.shape
    if layout not in _LAYOUTS:
        raise TypeError(f"S must be {KINDS}; got {_other_layout(S)}")
    if len(size) != 2 or S.dense_dim():
        raise ValueError(
            f"S must be a 2-D sparse tensor without dense dimensions, got shape {tuple(size)}; "
            f"call once for each matrix of a batch, or give operands with heads over one matrix"
        )
    shape = (size[0], size[1])
    if layout == _BSR:
        return _of_bsr(S, shape)
    if layout == _COO:
        return _of_coo(S, shape)
    crow, cols = S.crow_indices(), S.col_indices()
    return Parts(crow, cols, True, shape, S.values(), _csr_wrap(crow, cols, shape))


def pattern_and_values(
    S: Tensor, reads_values: bool = True
) -> tuple[SparsePattern, Tensor | None, Callable[[Tensor], Any]]:
    """The pattern over a tensor's own indices, its values, and the function that wraps new values
    like it. Each property of a CSR tensor is read once, and its values only if `reads_values`: its
    first call waits for them."""
    size = S.shape
    if S.layout != _CSR or len(size) != 2:  # a CSR tensor with dense dimensions has more
        parts = parts_of_tensor(S)
        return pattern_over(parts), parts.values, parts.wrap
    shape = (size[0], size[1])
    crow, cols = S.crow_indices(), S.col_indices()
    # They are on one device, or torch would have raised.
    if crow.numel() == shape[0] + 1 and crow.dtype == cols.dtype and not cols.is_meta:
        pattern = SparsePattern(shape, cols, crow_indices=crow)
    else:
        pattern = SparsePattern.from_csr(crow, cols, shape, copy=False)  # which raises the error
    values = S.values() if reads_values else None
    return pattern, values, _csr_wrap(crow, cols, shape)


def pattern_over(parts: Parts) -> SparsePattern:
    """The pattern over a torch sparse tensor's own indices, whose kinds torch has checked."""
    rows, cols, shape = parts.rows, parts.cols, parts.shape
    blocksize = parts.blocksize
    length = cols.numel()
    if parts.compressed:
        length = shape[0] + 1 if blocksize is None else crow_length(shape, blocksize)
    if not belong_together(rows, cols, length):
        if blocksize is not None:
            return SparsePattern.from_bsr(rows, cols, blocksize, shape, copy=False)
        make = SparsePattern.from_csr if parts.compressed else SparsePattern.from_coo
        return make(rows, cols, shape, copy=False)  # which raises the error
    if parts.compressed:
        return SparsePattern(shape, cols, crow_indices=rows, blocksize=blocksize)
    return SparsePattern(shape, cols, row_indices=rows)


def check_gradient_order(S: Tensor, pattern: SparsePattern) -> None:
    """Refuse a tensor whose values would get each other's gradients; `pattern` is S's."""
    if S.layout == torch.sparse_bsr and S.grad_fn is not None and not pattern.blocks.is_canonical:
        raise ValueError(
            "S is a BSR tensor made of values that require grad, with unsorted blocks or "
            "duplicates, whose gradient torch returns in another order; sort the blocks of each "
            "row, or multiply the values in yourself (scale=False)"
        )
    if S.layout == torch.sparse_csr and S.grad_fn is not None and not pattern.is_canonical:
        raise ValueError(
            "S is a CSR tensor made of values that require grad, with unsorted columns or "
            "duplicates, whose gradient torch returns in another order; sort its columns, or "
            "multiply the values in yourself (scale=False)"
        )


def _csr_wrap(crow: Tensor, cols: Tensor, shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """The function that wraps new values, (nnz,), with these indices."""

    def wrap(new: Tensor) -> Tensor:
        if new.requires_grad:
            return csr_tensor(crow, cols, shape, new)
        return torch.sparse_csr_tensor(  # as csr_tensor does: further calls enter few files
            crow, cols, new, shape, device=new.device, check_invariants=False
        )

    return wrap


def _of_bsr(S: Tensor, shape: tuple[int, int]) -> Parts:
    crow, cols, blocksize = S.crow_indices(), S.col_indices(), blocksize_of(S)
    wrap = functools.partial(bsr_tensor, crow, cols, shape, blocksize)
    return Parts(crow, cols, True, shape, S.values().reshape(-1), wrap, blocksize)


def _of_coo(S: Tensor, shape: tuple[int, int]) -> Parts:
    coalesced = S.is_coalesced()
    if S.requires_grad and not coalesced:
        raise ValueError(
            "S is an uncoalesced COO tensor that requires grad, which torch cannot "
            "differentiate; coalesce it, or multiply the values in yourself (scale=False)"
        )
    # Coalescing would sort and merge: S's own order and duplicates stay.
    indices = S._indices()

    def wrap(new: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(
            indices, new, shape,
            device=new.device, is_coalesced=coalesced, check_invariants=False,
        )  # fmt: skip

    values = S.values() if coalesced else S._values()
    return Parts(indices[0], indices[1], False, shape, values, wrap)


def _other_layout(S: Tensor) -> str:
    """The end of an error message: the layout of S, and what to give instead."""
    if S.layout == torch.sparse_bsc:
        return f"a torch tensor of layout {S.layout}; convert it with S.to_sparse_bsr(blocksize)"
    if S.layout != torch.strided:
        return f"a torch tensor of layout {S.layout}; convert it with S.to_sparse_csr()"
    if S.dtype == torch.bool:
        return (
            "a dense torch tensor of bool; if it is a mask, give "
            "SparsePattern.from_torch(mask), made once for all calls"
        )
    if S.dim() == 2 and S.shape[0] == 2 and not S.is_floating_point():
        return (
            "a dense 2 x E tensor of integers; if it is an edge_index, give the tuple "
            "(edge_index[0], edge_index[1], (m, n)), whose first entry are the rows, or "
            "SparsePattern.from_edge_index(edge_index, num_nodes)"
        )
    return (
        "a dense torch tensor; convert a mask with S.to_sparse_csr(), or give "
        "SparsePattern.from_torch(S != 0)"
    )
