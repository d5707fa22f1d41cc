"""SpMM, the companion of SDDMM that its gradients are made of: torch's sparse CSR product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.pattern import Grouping, SparsePattern


def spmm(pattern: SparsePattern, values: Tensor, dense: Tensor, transpose: bool) -> Tensor:
    """The product of the sparse matrix of these values (or of its transpose) and `dense`.

    values: ([heads,] nnz); dense: ([heads,] n, d), or ([heads,] m, d) to a transpose. The result
    has dense's dtype. Where values are of a wider one, products and sums are too, and the result
    is rounded once.
    """
    rows, columns = reversed(pattern.shape) if transpose else pattern.shape
    if dense.shape[-2] != columns or values.shape[-1] != pattern.nnz:
        raise ValueError(
            f"spmm of a {rows}x{columns} matrix with {pattern.nnz} nonzeros cannot take "
            f"values {tuple(values.shape)} and dense {tuple(dense.shape)}"
        )
    out = dense.new_zeros((*dense.shape[:-2], rows, dense.shape[-1]))
    if out.numel() == 0 or pattern.nnz == 0:
        return out
    if pattern.nnz > pattern.shape[0] * pattern.shape[1]:  # which cuSPARSE does not take
        pattern, values = merge_duplicates(pattern, values, dense.dtype)
    dtype = _compute_dtype(values, dense)
    grouping = pattern.by_column if transpose else pattern.by_row
    weights = (values if grouping.order is None else values[..., grouping.order]).to(dtype)
    flat_out, flat_dense = out.view(-1, *out.shape[-2:]), dense.reshape(-1, *dense.shape[-2:])
    flat_weights = weights.reshape(-1, pattern.nnz)
    for target, head_weights, head in zip(flat_out, flat_weights, flat_dense, strict=True):
        target.copy_(_csr(grouping, head_weights, (rows, columns)) @ head.to(dtype))
    return out


def merge_duplicates(
    pattern: SparsePattern, values: Tensor, dtype: torch.dtype
) -> tuple[SparsePattern, Tensor]:
    """The same matrix with one nonzero for each position that has any, the sum of those there.

    Sums are formed in float64, one after the other, so that the same values give the same bits,
    and rounded to the wider of their type and `dtype`, at least float32.
    """
    merged, position = pattern.derive("merged", lambda: _distinct_positions(pattern))
    sums = values.new_zeros((*values.shape[:-1], merged.nnz), dtype=torch.float64)
    heads = zip(sums.view(-1, merged.nnz), values.reshape(-1, pattern.nnz), strict=True)
    for target, head in heads:
        target.index_put_((position,), head.double(), accumulate=True)
    wide = torch.promote_types(torch.promote_types(values.dtype, dtype), torch.float32)
    return merged, sums.to(wide)


def _distinct_positions(pattern: SparsePattern) -> tuple[SparsePattern, Tensor]:
    """The pattern without duplicates, row by row, and where in it each nonzero of `pattern` is."""
    m, n = pattern.shape
    flat = pattern.row_ids.to(torch.int64) * n + pattern.col_indices
    distinct, position = torch.unique(flat, return_inverse=True)
    rows, cols = ((x.to(pattern.index_dtype)) for x in (distinct // n, distinct % n))
    return SparsePattern.from_coo(rows, cols, (m, n)), position


def _compute_dtype(values: Tensor, dense: Tensor) -> torch.dtype:
    dtype = torch.promote_types(values.dtype, dense.dtype)
    # torch's CPU SpMM has no half types.
    return torch.float32 if dtype.itemsize == 2 and dense.device.type == "cpu" else dtype


def _csr(grouping: Grouping, values: Tensor, size: tuple[int, int]) -> Tensor:
    minor = grouping.minor.to(grouping.compressed.dtype)
    return torch.sparse_csr_tensor(
        grouping.compressed, minor, values, size, device=values.device, check_invariants=False
    )


def spmm_fake(
    rows: Tensor, cols: Tensor, values: Tensor, dense: Tensor, *, m: int, n: int, **options: Any
) -> Tensor:
    """What `torch.ops.sddmm.spmm` returns, without data."""
    size = n if options.get("transpose", False) else m
    return dense.new_empty((*dense.shape[:-2], size, dense.shape[-1]))
