"""The error bound of every result, derived from its summation, and checks against float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.backends.reference import reference_product
from sddmm.operands import as_operands, as_tensors, named_values, transpose_if_csc
from sddmm.ops.base import magnitude as _magnitude
from sddmm.ops.base import tolerance as tolerance
from sddmm.ops.sddmm import plan
from sddmm.ops.sddmm_operator import sampling_error_bound
from sddmm.ops.softmax_bounds import softmax_error_bound as _softmax_error_bound
from sddmm.ops.softmax_bounds import softmax_reference as _softmax_reference
from sddmm.ops.spmm_operator import product_error_bound
from sddmm.sparse.containers import parse_sparse
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing.mismatches import refuse_mismatches


def reference(S: Any, a: Any, b: Any, *, alpha: float = 1.0, scale: bool = True) -> Tensor:
    """sddmm's values accumulated in float64 from the definition, as a float64 tensor."""
    a, b, _ = as_operands(a, b)
    heads = a.shape[0] if a.dim() == 3 else None
    truth = plan(
        S,
        k=a.shape[-1],
        dtype=a.dtype,
        heads=heads,
        out_dtype=torch.float64,
        alpha=alpha,
        scale=scale,
        backend="reference",
    )
    with torch.no_grad():
        values: Tensor = truth.run(a, b)
    return values


def magnitude(S: Any, a: Any, b: Any) -> Tensor:
    """|a_i| |b_j|, the norms of the row of a and the column of b of every value, in float64.

    By Cauchy-Schwarz it bounds sum |a_i b_i|, and costs m + n norms instead of another SDDMM.
    Subnormal numbers of the half types count as the smallest normal one.
    """
    pattern, _, a, b = _sampling_operands(S, a, b)
    return _magnitude(pattern, a, b)


def error_bound(
    S: Any,
    a: Any,
    b: Any,
    truth: Tensor,
    *,
    out_dtype: torch.dtype,
    alpha: float = 1.0,
    scale: bool = True,
    precision: str = "ieee",
) -> Tensor:
    """Largest allowed |value - truth| of every value, float64, shaped like `truth`.

    `tolerance` of the values' `magnitude`, and rounding to `out_dtype`.
    """
    pattern, values, a, b = _sampling_operands(S, a, b)
    weights = values if scale else None
    return sampling_error_bound(
        pattern, a, b, weights, truth, alpha=alpha, out_dtype=out_dtype, precision=precision
    )


def assert_close(
    values: Any,
    S: Any,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    scale: bool = True,
    precision: str = "ieee",
) -> None:
    """Raise AssertionError unless `values`, ([h,] nnz), are sddmm(S, a, b) within `error_bound`.

    A NaN or infinity is right only where the float64 result has the same.
    """
    truth = reference(S, a, b, alpha=alpha, scale=scale)
    got = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    bound = error_bound(
        S, a, b, truth, out_dtype=got.dtype, alpha=alpha, scale=scale, precision=precision
    )
    refuse_mismatches(got, truth, bound)


def _sampling_operands(
    S: Any, a: Any, b: Any
) -> tuple[SparsePattern, Tensor | None, Tensor, Tensor]:
    """The pattern, S's own values, and the operands whose product the pattern samples."""
    sparse = parse_sparse(S)
    a, b, _ = as_operands(a, b)
    a, b = transpose_if_csc(a, b, sparse.pattern, sparse.transposed)
    return sparse.pattern, sparse.values, a, b


def spmm_reference(
    S: Any, dense: Any, *, values: Any = None, transpose: bool = False, alpha: float = 1.0
) -> Tensor:
    """spmm's result accumulated in float64 from the definition, as a float64 tensor."""
    pattern, values, dense, transpose = _spmm_operands(S, dense, values, transpose)
    return reference_product(pattern, values, dense, transpose=transpose, alpha=alpha)


def spmm_error_bound(
    S: Any,
    dense: Any,
    truth: Tensor,
    *,
    out_dtype: torch.dtype,
    values: Any = None,
    transpose: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """Largest allowed |result - truth| of every entry of spmm's result, float64, like `truth`.

    `tolerance` of a row's number of nonzeros times sum |value| |dense|, and rounding to
    `out_dtype`.
    """
    pattern, values, dense, transpose = _spmm_operands(S, dense, values, transpose)
    return product_error_bound(
        pattern, values, dense, truth, transpose=transpose, alpha=alpha, out_dtype=out_dtype
    )


def assert_spmm_close(
    result: Any,
    S: Any,
    dense: Any,
    *,
    values: Any = None,
    transpose: bool = False,
    alpha: float = 1.0,
) -> None:
    """Raise AssertionError unless `result` is spmm(S, dense, ...) within `spmm_error_bound`.

    A NaN or infinity is right only where the float64 result has the same.
    """
    options = {"values": values, "transpose": transpose, "alpha": alpha}
    truth = spmm_reference(S, dense, **options)
    got = result if isinstance(result, Tensor) else torch.as_tensor(result, device="cpu")
    bound = spmm_error_bound(S, dense, truth, out_dtype=got.dtype, **options)
    refuse_mismatches(got, truth, bound)


def _spmm_operands(
    S: Any, dense: Any, values: Any, transpose: bool
) -> tuple[SparsePattern, Tensor, Tensor, bool]:
    """The pattern, the values (S's own if None), the dense operand, and whether to transpose."""
    sparse = parse_sparse(S)
    operands = {"dense": dense} if values is None else {"dense": dense, "values": values}
    tensors, _ = as_tensors(operands)
    _, weights = named_values(sparse.values, tensors.get("values"))
    transpose = transpose != sparse.transposed
    return sparse.pattern, weights.detach(), tensors["dense"].detach(), transpose


def softmax_reference(S: Any, values: Any = None) -> Tensor:
    """softmax's values computed in float64 from the definition, as a float64 tensor."""
    return _softmax_reference(*_softmax_operands(S, values))


def softmax_error_bound(S: Any, truth: Tensor, values: Any = None) -> Tensor:
    """Largest allowed |value - truth| of every value of softmax, float64, shaped like `truth`.

    The values' own dtype rounds the result; float32, or float64 for float64, all before it.
    """
    return _softmax_error_bound(*_softmax_operands(S, values), truth)


def assert_softmax_close(result: Any, S: Any, values: Any = None) -> None:
    """Raise AssertionError unless `result`, ([h,] nnz), are softmax(S, values) within
    `softmax_error_bound`, and of the dtype of the values.

    A NaN is right only where the float64 result has one.
    """
    truth = softmax_reference(S, values)
    bound = softmax_error_bound(S, truth, values)
    refuse_mismatches(result, truth, bound, _softmax_operands(S, values)[1].dtype)


def _softmax_operands(S: Any, values: Any) -> tuple[SparsePattern, Tensor]:
    """The pattern whose rows count, and the values, S's own if None."""
    sparse = parse_sparse(S)
    own = {} if values is None else as_tensors({"values": values})[0]
    _, weights = named_values(sparse.values, own.get("values"))
    return sparse.pattern.T if sparse.transposed else sparse.pattern, weights.detach()
