"""Calls that go to the torch operator (`routing.py`); nothing is cached for their S.

The operator receives S's own index tensors. Only metadata of tensors (shape, dtype, device, layout)
is read, so that tracers can follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.cupy_arrays import to_tensor
from sddmm.dtypes import HALF_DTYPES
from sddmm.operands import check_fit, check_operands, identity, needs_grad
from sddmm.ops.autocast import autocast_dtype
from sddmm.ops.routing import is_intercepted
from sddmm.sparse.formats import index_tensor
from sddmm.sparse.indices import require_alike
from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.torch_tensors import (
    Parts,
    check_gradient_order,
    parts_of_tensor,
    pattern_over,
)

# What S may be in a graph of torch.compile, which takes no sparse tensors.
TRACEABLE = (SparsePattern, tuple)


def needs_operator(S: Any, to_output: Any) -> bool:
    """Whether a call that is not plain must go to the operator; to_output converts its result.

    Autocast alone does not reach numpy and CuPy operands and scipy or cupyx matrices, which hold
    no bfloat16: they are computed as they are.
    """
    if is_intercepted():
        return True
    package = type(S).__module__.partition(".")[0]
    return to_output in (identity, to_tensor) and package not in ("scipy", "cupyx")


def parts_of(S: Any) -> Parts:
    """The parts of a torch sparse tensor, a SparsePattern or a tuple of COO indices."""
    if isinstance(S, SparsePattern):
        return Parts(
            S.major_indices, S.col_indices, S.is_csr, S.shape, None, identity, S.blocksize
        )  # fmt: skip
    if isinstance(S, tuple) and len(S) == 3:
        rows, cols, shape = S
        _check_indices(rows, cols)
        m, n = shape
        return Parts(rows, cols, False, (m, n), None, identity)
    if isinstance(S, Tensor):
        parts = parts_of_tensor(S)
        if S.grad_fn is not None and parts.compressed:
            check_gradient_order(S, pattern_over(parts))
        return parts
    raise TypeError(
        f"where torch compiles, traces, transforms or observes operators, S must be a torch sparse "
        f"COO, CSR or BSR tensor, a SparsePattern, or the tuple (row_indices, col_indices, shape); "
        f"got {type(S)}"
    )


def sample(
    parts: Parts,
    a: Tensor,
    b: Tensor,
    alpha: float,
    scale: bool = True,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
) -> Tensor:
    """The values that `sddmm.sddmm` returns."""
    check_operands(a, b, alike=False)
    check_fit(a, b, parts.shape, parts.rows.device)
    result: Tensor = torch.ops.sddmm.sddmm(
        parts.rows,
        parts.cols,
        a,
        b,
        parts.values if scale else None,
        compressed=parts.compressed,
        blocksize=parts.blocksize,
        alpha=alpha,
        out_dtype=out_dtype,
        precision=precision,
    )
    return result


def sampled_addmm(parts: Parts, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    """The values that `sddmm.sampled_addmm` returns."""
    values = require_values(parts.values)
    dtype = autocast_dtype(a.dtype, a.device)
    if beta != 0 and autocast_dtype(values.dtype, values.device) != dtype:
        raise TypeError(f"S has values of {values.dtype} and a @ b is {dtype}; convert one")
    result = sample(parts, a, b, alpha, scale=False, out_dtype=sum_dtype(dtype, beta))
    return add_scaled(result, beta, values.to(dtype)).to(dtype)


def require_values(values: Tensor | None) -> Tensor:
    if values is None:
        raise ValueError(
            "S must have values for sampled_addmm, got a bare pattern; use sddmm, or give values"
        )
    return values


def sum_dtype(dtype: torch.dtype, beta: float) -> torch.dtype | None:
    """The dtype of products to which beta * S is added: a half type may hold only their sum."""
    return torch.float32 if beta != 0 and dtype in HALF_DTYPES else None


def add_scaled(result: Tensor, beta: float, values: Tensor) -> Tensor:
    """result + beta * values; with beta = 0 values are not read, and have zeros as gradient."""
    if beta != 0:
        return result + beta * values.to(result.dtype)
    if not needs_grad(values):
        return result
    everywhere = torch.ones(values.shape, dtype=torch.bool, device=values.device)
    return result + values.masked_fill(everywhere, 0.0)


def without_base(values: Tensor) -> Tensor:
    """The values with the same memory and gradient, but not as a view of a sparse tensor, which
    Dynamo cannot take as input of a graph."""
    if values._base is None or values._base.layout == torch.strided:
        return values
    result: Tensor = _WithoutBase.apply(values)  # type: ignore[no-untyped-call]
    return result


class _WithoutBase(torch.autograd.Function):
    """Returns its argument as a tensor that is no view, and passes the gradient through."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _check_indices(rows: Any, cols: Any) -> None:
    for name, indices in (("row_indices", rows), ("col_indices", cols)):
        if not isinstance(indices, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(indices)}")
        index_tensor(indices, name)
    require_alike(rows, "row_indices", cols)
    if rows.shape[0] != cols.shape[0]:
        raise ValueError(
            f"row_indices and col_indices must have one entry per nonzero each, "
            f"got {rows.shape[0]} and {cols.shape[0]}"
        )
