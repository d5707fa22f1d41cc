"""The torch operator sddmm: its computation and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sddmm.backends.selection import select_backend
from sddmm.cache import CACHE
from sddmm.operands import check_operands, check_values, problem_of_checked
from sddmm.ops.base import Operator, magnitude, pattern_of, register, rounded_bound, tolerance
from sddmm.ops.routing import call
from sddmm.ops.samples import sum_over_heads
from sddmm.prepared import FirstRun, calls_to_expect, first_calls, plans_of
from sddmm.problem import SddmmProblem, checked_integer
from sddmm.sparse.pattern import SparsePattern


def sampling_error_bound(
    pattern: SparsePattern,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    truth: Tensor,
    *,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
) -> Tensor:
    """Largest allowed error of every value of a sampled product, float64, shaped like `truth`.

    `tolerance` of the values' `magnitude`, and rounding to `out_dtype`.
    """
    size = magnitude(pattern, a, b) * abs(alpha)
    if values is not None:
        size = size * values.double().abs()
    slack = tolerance(a.dtype, a.shape[-1], precision=precision) * size
    return rounded_bound(slack, truth, out_dtype or a.dtype)


def _compute(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    backend: str | None = None,
    kernel_name: str | None = None,
    calls: int | None = None,
) -> Tensor:
    check_operands(a, b)
    pattern = pattern_of(rows, cols, a.shape[-2], b.shape[-1], compressed, blocksize)
    scaled = values is not None
    problem = problem_of_checked(pattern, a, b, out_dtype, precision, scaled)
    if values is not None:
        check_values(values, problem)
    if calls is None:
        server = select_backend(problem, backend)[0]
        calls = calls_to_expect(plans_of(pattern), problem, server, backend, kernel_name)
    run = FirstRun(problem, a, b, values, alpha)
    calls = checked_integer(calls, "calls", 1)
    if calls == 1 and backend is None and kernel_name is None:
        return CACHE.run_first(pattern, first_calls(problem, pattern.is_csr, True), run)
    plan = CACHE.get_or_prepare(pattern, problem, backend, kernel_name, calls, run)
    return run.result(plan.execute)


def _fake(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    blocksize: Sequence[int] | None = None,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    check_operands(a, b)
    nnz = cols.shape[0] * math.prod(blocksize or ())
    return a.new_empty((*a.shape[:-2], nnz), dtype=out_dtype or a.dtype)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of P = alpha * v * (A B)|S, with g that of P and W = alpha * v * g at S:

    dA = W B^T, dB = W^T A, dv = alpha * g * (A B)|S.
    """
    rows, cols, a, b, values = ctx.saved_tensors
    options = ctx.options
    grad_a = grad_b = grad_values = None
    matrix = {"m": a.shape[-2], "n": b.shape[-1]}
    matrix |= {name: options[name] for name in ("compressed", "blocksize", "alpha")}
    matrix["lean"] = True
    if ctx.needs_input_grad[2]:
        grad_a = call("spmm", rows, cols, grad, b.mT, values, **matrix)
    if ctx.needs_input_grad[3]:
        grad_b = call("spmm", rows, cols, grad, a, values, transpose=True, **matrix).mT
    if ctx.needs_input_grad[4]:
        sampling = {**options, "kernel_name": None, "out_dtype": values.dtype}
        grad_values = sum_over_heads(rows, cols, a, b, grad, **sampling)
    return None, None, grad_a, grad_b, grad_values


def _reference(
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
    alpha: float = 1.0,
    **_: Any,
) -> Tensor:
    return _compute(
        rows, cols, a, b, values,
        compressed=compressed, blocksize=blocksize, alpha=alpha, out_dtype=torch.float64,
        backend="reference",
    )  # fmt: skip


def _error_bound(
    truth: Tensor,
    rows: Tensor,
    cols: Tensor,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    *,
    compressed: bool = False,
    blocksize: Sequence[int] | None = None,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    **_: Any,
) -> Tensor:
    pattern = pattern_of(rows, cols, a.shape[-2], b.shape[-1], compressed, blocksize)
    return sampling_error_bound(
        pattern, a, b, values, truth, alpha=alpha, out_dtype=out_dtype, precision=precision
    )


register(
    Operator(
        # kernel_name is the kernel of `plan`: torch's own compiler has an argument called kernel.
        schema=(
            "sddmm(Tensor rows, Tensor cols, Tensor a, Tensor b, Tensor? values, *, "
            "bool compressed=False, int[]? blocksize=None, float alpha=1.0, "
            'ScalarType? out_dtype=None, str precision="ieee", str? backend=None, '
            "str? kernel_name=None, int? calls=None) -> Tensor"
        ),
        compute=_compute,
        fake=_fake,
        backward=_backward,
        reference=_reference,
        error_bound=_error_bound,
        problem=SddmmProblem,
    )
)
