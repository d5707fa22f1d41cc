"""The torch operators: SDDMM and its companion SpMM on raw dense tensors.

`torch.ops.sddmm.sddmm` and `torch.ops.sddmm.spmm` take index tensors, not sparse tensors, so that
autograd, fake tensors and torch.compile see plain operators. Each one's gradient is made of the
other, so both can be differentiated any number of times:

    P = alpha * v * (A B)|S      dA = W B^T     dB = W^T A     dv = alpha * g * (A B)|S

with g the gradient of P and W = alpha * v * g placed at S's nonzeros.

rows: crow_indices (m + 1,) if `compressed`, else row_indices (nnz,). cols: (nnz,). values: (nnz,)
or None.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sddmm.operands import check_operands, check_values, problem_of
from sddmm.pattern import SparsePattern
from sddmm.pattern_cache import PATTERNS
from sddmm.plan import prepare_once

_library = torch.library.Library("sddmm", "DEF")
_library.define(
    "sddmm(Tensor rows, Tensor cols, Tensor a, Tensor b, Tensor? values, *, "
    "bool compressed=False, float alpha=1.0, ScalarType? out_dtype=None, "
    'str precision="ieee", str? backend=None) -> Tensor'
)
_library.define(
    "spmm(Tensor rows, Tensor cols, Tensor values, Tensor dense, *, SymInt m, SymInt n, "
    "bool compressed=False, bool transpose=False) -> Tensor"
)


def _pattern(rows: Tensor, cols: Tensor, m: int, n: int, compressed: bool) -> SparsePattern:
    make = SparsePattern.from_csr if compressed else SparsePattern.from_coo
    return PATTERNS.same(make(rows, cols, (m, n)))


def _sddmm(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    compressed: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    backend: str | None = None,
) -> Tensor:
    check_operands(a, b)
    pattern = _pattern(rows, cols, a.shape[-2], b.shape[-1], compressed)
    problem = problem_of(pattern, a, b, out_dtype, precision)
    if values is not None:
        check_values(values, problem)
    return prepare_once(pattern, problem, backend).compute(a, b, values, alpha)


def _sddmm_fake(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return a.new_empty((*a.shape[:-2], cols.shape[0]), dtype=out_dtype or a.dtype)


def _sddmm_setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.options = keyword_only_inputs


def _sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, a, b, values = ctx.saved_tensors
    options = ctx.options
    place = {"m": a.shape[-2], "n": b.shape[-1], "compressed": options["compressed"]}
    grad_a = grad_b = grad_values = None
    weights = grad.to(a.dtype) * options["alpha"]
    if values is not None:
        weights = weights * values
    if ctx.needs_input_grad[2]:
        grad_a = torch.ops.sddmm.spmm(rows, cols, weights, b.mT, **place)
    if ctx.needs_input_grad[3]:
        grad_b = torch.ops.sddmm.spmm(rows, cols, weights, a, transpose=True, **place).mT
    if ctx.needs_input_grad[4]:
        wide = torch.promote_types(a.dtype, torch.float32)
        sampled = torch.ops.sddmm.sddmm(rows, cols, a, b, None, **{**options, "out_dtype": wide})
        products = sampled * grad
        grad_values = (products.sum(0) if a.dim() == 3 else products).to(values.dtype)
    return None, None, grad_a, grad_b, grad_values


def _spmm(
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
    pattern = _pattern(rows, cols, m, n, compressed)
    grouping = pattern.by_column if transpose else pattern.by_row
    size = (n, m) if transpose else (m, n)
    if dense.shape[-2] != size[1] or values.shape[-1] != pattern.nnz:
        raise ValueError(
            f"spmm of a {size[0]}x{size[1]} matrix with {pattern.nnz} nonzeros cannot take "
            f"values {tuple(values.shape)} and dense {tuple(dense.shape)}"
        )
    # torch's CPU SpMM has no half types.
    half_on_cpu = dense.device.type == "cpu" and dense.dtype.itemsize == 2
    dtype = torch.float32 if half_on_cpu else dense.dtype
    weights = (values if grouping.order is None else values[..., grouping.order]).to(dtype)
    minor = grouping.minor.to(grouping.compressed.dtype)
    out = dense.new_zeros((*dense.shape[:-2], size[0], dense.shape[-1]))
    if out.numel() == 0 or pattern.nnz == 0:
        return out
    flat = out.view(-1, *out.shape[-2:])
    heads = zip(flat, weights.view(-1, pattern.nnz), dense.reshape(-1, *dense.shape[-2:]))  # noqa: B905
    for target, head_weights, head_dense in heads:
        matrix = torch.sparse_csr_tensor(
            grouping.compressed, minor, head_weights, size, check_invariants=False
        )
        target.copy_(matrix @ head_dense.to(dtype))
    return out


def _spmm_fake(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    dense: Tensor,
    *,
    m: int,
    n: int,
    transpose: bool = False,
    **_: Any,
) -> Tensor:
    return dense.new_empty((*dense.shape[:-2], n if transpose else m, dense.shape[-1]))


def _spmm_setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.options = keyword_only_inputs


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, values, dense = ctx.saved_tensors
    options = ctx.options
    grad_values = grad_dense = None
    if ctx.needs_input_grad[2]:
        a, b = (dense, grad) if options["transpose"] else (grad, dense)
        compressed = options["compressed"]
        grad_values = torch.ops.sddmm.sddmm(rows, cols, a, b.mT, None, compressed=compressed)
        grad_values = grad_values.to(values.dtype)
    if ctx.needs_input_grad[3]:
        flipped = {**options, "transpose": not options["transpose"]}
        grad_dense = torch.ops.sddmm.spmm(rows, cols, values, grad, **flipped)
    return None, None, grad_values, grad_dense


for _name, _implementation, _fake, _setup, _backward in (
    ("sddmm", _sddmm, _sddmm_fake, _sddmm_setup, _sddmm_backward),
    ("spmm", _spmm, _spmm_fake, _spmm_setup, _spmm_backward),
):
    _library.impl(_name, _implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sddmm::{_name}", _fake, lib=_library)
    torch.library.register_autograd(
        f"sddmm::{_name}", _backward, setup_context=_setup, lib=_library
    )
