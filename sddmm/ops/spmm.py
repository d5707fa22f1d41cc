"""spmm, the product of a sparse and a dense matrix; spmm_operator.py is the torch operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling

from sddmm.cache import CACHE
from sddmm.cupy_arrays import make_cupy_wait
from sddmm.operands import as_tensors, check_dense, named_values, needs_grad, real_number, remember
from sddmm.ops import traced
from sddmm.ops.autocast import autocast_dtype, without_autocast
from sddmm.ops.routing import ELSEWHERE, dynamo_callback, is_plain
from sddmm.ops.spmm_operator import PROBLEMS, check_out_dtype, check_product
from sddmm.ops.traced import TRACEABLE, needs_operator
from sddmm.problem import SpmmProblem, product_shape
from sddmm.products import product_of, product_problem
from sddmm.sparse.containers import parse_sparse
from sddmm.sparse.indices import BlockSize, stored_nnz
from sddmm.sparse.pattern import SparsePattern


def spmm(
    S: Any,
    dense: Any,
    *,
    values: Any = None,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Sparse-dense matrix product: alpha * (S @ dense), or alpha * (S^T @ dense) with `transpose`.

    S: an m x n matrix of any kind that `sddmm` takes, in any order of nonzeros; duplicates add up.
    dense: (n, d), or (h, n, d) for h heads over one pattern; with `transpose` (m, d) or (h, m, d).
        Any strides. float16, bfloat16, float32 or float64, the same as the values; a torch tensor
        on S's device, or a numpy or CuPy array.
    values: one for each nonzero in S's order, (nnz,), or (h, nnz) with heads; used in place of S's
        own. A `SparsePattern` and a tuple have none of their own, so they need some. Values without
        heads serve every head.
    out_dtype: of the result; dense's if None. Half types accumulate in float32 and round once.

    Returns a dense (m, d) or (h, m, d), with `transpose` (n, d) or (h, n, d): numpy or CuPy if
    dense, and the values if given, are. A row without nonzeros is zero. Differentiable in dense and
    in the values, S's own too, any number of times. The same call gives the same bits every
    time, and so do its gradients: nothing is added by atomics. The first call with a pattern, and
    the first with its transpose, prepare for all further ones.

    alpha, autocast, what is remembered of S's indices, and what torch.compile, torch.func and
    forward mode do: as in `sddmm`. S as a scipy matrix carries no gradient of its own values, but
    dense does.

    Raises TypeError or ValueError, naming the argument, for a S without values where none are
    given, operands that do not fit S or each other, indices out of range, and kinds, dtypes or
    devices that are not supported.
    """
    if not isinstance(S, TRACEABLE) if is_dynamo_compiling() else dynamo_callback():
        return _untraced_spmm(
            S, dense, values=values, transpose=transpose, alpha=alpha, out_dtype=out_dtype
        )
    if type(S) in ELSEWHERE:
        return ELSEWHERE[type(S)].spmm(
            S, dense, values=values, transpose=transpose, alpha=alpha, out_dtype=out_dtype
        )
    operands = {"dense": dense} if values is None else {"dense": dense, "values": values}
    tensors, to_output = as_tensors(operands)
    dense, values = tensors["dense"], tensors.get("values")
    alpha = real_number(alpha, "alpha")
    if not isinstance(transpose, bool):
        raise TypeError(f"transpose must be True or False, got {transpose!r}")
    check_out_dtype(out_dtype)
    if not is_plain(dense, values) and needs_operator(S, to_output):
        parts = traced.parts_of(S)
        matrix = Matrix(parts.rows, parts.cols, parts.compressed, parts.shape, parts.blocksize)
        name, values = named_values(parts.values, values)
        _check(matrix, parts.shape, name, values, dense, transpose)
        return to_output(_operate(matrix, values, dense, transpose, alpha, out_dtype))
    sparse = parse_sparse(
        S, use_cache=not isinstance(S, SparsePattern), reads_values=values is None
    )
    pattern = sparse.pattern
    name, values = named_values(sparse.values, values)
    problem = _checked_problem(
        pattern, name, values, dense, transpose, sparse.transposed, out_dtype
    )
    transpose = transpose != sparse.transposed
    if not needs_grad(values, dense):
        with without_autocast():
            result = product_of(problem, pattern, values, dense, None, transpose, alpha)
        if sparse.is_cupyx:
            make_cupy_wait(result.device)
        return to_output(result)
    if sparse.is_scipy:  # the backward reads what scipy may change until then
        pattern = sparse.stable_pattern()
        values = values if values.requires_grad else values.clone()
        if sparse.is_cupyx:
            make_cupy_wait(pattern.device)
    CACHE.of_pattern(pattern)  # from which the operator takes compressed views
    return to_output(_operate(Matrix.of(pattern), values, dense, transpose, alpha, out_dtype))


# torch.compile takes no sparse tensor into a graph; see `sddmm`.
_untraced_spmm = _disable_dynamo(spmm)


class Matrix(NamedTuple):
    """The index tensors and the shape of S as the torch operator takes them."""

    rows: Tensor
    cols: Tensor
    compressed: bool
    shape: tuple[int, int]
    blocksize: BlockSize | None = None

    @classmethod
    def of(cls, pattern: SparsePattern) -> Matrix:
        return cls(
            pattern.major_indices, pattern.col_indices, pattern.is_csr, pattern.shape,
            pattern.blocksize,
        )  # fmt: skip

    @property
    def nnz(self) -> int:
        return stored_nnz(self.cols, self.blocksize)


def _operate(
    matrix: Matrix,
    values: Tensor,
    dense: Tensor,
    transpose: bool,
    alpha: float,
    out_dtype: torch.dtype | None,
) -> Tensor:
    result: Tensor = torch.ops.sddmm.spmm(
        matrix.rows,
        matrix.cols,
        values,
        dense,
        m=matrix.shape[0],
        n=matrix.shape[1],
        compressed=matrix.compressed,
        blocksize=matrix.blocksize,
        transpose=transpose,
        alpha=alpha,
        out_dtype=out_dtype,
    )
    return result


def _checked_problem(
    pattern: SparsePattern,
    name: str,
    values: Tensor,
    dense: Tensor,
    transpose: bool,
    is_transposed: bool,
    out_dtype: torch.dtype | None,
) -> SpmmProblem:
    """The problem of a call whose operands fit; raises for others. name: what errors call the
    values. is_transposed: whether the pattern is that of S's transpose."""
    signature = (
        pattern.shape, pattern.nnz, pattern.index_dtype, pattern.device, values.shape, dense.shape,
        values.dtype, dense.dtype, values.device, dense.device, values.layout, dense.layout,
        transpose != is_transposed, out_dtype,
    )  # fmt: skip
    problem = PROBLEMS.get(signature)
    if problem is None:
        shape = product_shape(pattern.shape, is_transposed)
        _check(Matrix.of(pattern), shape, name, values, dense, transpose)
        problem = product_problem(
            pattern, values, dense, None, transpose != is_transposed, out_dtype
        )
        if values.dtype == dense.dtype:  # others fit under autocast alone
            remember(PROBLEMS, signature, problem)
    return problem


def _check(
    matrix: Matrix,
    shape: tuple[int, int],
    name: str,
    values: Tensor,
    dense: Tensor,
    transpose: bool,
) -> None:
    """Raise unless values and dense fit S, which has this shape. name: what errors call values."""
    check_dense("dense", dense, matrix.cols.device)
    check_dense(name, values, matrix.cols.device)
    if values.dtype != dense.dtype and autocast_dtype(
        values.dtype, values.device
    ) != autocast_dtype(dense.dtype, dense.device):
        raise TypeError(
            f"{name} are {values.dtype} and dense is {dense.dtype}; convert one: their dtypes must "
            f"agree"
        )
    check_product(shape, matrix.nnz, values, dense, transpose)
