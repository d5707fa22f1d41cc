"""SpMM, the companion of SDDMM that its gradients are made of: torch's sparse CSR product."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sddmm.dtypes import common_accumulator
from sddmm.ops.base import Operator, pattern_of, register, rounded_bound, tolerance
from sddmm.sparse.pattern import Grouping, SparsePattern


def spmm(pattern: SparsePattern, values: Tensor, dense: Tensor, transpose: bool) -> Tensor:
    """The product of the sparse matrix of these values (or of its transpose) and `dense`.

    values: ([heads,] nnz); dense: ([heads,] n, d), or ([heads,] m, d) to a transpose. The result
    has dense's dtype. Products and sums are of the wider dtype of the two, float32 at least, and
    the result is rounded once.
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
    # torch's CPU SpMM has no half types, and cuSPARSE adds partial sums of halves as halves.
    dtype = common_accumulator(values.dtype, dense.dtype)
    grouping = pattern.by_column if transpose else pattern.by_row
    weights = (values if grouping.order is None else values[..., grouping.order]).to(dtype)
    flat_out, flat_dense = out.view(-1, *out.shape[-2:]), dense.reshape(-1, *dense.shape[-2:])
    flat_weights = weights.reshape(-1, pattern.nnz)
    size = padded_size((rows, columns), pattern.nnz)
    for target, head_weights, head in zip(flat_out, flat_weights, flat_dense, strict=True):
        head = head.to(dtype)
        if size[1] > columns:  # pad copies, even where it adds nothing
            head = torch.nn.functional.pad(head, (0, 0, 0, size[1] - columns))
        target.copy_((_csr(grouping, head_weights, size) @ head)[:rows])
    return out


def padded_size(size: tuple[int, int], nnz: int) -> tuple[int, int]:
    """The size, or a larger one of at least `nnz` positions: cuSPARSE takes no more nonzeros.

    Duplicates may be more than positions. To merge them is wrong where the dense operand holds an
    infinity: two weights of opposite signs make NaN of it, their sum does not.
    """
    if nnz <= size[0] * size[1]:
        return size
    side = math.isqrt(nnz - 1) + 1
    return max(size[0], side), max(size[1], side)


def _csr(grouping: Grouping, values: Tensor, size: tuple[int, int]) -> Tensor:
    """The sparse matrix, with empty rows at its end where `size` has more than the grouping."""
    compressed = grouping.compressed
    empty_rows = size[0] + 1 - compressed.shape[0]
    if empty_rows:
        compressed = torch.cat([compressed, compressed[-1:].expand(empty_rows)])
    return torch.sparse_csr_tensor(
        compressed, grouping.minor.to(compressed.dtype), values, size,
        device=values.device, check_invariants=False,
    )  # fmt: skip


def _compute(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    transpose: bool = False,
) -> Tensor:
    return spmm(pattern_of(rows, cols, m, n, compressed), values, dense, transpose)


def _fake(
    rows: Tensor, cols: Tensor, values: Tensor, dense: Tensor, *, m: int, n: int, **options: Any
) -> Tensor:
    size = n if options.get("transpose", False) else m
    return dense.new_empty((*dense.shape[:-2], size, dense.shape[-1]))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, values, dense = ctx.saved_tensors
    options = ctx.options
    grad_values = grad_dense = None
    if ctx.needs_input_grad[2]:
        a, b = (dense, grad) if options["transpose"] else (grad, dense)
        grad_values = torch.ops.sddmm.sddmm(
            rows, cols, a, b.mT, None, compressed=options["compressed"], out_dtype=values.dtype
        )
    if ctx.needs_input_grad[3]:
        flipped = {**options, "transpose": not options["transpose"]}
        grad_dense = torch.ops.sddmm.spmm(rows, cols, values, grad, **flipped)
    return None, None, grad_values, grad_dense


def _reference(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    transpose: bool = False,
) -> Tensor:
    row_ids = pattern_of(rows, cols, m, n, compressed).row_ids
    targets, sources = (cols, row_ids) if transpose else (row_ids, cols)
    products = values.double()[..., None] * dense.double()[..., sources, :]
    out = products.new_zeros((*dense.shape[:-2], n if transpose else m, dense.shape[-1]))
    return out.index_add_(-2, targets, products)


def _error_bound(
    truth: Tensor,
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    **options: Any,
) -> Tensor:
    magnitude = _reference(rows, cols, values.abs(), dense.abs(), **options)
    slack = tolerance(common_accumulator(values.dtype, dense.dtype), cols.numel()) * magnitude
    return rounded_bound(slack, truth, dense.dtype)


SPMM = register(
    Operator(
        schema=(
            "spmm(Tensor rows, Tensor cols, Tensor values, Tensor dense, *, SymInt m, SymInt n, "
            "bool compressed=False, bool transpose=False) -> Tensor"
        ),
        compute=_compute,
        fake=_fake,
        backward=_backward,
        reference=_reference,
        error_bound=_error_bound,
    )
)
