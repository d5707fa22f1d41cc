"""softmax over the nonzeros of each row of a sparse matrix, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling

from sddmm.backends.row_softmax import row_softmax, row_softmax_backward
from sddmm.cache import CACHE
from sddmm.cupy_arrays import make_cupy_wait
from sddmm.dtypes import DTYPES
from sddmm.operands import (
    as_tensors,
    check_dense,
    check_per_nonzero,
    check_scipy,
    identity,
    named_values,
    needs_grad,
    shape_text,
)
from sddmm.ops import traced
from sddmm.ops.base import Operator, pattern_of, register
from sddmm.ops.routing import ELSEWHERE, dynamo_callback, is_plain
from sddmm.ops.softmax_bounds import (
    gradient_error_bound,
    gradient_reference,
    softmax_error_bound,
    softmax_reference,
)
from sddmm.ops.traced import TRACEABLE, needs_operator
from sddmm.sparse.containers import parse_sparse, to_container
from sddmm.sparse.indices import BlockSize, stored_nnz
from sddmm.sparse.pattern import SparsePattern


def softmax(S: Any, values: Any = None) -> Any:
    """Softmax over the nonzeros of each row: exp(value) over its sum in the row.

    S: an m x n matrix of any kind that `sddmm` takes, in any order of nonzeros; duplicates are
        entries of their own.
    values: one for each nonzero in S's order, (nnz,), or (h, nnz) for h heads; used in place of S's
        own. A `SparsePattern` and a tuple have none of their own, so they need some. float16,
        bfloat16, float32 or float64; a torch tensor on S's device, or a numpy or CuPy array.

    Returns S's kind with S's pattern, order and duplicates; the new values, (nnz,), for a pattern
    or a tuple; the new values, (h, nnz), with heads: numpy or CuPy if the values are. They have the
    dtype of the values: half types are computed in float32 and rounded once, also under autocast,
    which casts nothing here. The largest value of a row is subtracted first. As in torch.softmax,
    -inf gives 0, and a row that has nothing but -inf gives NaN. The same call gives the same bits.

    Differentiable in the values, S's own too, any number of times; once only through a torch sparse
    result, whose second derivatives torch loses. The gradient has the same bits on every run.

    What is remembered of S's indices, and what torch.compile, torch.func and forward mode do: as in
    `sddmm`.

    Raises TypeError or ValueError, naming the argument, for a S without values where none are
    given, values that do not fit S, indices out of range, and kinds, dtypes or devices that are not
    supported.
    """
    if not isinstance(S, TRACEABLE) if is_dynamo_compiling() else dynamo_callback():
        return _untraced_softmax(S, values)
    if type(S) in ELSEWHERE:
        return ELSEWHERE[type(S)].softmax(S, values)
    to_output: Callable[[Tensor], Any] = identity
    if values is not None:
        tensors, to_output = as_tensors({"values": values})
        values = tensors["values"]
    if not is_plain(values, None) and needs_operator(S, to_output):
        parts = traced.parts_of(S)
        nnz = stored_nnz(parts.cols, parts.blocksize)
        values = _checked_values(parts.values, values, nnz, parts.cols.device)
        result = _operate(
            parts.rows, parts.cols, values, parts.shape, parts.compressed, parts.blocksize
        )
        return to_container(parts, result, to_output)
    sparse = parse_sparse(S)
    pattern = sparse.pattern.T if sparse.transposed else sparse.pattern
    values = _checked_values(sparse.values, values, pattern.nnz, pattern.device)
    if sparse.is_scipy and values.dim() == 1:
        check_scipy(values.dtype, "give values of float32, or a SparsePattern of S", values)
    if not needs_grad(values):
        return to_container(sparse, row_softmax(pattern, values.detach()), to_output)
    if sparse.is_scipy:  # the backward reads what scipy may change until then
        pattern = pattern.clone()
        if sparse.is_cupyx:
            make_cupy_wait(pattern.device)
    CACHE.of_pattern(pattern)  # from which the operator takes the rows
    result = _operate(
        pattern.major_indices, pattern.col_indices, values, pattern.shape, pattern.is_csr,
        pattern.blocksize,
    )  # fmt: skip
    return to_container(sparse, result, to_output)


# torch.compile takes no sparse tensor into a graph; see `sddmm`.
_untraced_softmax = _disable_dynamo(softmax)


def _operate(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    shape: tuple[int, int],
    compressed: bool,
    blocksize: BlockSize | None,
) -> Tensor:
    m, n = shape
    result: Tensor = torch.ops.sddmm.softmax(
        rows, cols, values, m=m, n=n, compressed=compressed, blocksize=blocksize
    )
    return result


def _checked_values(
    own: Tensor | None, values: Tensor | None, nnz: int, device: torch.device
) -> Tensor:
    """`values`, or S's own if None; all that must fit is checked."""
    name, values = named_values(own, values)
    check_softmax_values(values, name, nnz, device)
    return values


def check_softmax_values(values: Tensor, name: str, nnz: int, device: torch.device) -> None:
    """Raise TypeError or ValueError unless values are ([h,] nnz), dense, floating, on `device`."""
    check_dense(name, values, device, no_complex="complex numbers have no softmax")
    check_per_nonzero(name, values, nnz)


def _pattern_of(
    rows: Tensor,
    cols: Tensor,
    *,
    m: int,
    n: int,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
) -> SparsePattern:
    return pattern_of(rows, cols, m, n, compressed, blocksize)


def _compute(rows: Tensor, cols: Tensor, values: Tensor, **matrix: Any) -> Tensor:
    pattern = _pattern_of(rows, cols, **matrix)
    check_softmax_values(values, "values", pattern.nnz, pattern.device)
    return row_softmax(pattern, values)


def _compute_backward(rows: Tensor, cols: Tensor, p: Tensor, grad: Tensor, **matrix: Any) -> Tensor:
    pattern = _pattern_of(rows, cols, **matrix)
    for name, x in (("p", p), ("grad", grad)):
        check_softmax_values(x, name, pattern.nnz, pattern.device)
    if p.shape != grad.shape or p.dtype != grad.dtype:
        raise ValueError(
            f"grad must be like p, {shape_text(p)} of {p.dtype}; "
            f"got {shape_text(grad)} of {grad.dtype}"
        )
    return row_softmax_backward(pattern, p, grad)


def _fake(rows: Tensor, cols: Tensor, values: Tensor, *_: Any, **__: Any) -> Tensor:
    return values.new_empty(values.shape)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, p = ctx.saved_tensors
    return None, None, torch.ops.sddmm.softmax_backward(rows, cols, p, grad, **ctx.options)


def _second_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of f(p, g) = p (g - R(p g)), with R the sum over the row and w that of f:

    dg = f(p, w), and dp = w (g - R(p g)) - g R(p w). R(y) is y - f(1, y).
    """
    rows, cols, p, g = ctx.saved_tensors
    grad_p = grad_g = None
    if ctx.needs_input_grad[2]:
        accumulator = DTYPES[p.dtype].accumulator
        wide_p, wide_g, w = (x.to(accumulator) for x in (p, g, grad))
        ones = torch.ones_like(wide_p)

        def row_sums(y: Tensor) -> Tensor:
            f: Tensor = torch.ops.sddmm.softmax_backward(rows, cols, ones, y, **ctx.options)
            return y - f

        grad_p = w * (wide_g - row_sums(wide_p * wide_g)) - wide_g * row_sums(wide_p * w)
        grad_p = grad_p.to(p.dtype)
    if ctx.needs_input_grad[3]:
        grad_g = torch.ops.sddmm.softmax_backward(rows, cols, p, grad, **ctx.options)
    return None, None, grad_p, grad_g


def _reference(rows: Tensor, cols: Tensor, values: Tensor, **matrix: Any) -> Tensor:
    return softmax_reference(_pattern_of(rows, cols, **matrix), values)


def _error_bound(
    truth: Tensor, rows: Tensor, cols: Tensor, values: Tensor, **matrix: Any
) -> Tensor:
    return softmax_error_bound(_pattern_of(rows, cols, **matrix), values, truth)


def _gradient_reference(
    rows: Tensor, cols: Tensor, p: Tensor, grad: Tensor, **matrix: Any
) -> Tensor:
    return gradient_reference(_pattern_of(rows, cols, **matrix), p, grad)


def _gradient_error_bound(
    truth: Tensor, rows: Tensor, cols: Tensor, p: Tensor, grad: Tensor, **matrix: Any
) -> Tensor:
    return gradient_error_bound(_pattern_of(rows, cols, **matrix), p, grad, truth)


_MATRIX = "*, SymInt m, SymInt n, bool compressed=False, int[]? blocksize=None"

register(
    Operator(
        schema=f"softmax(Tensor rows, Tensor cols, Tensor values, {_MATRIX}) -> Tensor",
        compute=_compute,
        fake=_fake,
        backward=_backward,
        reference=_reference,
        error_bound=_error_bound,
        saves_output=True,
        is_autocast=False,
    )
)
register(
    Operator(
        schema=(
            f"softmax_backward(Tensor rows, Tensor cols, Tensor p, Tensor grad, {_MATRIX}) "
            f"-> Tensor"
        ),
        compute=_compute_backward,
        fake=_fake,
        backward=_second_backward,
        reference=_gradient_reference,
        error_bound=_gradient_error_bound,
        is_autocast=False,
    )
)
