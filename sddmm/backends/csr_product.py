"""SpMM, the product of a sparse and a dense matrix: torch's CSR product, and the definition.

Both functions take a `pattern`, its `values`, (nnz,) for all heads or (heads, nnz), and a `dense`
operand ([heads,] n, d), or ([heads,] m, d) for the transpose. They return a new tensor
([heads,] m, d), or ([heads,] n, d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sddmm.dtypes import common_accumulator
from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.views import CompressedView

# Elements of one chunk of scaled rows of the dense operand in the reference.
_CHUNK_ELEMENTS = 2**22


def csr_product(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    *,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """torch's CSR product (cuSPARSE on a GPU), one head at a time.

    Products and sums have the wider dtype of the two operands, float32 at least: torch's CPU
    product has no half types, and cuSPARSE adds partial sums of halves as halves. The result is
    rounded once, to `out_dtype`, which is dense's dtype if None.
    """
    pattern.check()
    rows, columns = product_shape(pattern.shape, transpose)
    shape = (*dense.shape[:-2], rows, dense.shape[-1])
    out = dense.new_zeros(shape, dtype=dense.dtype if out_dtype is None else out_dtype)
    if out.numel() == 0 or pattern.nnz == 0:
        return out.mul_(alpha)
    dtype = common_accumulator(values.dtype, dense.dtype)
    view = pattern.by_column if transpose else pattern.by_row
    # cuSPARSE reads no strides of values, and torch does not ask.
    weights = (values if view.perm is None else values[..., view.perm]).to(dtype).contiguous()
    size = padded_size((rows, columns), pattern.nnz)
    for target, head_weights, head in _heads(out, weights, dense):
        head = head.to(dtype)
        if size[1] > columns:  # pad copies, even where it adds nothing
            head = torch.nn.functional.pad(head, (0, 0, 0, size[1] - columns))
        product = _csr_tensor(view, head_weights, size) @ head
        target.copy_((product if alpha == 1 else product.mul_(alpha))[:rows])
    return out


def reference_product(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    *,
    transpose: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """The product accumulated in float64 from the definition, nonzero by nonzero; float64."""
    pattern.check()
    rows, _ = product_shape(pattern.shape, transpose)
    targets, sources = pattern.row_ids, pattern.col_ids
    if transpose:
        targets, sources = sources, targets
    shape = (*dense.shape[:-2], rows, dense.shape[-1])
    out = dense.new_zeros(shape, dtype=torch.float64)
    chunk = max(1, _CHUNK_ELEMENTS // max(1, dense.shape[-1]))
    for target, head_weights, head in _heads(out, values, dense):
        for begin in range(0, pattern.nnz, chunk):
            part = slice(begin, begin + chunk)
            gathered = head.index_select(0, sources[part]).double()
            target.index_add_(0, targets[part], gathered * head_weights[part, None].double())
    return out.mul_(alpha)


def product_shape(shape: tuple[int, int], transpose: bool) -> tuple[int, int]:
    """Rows and columns of the matrix that multiplies the dense operand."""
    return (shape[1], shape[0]) if transpose else shape


def padded_size(size: tuple[int, int], nnz: int) -> tuple[int, int]:
    """The size, or a larger one of at least `nnz` positions: cuSPARSE takes no more nonzeros.

    Duplicates may be more than positions. To merge them is wrong where the dense operand holds an
    infinity: two weights of opposite signs make NaN of it, their sum does not.
    """
    if nnz <= size[0] * size[1]:
        return size
    side = math.isqrt(nnz - 1) + 1
    return max(size[0], side), max(size[1], side)


def _heads(out: Tensor, values: Tensor, dense: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The result, the values and the dense operand of each head; one head where there are none."""
    if dense.dim() == 2:
        return iter([(out, values, dense)])
    return zip(out, values.expand(dense.shape[0], -1), dense, strict=True)


def _csr_tensor(view: CompressedView, values: Tensor, size: tuple[int, int]) -> Tensor:
    """The sparse matrix, with empty rows at its end where `size` has more than the view."""
    indptr = view.indptr
    empty_rows = size[0] + 1 - indptr.shape[0]
    if empty_rows:
        indptr = torch.cat([indptr, indptr[-1:].expand(empty_rows)])
    return torch.sparse_csr_tensor(
        indptr, view.indices.to(indptr.dtype), values, size,
        device=values.device, check_invariants=False,
    )  # fmt: skip
