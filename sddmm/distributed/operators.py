"""Samples and products of a distributed matrix, and their gradients, on each rank's own tensors.

The two are each other's gradients, so they are differentiable any number of times. All ranks call
them at the same time and with the same options; `functions.py` makes sure of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS, resolve_lazy_view
from sddmm.cache import CACHE
from sddmm.distributed.agreement import agreement
from sddmm.distributed.blocks import Panel, is_sliced
from sddmm.distributed.pattern import DistributedPattern
from sddmm.distributed.sliced_products import (
    Term,
    both_sliced_products,
    prepare_sliced_product,
    sliced_product,
    sliced_transposed_product,
)
from sddmm.distributed.timeline import span
from sddmm.distributed.travel import panels_of, reduce_panels
from sddmm.dtypes import common_accumulator
from sddmm.operands import needs_grad
from sddmm.ops.autocast import without_autocast
from sddmm.ops.routing import is_intercepted
from sddmm.ops.samples import heads_as_columns
from sddmm.prepared import PreparedPlan
from sddmm.problem import make_problem
from sddmm.products import find_or_prepare, product, product_problem


class Sampling(NamedTuple):
    """The options of a sample: alpha, the dtype of the values, and the requests of a plan."""

    alpha: float = 1.0
    out_dtype: torch.dtype = torch.float32
    precision: str = "ieee"
    backend: str | None = None
    kernel: str | None = None
    calls: int = MANY_CALLS


class Weighting(NamedTuple):
    """The options of a product: alpha, the dtype of the result, and whether S is transposed."""

    alpha: float
    out_dtype: torch.dtype
    transpose: bool = False


def sample(
    S: DistributedPattern,
    a: Tensor,
    b_t: Tensor,
    options: Sampling,
    plans: list[PreparedPlan] | None = None,
) -> Tensor:
    """alpha * (A B) at the nonzeros of this rank's rows, ([h,] nnz).

    a: this rank's rows of A, ([h,] m_r, k). b_t: its rows of B^T, ([h,] n_r, k). plans: what
    `prepare_sample` has given for them.
    """
    if not _is_followed(a, b_t):
        return _compute_sample(S, a, b_t, options, plans)
    values: Tensor = _Sample.apply(S, a, b_t, options, plans)  # type: ignore[no-untyped-call]
    return values


def weighted_sums(
    S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
) -> Tensor:
    """This rank's rows of alpha * W X, or of alpha * W^T X, with W the matrix S of these values.

    values: of this rank's nonzeros, (nnz,) or (h, nnz). dense: its rows of X.
    """
    if not _is_followed(values, dense):
        return _weighted_sums(S, values, dense, options)
    sums: Tensor = _WeightedSums.apply(S, values, dense, options)  # type: ignore[no-untyped-call]
    return sums


def _is_followed(*operands: Tensor) -> bool:
    """Whether anything follows a call with these operands, which autograd.Function must know of; it
    takes long, before a kernel is launched."""
    return needs_grad(*operands) or is_intercepted()


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *call: Any) -> Tensor:
        """call: the arguments of `_compute_sample`."""
        ctx.S, a, b_t, ctx.options, _ = call
        ctx.save_for_backward(a, b_t)
        return _compute_sample(*call)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """dA = alpha * G B^T and dB^T = alpha * G^T A, with G the gradient at S's nonzeros."""
        a, b_t = ctx.saved_tensors
        S, alpha, grad = ctx.S, ctx.options.alpha, grads[0]
        of_a = Weighting(alpha, a.dtype)
        of_b = Weighting(alpha, b_t.dtype, transpose=True)
        needs_a, needs_b = ctx.needs_input_grad[1:3]

        def prepare() -> None:
            if needs_a:
                prepare_product(S, grad, b_t, of_a)
            if needs_b:
                prepare_product(S, grad, a, of_b)

        tensors = {"the gradient": grad, "a": a, "b": b_t}
        with _agreement_on_backward(S, "the gradient of sddmm", tensors, prepare):
            grad_a: Tensor | None
            grad_b_t: Tensor | None
            if needs_a and needs_b and is_sliced(S.way) and not torch.is_grad_enabled():
                grad_a, grad_b_t = _both_gradients(S, grad, a, b_t, alpha)
            else:
                grad_a = weighted_sums(S, grad, b_t, of_a) if needs_a else None
                grad_b_t = weighted_sums(S, grad, a, of_b) if needs_b else None
        return None, grad_a, grad_b_t, None, None


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
    ) -> Tensor:
        ctx.save_for_backward(values, dense)
        ctx.S, ctx.options = S, options
        return _weighted_sums(S, values, dense, options)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """dV = alpha * (G X^T) at S's nonzeros and dX = alpha * W^T G; transposed likewise."""
        values, dense = ctx.saved_tensors
        S, (alpha, _, transpose), grad = ctx.S, ctx.options, grads[0]
        needs_values, needs_dense = ctx.needs_input_grad[1:3]
        dtype = torch.promote_types(grad.dtype, dense.dtype)
        of_rows, of_columns = (dense, grad) if transpose else (grad, dense)
        if values.dim() == 1 and dense.dim() == 3:  # heads share values: their gradients add up
            of_rows, of_columns = heads_as_columns(of_rows), heads_as_columns(of_columns)
        of_rows, of_columns = of_rows.to(dtype), of_columns.to(dtype)
        of_values = Sampling(alpha, values.dtype)
        of_dense = Weighting(alpha, dense.dtype, not transpose)

        def prepare() -> None:
            if needs_values:
                prepare_sample(S, of_rows, of_values)
            if needs_dense:
                prepare_product(S, values, grad, of_dense)

        tensors = {"the gradient": grad, "values": values, "dense": dense}
        with _agreement_on_backward(S, "the gradient of spmm", tensors, prepare):
            grad_values = sample(S, of_rows, of_columns, of_values) if needs_values else None
            grad_dense = weighted_sums(S, values, grad, of_dense) if needs_dense else None
        return None, grad_values, grad_dense, None


def _weighted_sums(
    S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
) -> Tensor:
    compute = _compute_transposed_product if options.transpose else _compute_product
    with without_autocast():
        return compute(S, resolve_lazy_view(values), resolve_lazy_view(dense), options)


def _compute_sample(
    S: DistributedPattern,
    a: Tensor,
    b_t: Tensor,
    options: Sampling,
    plans: list[PreparedPlan] | None,
) -> Tensor:
    """plans: of all panels, by ring position; found if None."""
    plans = prepare_sample(S, a, options) if plans is None else plans
    by_panel = dict(zip(map(id, S.block.panels), plans, strict=True))
    with without_autocast():
        block_a, b_t = S.block.gather_rows(resolve_lazy_view(a)), resolve_lazy_view(b_t)
        shape = (*a.shape[:-2], S.block.nnz)
        values = torch.empty(shape, dtype=options.out_dtype, device=a.device)
        for panel, rows, label in panels_of(S.block, S.way, b_t, S.ring_sizes):
            with span("compute", label):
                part = by_panel[id(panel)].compute(block_a, rows.mT, None, options.alpha)
                if panel.places is None:
                    values = part
                else:
                    panel.places.put(part, values)
        return S.block.scatter_values(values)


def prepare_sample(S: DistributedPattern, a: Tensor, options: Sampling) -> list[PreparedPlan]:
    """The plans of all panels for operands like `a`, ([h,] m_r, k)."""
    return prepare_panels(S, a.shape[-1], a.dtype, a.shape[0] if a.dim() == 3 else None, options)


def prepare_panels(
    S: DistributedPattern, k: int, dtype: torch.dtype, heads: int | None, options: Sampling
) -> list[PreparedPlan]:
    """The plans of all panels, by ring position; prepared at their first use."""
    plans = []
    for panel in S.block.panels:
        problem = make_problem(
            panel.pattern, k=k, dtype=dtype, heads=heads, out_dtype=options.out_dtype,
            precision=options.precision,
        )  # fmt: skip
        requests = options.backend, options.kernel, options.calls
        plans.append(CACHE.get_or_prepare(panel.pattern, problem, *requests))
    return plans


def prepare_product(
    S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
) -> None:
    """Prepare the products of all panels with operands like these, once for each kind."""
    block, heads = S.block, tuple(dense.shape[:-2])
    kind = values.dtype, values.dim(), dense.dtype, heads, dense.shape[-1], options
    if kind in block.prepared:  # as to look for each of them takes long
        return
    _prepare_product(S, values, dense, options)
    block.prepared.add(kind)


def _prepare_product(
    S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
) -> None:
    out_dtype = common_accumulator(values.dtype, dense.dtype)
    if is_sliced(S.way):
        dtype = options.out_dtype if _is_direct(S, options) else out_dtype
        prepare_sliced_product(S.block, values, dense, options.transpose, dtype)
        return
    for panel in S.block.panels:
        pattern, transpose = panel.pattern, options.transpose
        problem = product_problem(pattern, values, dense, None, transpose, out_dtype)
        if problem.nnz and dense.shape[-1] and (problem.heads is None or problem.heads):
            find_or_prepare(pattern, problem, transpose)


def _compute_product(
    S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
) -> Tensor:
    weights = S.block.gather_values(values)
    if is_sliced(S.way):
        wide = common_accumulator(values.dtype, dense.dtype)
        dtype = options.out_dtype if _is_direct(S, options) else wide
        sums = sliced_product(S.block, weights, dense, options.alpha, dtype)
        return S.block.scatter_rows(sums).to(options.out_dtype)
    total: Tensor | None = None
    for panel, rows, label in panels_of(S.block, S.way, dense, S.ring_sizes):
        with span("compute", label):
            part = _part(panel, weights, rows, options)
            total = part if total is None else total.add_(part)
    assert total is not None
    return S.block.scatter_rows(total).to(options.out_dtype)


def _compute_transposed_product(
    S: DistributedPattern, values: Tensor, dense: Tensor, options: Weighting
) -> Tensor:
    weights, rows = S.block.gather_values(values), S.block.gather_rows(dense)
    if is_sliced(S.way):
        return sliced_transposed_product(S.block, weights, rows, options.alpha, options.out_dtype)

    def compute(panel: Panel, label: str) -> Tensor:
        with span("compute", label):
            return _part(panel, weights, rows, options)

    return reduce_panels(S.block, S.way, S.ring_sizes, compute).to(options.out_dtype)


def _both_gradients(
    S: DistributedPattern, grad: Tensor, a: Tensor, b_t: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """The gradients of a and of b_t by slices; they are not differentiated again."""
    with without_autocast():
        block, grad = S.block, resolve_lazy_view(grad)
        weights, rows = block.gather_values(grad), block.gather_rows(resolve_lazy_view(a))
        wide = common_accumulator(grad.dtype, b_t.dtype)
        direct = Term(resolve_lazy_view(b_t), a.dtype if S.grid.replicas == 1 else wide)
        of_a, of_b = both_sliced_products(block, weights, direct, Term(rows, b_t.dtype), alpha)
        return block.scatter_rows(of_a).to(a.dtype), of_b


def _is_direct(S: DistributedPattern, options: Weighting) -> bool:
    """Whether a slice's product is the result, and not a term of a sum over ranks."""
    return not options.transpose and S.grid.replicas == 1


def _part(panel: Panel, weights: Tensor, dense: Tensor, options: Weighting) -> Tensor:
    """The product with one panel, in the dtype of its sums: the total is rounded once."""
    if panel.places is not None:
        weights = panel.places.take(weights)
    out_dtype = common_accumulator(weights.dtype, dense.dtype)
    return product(
        panel.pattern, weights, dense,
        transpose=options.transpose, alpha=options.alpha, out_dtype=out_dtype,
    )  # fmt: skip


def _agreement_on_backward(
    S: DistributedPattern, name: str, tensors: Mapping[str, Tensor], prepare: Callable[[], None]
) -> AbstractContextManager[None]:
    """Agreement that all ranks compute the same gradient, of tensors of the same kinds."""

    def check() -> tuple[None, Mapping[str, object]]:
        prepare()
        facts: dict[str, object] = {"whether a gradient is recorded": torch.is_grad_enabled()}
        for label, x in tensors.items():
            facts |= {
                f"{label}'s dtype": x.dtype,
                f"whether {label} requires grad": x.requires_grad,
            }
        return None, facts

    return agreement(S.grid, name, check)
