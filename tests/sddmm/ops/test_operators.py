"""What every torch operator of the package is: right within its bound, and more than a function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sddmm.ops.base import OPERATORS, Operator, register
from sddmm.testing import random_pattern

S = random_pattern(7, 9, 20, layout="coo", shuffled=True)
NAMES = ["attention", "attention_backward", "sddmm", "softmax", "softmax_backward", "spmm"]


def arguments(name: str, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    torch.manual_seed(0)
    values = torch.randn(S.nnz).to(dtype)
    if name == "sddmm":
        operands = torch.randn(7, 5).to(dtype), torch.randn(5, 9).to(dtype)
        return (S.row_ids, S.col_indices, *operands, values), {"alpha": 0.5}
    if name == "softmax":
        return (S.row_ids, S.col_indices, values), {"m": 7, "n": 9}
    if name == "softmax_backward":
        return (S.row_ids, S.col_indices, values, torch.randn(S.nnz).to(dtype)), {"m": 7, "n": 9}
    if name.startswith("attention"):
        q, k, v = (torch.randn(*size).to(dtype) for size in ((7, 5), (9, 5), (9, 4)))
        inputs = (S.row_ids, S.col_indices, q, k, v, values, torch.tensor([5]))
        options: dict[str, Any] = {"scale": 0.5, "dropout_p": 0.3}
        if name == "attention":
            return inputs, options
        results = torch.ops.sddmm.attention(*inputs, **options)
        gradients = (torch.randn_like(x) for x in results)
        return (*inputs, *results, *gradients), {**options, "needs": [True] * 4}
    dense = torch.randn(9, 4).to(dtype)
    return (S.row_ids, S.col_indices, values, dense), {"m": 7, "n": 9}


def several(result: Any) -> tuple[Tensor, ...]:
    """The results of an operator, of which most have one."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_within_the_bound_of_the_float64_reference(
    name: str, dtype: torch.dtype
) -> None:
    operator = OPERATORS[name]
    inputs, options = arguments(name, dtype)
    result = getattr(torch.ops.sddmm, name)(*inputs, **options)
    reference = operator.reference(*inputs, **options)
    error_bound = operator.error_bound(reference, *inputs, **options)
    assert several(result)[0].dtype == dtype
    for got, truth, bound in zip(*map(several, (result, reference, error_bound)), strict=True):
        assert truth.dtype == bound.dtype == torch.float64
        is_right = (got.double() - truth).abs() <= bound
        assert (is_right | (got == truth)).all()  # the logarithm of an empty row is infinite
        is_finite = truth.isfinite()
        assert bound[is_finite].max() < 0.1 * truth[is_finite].abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_the_fake_result_has_the_shape_and_dtype_of_the_real_one(name: str) -> None:
    inputs, options = arguments(name, torch.float32)
    result = getattr(torch.ops.sddmm, name)(*inputs, **options)
    made = OPERATORS[name].fake(*(x.to("meta") for x in inputs), **options)
    for real, fake in zip(several(result), several(made), strict=True):
        assert (fake.shape, fake.dtype, fake.is_meta) == (real.shape, real.dtype, True)


def test_a_new_operator_needs_its_own_functions_alone() -> None:
    def compute(x: Tensor, y: Tensor, *, factor: float = 1.0) -> Tensor:
        return factor * x @ y

    def fake(x: Tensor, y: Tensor, *, factor: float = 1.0) -> Tensor:
        return x.new_empty(x.shape[0], y.shape[1])

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        factor = ctx.options["factor"]
        return factor * grad @ y.mT, factor * x.mT @ grad

    register(
        Operator(
            schema="toy(Tensor x, Tensor y, *, float factor=1.0) -> Tensor",
            compute=compute,
            fake=fake,
            backward=backward,
            reference=lambda x, y, **options: compute(x.double(), y.double(), **options),
            error_bound=lambda truth, *inputs, **options: torch.full_like(truth, 1e-6),
        )
    )
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, y: torch.ops.sddmm.toy(x, y, factor=2.0), (x, y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ops.sddmm.toy(x.float(), y.float()).dtype == torch.bfloat16
    assert torch.ops.sddmm.toy(x.to("meta"), y.to("meta")).shape == (3, 2)
