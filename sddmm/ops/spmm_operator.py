"""The torch operator spmm: its computation and its gradient. sddmm's gradients are products too.

Products that are gradients are `lean`: no weights of several heads are put in order at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS
from sddmm.backends.reference import reference_product
from sddmm.dtypes import DTYPES, common_accumulator, dtype_name, dtype_names
from sddmm.operands import check_dense, check_dimensions, check_per_nonzero, remember, shape_text
from sddmm.ops.base import Operator, pattern_of, register, rounded_bound, tolerance
from sddmm.ops.routing import call
from sddmm.ops.samples import heads_as_columns, sum_over_heads
from sddmm.problem import SpmmProblem, product_shape
from sddmm.products import product_of, product_problem
from sddmm.sparse.pattern import SparsePattern

# The problems of calls whose operands fitted, by the metadata of pattern and operands. Equal calls
# need no second check of them.
PROBLEMS: dict[tuple[object, ...], SpmmProblem] = {}


def check_out_dtype(out_dtype: torch.dtype | None) -> None:
    if out_dtype is not None and out_dtype not in DTYPES:
        raise TypeError(f"out_dtype must be one of {dtype_names(DTYPES)}, got {out_dtype!r}")


def check_product(
    shape: tuple[int, int], nnz: int, values: Tensor, dense: Tensor, transpose: bool
) -> None:
    """Raise ValueError unless values ([h,] nnz) and dense ([h,] n, d) fit an m x n matrix.

    With `transpose` dense is ([h,] m, d). Values without heads fit a dense operand with heads.
    """
    check_dimensions("dense", dense, "; give a vector as dense[:, None]")
    columns = product_shape(shape, transpose)[1]
    if dense.shape[-2] != columns:
        raise ValueError(
            f"S has shape {shape[0]}x{shape[1]}, so dense must have {columns} rows"
            f"{' with transpose=True' if transpose else ''}; got dense {shape_text(dense)}"
        )
    check_per_nonzero("values", values, nnz, "dense", dense)


def product_error_bound(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    truth: Tensor,
    factors: Tensor | None = None,
    *,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Largest allowed error of every entry of a product, float64, shaped like `truth`.

    `tolerance` of each row's number of nonzeros times sum |value| |dense|, and rounding. A sum in
    any order, of partial sums too, has at most so many roundings in the way of each summand.
    """
    factors = None if factors is None else factors.abs()
    size = reference_product(
        pattern, values.abs(), dense.abs(), factors, transpose=transpose, alpha=abs(alpha)
    )
    accumulator = common_accumulator(values.dtype, dense.dtype)
    lengths = (pattern.by_column if transpose else pattern.by_row).indptr.diff()
    distinct, which = torch.unique(lengths, return_inverse=True)
    gamma = torch.tensor([tolerance(accumulator, k) for k in distinct.tolist()]).to(size)
    return rounded_bound(gamma[which, None] * size, truth, out_dtype or dense.dtype)


def _compute(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    lean: bool = False,
) -> Tensor:
    size = None if blocksize is None else tuple(blocksize)
    signature: tuple[object, ...] = (
        m, n, cols.numel(), size, cols.dtype, cols.device, values.shape, dense.shape, values.dtype,
        dense.dtype, values.device, dense.device, values.layout, dense.layout, transpose, out_dtype,
        lean,
    )  # fmt: skip
    if factors is not None:
        signature += factors.shape, factors.dtype, factors.device, factors.layout
    problem = PROBLEMS.get(signature)
    if problem is not None:
        pattern = pattern_of(rows, cols, m, n, compressed, blocksize)
        return product_of(problem, pattern, values, dense, factors, transpose, alpha)
    check_dense("dense", dense, cols.device)
    check_dense("values", values, cols.device)
    check_out_dtype(out_dtype)
    pattern = pattern_of(rows, cols, m, n, compressed, blocksize)
    check_product((m, n), pattern.nnz, values, dense, transpose)
    if factors is not None:
        _check_factors(factors, pattern.nnz, dense)
    problem = product_problem(pattern, values, dense, factors, transpose, out_dtype, lean)
    remember(PROBLEMS, signature, problem)
    return product_of(problem, pattern, values, dense, factors, transpose, alpha)


def _check_factors(factors: Tensor, nnz: int, dense: Tensor) -> None:
    check_dense("factors", factors, dense.device)
    if factors.dtype != dense.dtype:
        raise TypeError(
            f"factors are {dtype_name(factors.dtype)} and dense is {dtype_name(dense.dtype)}; "
            f"convert one: their dtypes must agree"
        )
    if tuple(factors.shape) != (nnz,):
        raise ValueError(
            f"factors must have one entry per nonzero, ({nnz},), got shape {shape_text(factors)}"
        )


def _fake(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    m: int,
    n: int,
    transpose: bool = False,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    shape = (*dense.shape[:-2], n if transpose else m, dense.shape[-1])
    return dense.new_empty(shape, dtype=out_dtype or dense.dtype)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of Y = alpha * W X with W = v * f at S, and g that of Y:

    dv = alpha * f * (g X^T)|S, dX = alpha * W^T g, df = alpha * v * (g X^T)|S.
    """
    rows, cols, values, dense, factors = ctx.saved_tensors
    options = ctx.options
    grad_values = grad_dense = grad_factors = None
    dtype = torch.promote_types(grad.dtype, dense.dtype)
    wide_factors = None if factors is None else factors.to(dtype)
    if ctx.needs_input_grad[2] or ctx.needs_input_grad[4]:
        a, b = grad.to(dtype), dense.to(dtype)
        if options["transpose"]:
            a, b = b, a
        sampling = {name: options[name] for name in ("compressed", "blocksize", "alpha")}
        sampling["calls"] = MANY_CALLS  # for the same bits at every call
        if ctx.needs_input_grad[2]:
            left, right = a, b
            if values.dim() == 1 and dense.dim() == 3:  # heads share values: their gradients add up
                left, right = heads_as_columns(a), heads_as_columns(b)
            inputs = rows, cols, left, right.mT, wide_factors
            grad_values = call("sddmm", *inputs, out_dtype=values.dtype, **sampling)
        if ctx.needs_input_grad[4]:
            grad_factors = sum_over_heads(
                rows, cols, a, b.mT, values, out_dtype=factors.dtype, **sampling
            )
    if ctx.needs_input_grad[3]:
        other = {"transpose": not options["transpose"], "out_dtype": dense.dtype, "lean": True}
        grad_dense = call(
            "spmm", rows, cols, values, grad if factors is None else grad.to(dtype), wide_factors,
            **{**options, **other},
        )  # fmt: skip
    return None, None, grad_values, grad_dense, grad_factors


def _reference(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
    transpose: bool = False,
    alpha: float = 1.0,
    **_: Any,
) -> Tensor:
    pattern = pattern_of(rows, cols, m, n, compressed, blocksize)
    return reference_product(pattern, values, dense, factors, transpose=transpose, alpha=alpha)


def _error_bound(
    truth: Tensor,
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
    lean: bool = False,
    **options: Any,
) -> Tensor:
    pattern = pattern_of(rows, cols, m, n, compressed, blocksize)
    return product_error_bound(pattern, values, dense, truth, factors, **options)


register(
    Operator(
        schema=(
            "spmm(Tensor rows, Tensor cols, Tensor values, Tensor dense, Tensor? factors=None, *, "
            "SymInt m, SymInt n, bool compressed=False, int[]? blocksize=None, "
            "bool transpose=False, float alpha=1.0, ScalarType? out_dtype=None, bool lean=False) "
            "-> Tensor"
        ),
        compute=_compute,
        fake=_fake,
        backward=_backward,
        reference=_reference,
        error_bound=_error_bound,
        problem=SpmmProblem,
    )
)
