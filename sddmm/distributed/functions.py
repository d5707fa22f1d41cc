"""The package's functions on a DistributedPattern; `sddmm.sddmm` and the others come here for one.

Every rank of the pattern calls them at the same time, with its own part of the operands: tensors of
its rows, or DTensors whose shards these are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS
from sddmm.distributed.agreement import agree, agreement
from sddmm.distributed.attention import sparse_attention as sparse_attention
from sddmm.distributed.operators import (
    Sampling,
    Weighting,
    prepare_panels,
    prepare_product,
    prepare_sample,
    sample,
    weighted_sums,
)
from sddmm.distributed.pattern import DistributedPattern
from sddmm.distributed.plan import DistributedPlan
from sddmm.distributed.shards import Shards, cast_for_autocast, local_part
from sddmm.dtypes import DTYPES, PRECISIONS, common_accumulator, dtype_names
from sddmm.operands import check_dense, check_operands, named_values, real_number, shape_text
from sddmm.ops import traced
from sddmm.ops.softmax import softmax as local_softmax
from sddmm.ops.spmm_operator import check_out_dtype
from sddmm.prepared import PreparedPlan
from sddmm.problem import checked_integer, product_shape

# What has a value each, in the words of an error.
_NONZEROS = "nonzero of this rank's rows"


class SampleCall(NamedTuple):
    """The checked arguments of a call of sddmm. b_t: this rank's rows of B^T."""

    a: Tensor
    b_t: Tensor
    options: Sampling
    values: Tensor | None
    out_dtype: torch.dtype


def sddmm(
    S: DistributedPattern,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    scale: bool = True,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
) -> Tensor:
    """`sddmm.sddmm` at the nonzeros of this rank's rows, ([h,] nnz).

    a: this rank's rows of A, ([h,] m_r, k); b: its columns of B, ([h,] k, n_r), best the transpose
    of contiguous rows. Or DTensors sharded by rows of A and by columns of B. The values are local
    in either case, as the nonzeros of the rows make no equal shards.
    """
    return _sddmm(S, a, b, alpha, scale, out_dtype, precision, "sddmm")


def _sddmm(
    S: DistributedPattern,
    a: Any,
    b: Any,
    alpha: Any,
    scale: bool,
    out_dtype: torch.dtype | None,
    precision: str,
    name: str,
    plan: DistributedPlan | None = None,
) -> Tensor:
    """plan: the plan that is run."""

    def check() -> tuple[tuple[SampleCall, list[PreparedPlan]], Mapping[str, object]]:
        call = _sample_call(S, a, b, alpha, S.values if scale else None, out_dtype, precision)
        if plan is not None:
            call = call._replace(options=plan.options)
            plan.check_fit(call.a)
        return (call, prepare_sample(S, call.a, call.options)), _sample_facts(call)

    with agreement(S.grid, name, check) as (call, plans):
        samples = sample(S, call.a, call.b_t, call.options, plans)
    if call.values is None:
        return samples
    return (samples * call.values.to(samples.dtype)).to(call.out_dtype)


def sampled_addmm(
    S: DistributedPattern, a: Any, b: Any, *, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """`sddmm.sampled_addmm` at the nonzeros of this rank's rows, ([h,] nnz); S needs values."""

    def check() -> tuple[tuple[SampleCall, Tensor, float], Mapping[str, object]]:
        scale = real_number(beta, "beta")
        values = traced.require_values(S.values)
        call = _sample_call(S, a, b, alpha, values, None, "ieee")
        dtype = traced.sum_dtype(call.a.dtype, scale) or call.a.dtype
        call = call._replace(options=call.options._replace(out_dtype=dtype))
        prepare_sample(S, call.a, call.options)
        return (call, values, scale), {**_sample_facts(call), "beta": scale}

    with agreement(S.grid, "sampled_addmm", check) as (call, values, scale):
        samples = sample(S, call.a, call.b_t, call.options)
    return traced.add_scaled(samples, scale, values.to(call.a.dtype)).to(call.a.dtype)


class ProductCall(NamedTuple):
    """The checked arguments of a call of spmm."""

    values: Tensor
    dense: Tensor
    options: Weighting
    shards: Shards | None


def spmm(
    S: DistributedPattern,
    dense: Any,
    *,
    values: Any = None,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """`sddmm.spmm`, this rank's rows of the result.

    dense: this rank's rows of X, ([h,] n_r, d), with `transpose` ([h,] m_r, d); the result has its
    rows of S, with `transpose` its columns. A DTensor gives a DTensor. values: of this rank's
    nonzeros, (nnz,) or (h, nnz); by default S's own.
    """

    def check() -> tuple[ProductCall, Mapping[str, object]]:
        if not isinstance(transpose, bool):
            raise TypeError(f"transpose must be True or False, got {transpose!r}")
        check_out_dtype(out_dtype)
        call = _product_call(S, dense, values, transpose, real_number(alpha, "alpha"), out_dtype)
        prepare_product(S, call.values, call.dense, call.options)
        return call, _product_facts(call)

    with agreement(S.grid, "spmm", check) as call:
        result = weighted_sums(S, call.values, call.dense, call.options)
    if call.shards is None:
        return result
    shape = product_shape(S.shape, transpose)
    return call.shards.wrap(result, shape[0], S.column_cuts if transpose else S.row_cuts)


def softmax(S: DistributedPattern, values: Any = None) -> Tensor:
    """`sddmm.softmax` of the values of this rank's rows, of which each rank holds whole ones.

    Nothing travels, so the ranks need not call it at the same time.
    """
    _, own = named_values(S.values, values, _NONZEROS)
    result: Tensor = local_softmax(S.local, own)
    return result


def plan(
    S: DistributedPattern,
    *,
    k: int,
    dtype: torch.dtype,
    heads: int | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    alpha: float = 1.0,
    scale: bool = True,
    backend: str | None = None,
    kernel: str | None = None,
    calls: int | None = None,
) -> DistributedPlan:
    """`sddmm.plan` of every panel of this rank; `run(a, b)` and `explain()` are the plan's.

    backend, kernel and calls hold for every panel.
    """

    def check() -> tuple[DistributedPlan, Mapping[str, object]]:
        number = real_number(alpha, "alpha")
        count = MANY_CALLS if calls is None else checked_integer(calls, "calls", 1)
        values = S.values if scale else None
        if dtype not in DTYPES:
            raise TypeError(f"dtype must be one of {dtype_names(DTYPES)}, got {dtype!r}")
        _check_values(values, dtype)
        result_dtype = out_dtype or dtype
        sampled = result_dtype if values is None else common_accumulator(dtype, dtype)
        options = Sampling(number, sampled, precision, backend, kernel, count)
        begin = time.perf_counter()
        plans = prepare_panels(S, k, dtype, heads, options)
        ms = (time.perf_counter() - begin) * 1e3

        def run(plan: DistributedPlan, a: Any, b: Any) -> Tensor:
            name = "the run of a plan"
            return _sddmm(S, a, b, number, scale, result_dtype, precision, name, plan)

        plan = DistributedPlan(S, k, dtype, heads, result_dtype, options, plans, ms, run)
        facts = {"k": k, "dtype": dtype, "heads": heads, "out_dtype": result_dtype}
        return plan, {**facts, "precision": precision, "alpha": number, "scale": values is not None}

    return agree(S.grid, "plan", check)


def _sample_call(
    S: DistributedPattern,
    a: Any,
    b: Any,
    alpha: Any,
    values: Tensor | None,
    out_dtype: torch.dtype | None,
    precision: str,
) -> SampleCall:
    a = cast_for_autocast(local_part(S, a, "a", -2, S.row_cuts, S.shape[0])[0], S)
    b = cast_for_autocast(local_part(S, b, "b", -1, S.column_cuts, S.shape[1])[0], S)
    check_operands(a, b)
    for name, x, axis, own, what in (
        ("a", a, -2, S.rows, "rows"), ("b", b, -1, S.columns, "columns")
    ):  # fmt: skip
        size = own.stop - own.start
        if x.shape[axis] != size:
            raise ValueError(
                f"rank {S.grid.ranks[S.grid.place]} holds {what} {own.start}..{own.stop} of S, so "
                f"{name} must have {size} {what} here; got {name} {shape_text(x)}"
            )
        _check_device(name, x, S)
    check_out_dtype(out_dtype)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision != "ieee" and a.dtype != torch.float32:
        raise ValueError(f"precision={precision!r} applies to float32 only, got dtype {a.dtype}")
    if values is not None:
        values = cast_for_autocast(values, S)
        _check_values(values, a.dtype)
    result_dtype = out_dtype or a.dtype
    sampled = result_dtype if values is None else common_accumulator(a.dtype, a.dtype)
    options = Sampling(real_number(alpha, "alpha"), sampled, precision)
    return SampleCall(a, b.mT, options, values, result_dtype)


def _product_call(
    S: DistributedPattern,
    dense: Any,
    values: Any,
    transpose: bool,
    alpha: float,
    out_dtype: torch.dtype | None,
) -> ProductCall:
    own_rows = S.rows if transpose else S.columns
    cuts = S.row_cuts if transpose else S.column_cuts
    x, shards = local_part(S, dense, "dense", -2, cuts, cuts[-1])
    name, values = named_values(S.values, values, _NONZEROS)
    if not isinstance(values, Tensor):
        raise TypeError(f"values must be a torch tensor, got {type(values)}")
    x, values = cast_for_autocast(x, S), cast_for_autocast(values, S)
    check_dense("dense", x, S.device)
    check_dense(name, values, S.device)
    if x.dtype != values.dtype:
        raise TypeError(
            f"{name} are {values.dtype} and dense is {x.dtype}; convert one: their dtypes must "
            f"agree"
        )
    size = own_rows.stop - own_rows.start
    if x.dim() not in (2, 3) or x.shape[-2] != size:
        what = "rows" if transpose else "columns"
        raise ValueError(
            f"rank {S.grid.ranks[S.grid.place]} holds {what} {own_rows.start}..{own_rows.stop} of "
            f"S, so dense must be ([h,] {size}, d) here; got dense {shape_text(x)}"
        )
    heads = tuple(x.shape[:-2])
    if tuple(values.shape) not in ((S.nnz,), (*heads, S.nnz)):
        raise ValueError(
            f"{name} must have one entry per nonzero of this rank, ({S.nnz},) or (h, {S.nnz}) "
            f"beside dense {shape_text(x)}; got shape {shape_text(values)}"
        )
    options = Weighting(alpha, out_dtype or x.dtype, transpose)
    return ProductCall(values, x, options, shards)


def _sample_facts(call: SampleCall) -> dict[str, object]:
    a, b_t = call.a, call.b_t
    return {
        "heads": a.shape[0] if a.dim() == 3 else None,
        "k": a.shape[-1],
        "dtype": a.dtype,
        "out_dtype": call.out_dtype,
        "alpha": call.options.alpha,
        "precision": call.options.precision,
        "whether S's values are used": call.values is not None,
        "whether a gradient is recorded": torch.is_grad_enabled(),
        "whether a requires grad": a.requires_grad,
        "whether b requires grad": b_t.requires_grad,
        "whether S's values require grad": call.values is not None and call.values.requires_grad,
    }


def _product_facts(call: ProductCall) -> dict[str, object]:
    dense, values, options = call.dense, call.values, call.options
    return {
        "heads": dense.shape[0] if dense.dim() == 3 else None,
        "d": dense.shape[-1],
        "dimensions of values": values.dim(),
        "dtype": dense.dtype,
        "out_dtype": options.out_dtype,
        "alpha": options.alpha,
        "transpose": options.transpose,
        "whether a gradient is recorded": torch.is_grad_enabled(),
        "whether dense requires grad": dense.requires_grad,
        "whether values require grad": values.requires_grad,
    }


def _check_device(name: str, x: Tensor, S: DistributedPattern) -> None:
    if x.device != S.device:
        raise ValueError(
            f"{name} is on {x.device} and S on {S.device}; move one: they must be on the same "
            f"device"
        )


def _check_values(values: Tensor | None, dtype: torch.dtype) -> None:
    if values is not None and values.dtype != dtype:
        raise TypeError(
            f"S has values of {values.dtype} and a, b are {dtype}; convert one, or pass "
            f"scale=False to leave S's values out"
        )
