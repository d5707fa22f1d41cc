"""Weights of products that are multiplied on the fly: the factors of spmm, and the gradients that
use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import sddmm
from sddmm.ops.base import OPERATORS
from sddmm.testing import random_pattern

M, N, D, NNZ, HEADS = 6, 5, 2, 24, 4
PATTERN = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
WHERE = (PATTERN.row_ids, PATTERN.col_indices)


def randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()


def operands(
    heads: int | None, values_have_heads: bool, transpose: bool, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, a dense operand and factors."""
    torch.manual_seed(0)
    lead = () if heads is None else (heads,)
    dense = randn(*lead, M if transpose else N, D, dtype=dtype)
    values = randn(*(lead if values_have_heads else ()), NNZ, dtype=dtype)
    return values, dense, randn(NNZ, dtype=dtype)


def weighted_product(values: Tensor, dense: Tensor, factors: Tensor, transpose: bool) -> Tensor:
    result: Tensor = torch.ops.sddmm.spmm(
        *WHERE, values, dense, factors, m=M, n=N, transpose=transpose, alpha=0.5
    )
    return result


CASES = [(None, False), (3, False), (3, True)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("heads", "values_have_heads"), CASES)
def test_factors_multiply_the_values(
    heads: int | None, values_have_heads: bool, transpose: bool, dtype: torch.dtype
) -> None:
    inputs = [x.detach() for x in operands(heads, values_have_heads, transpose, dtype)]
    options = {"m": M, "n": N, "transpose": transpose, "alpha": 0.5}
    got = weighted_product(*inputs, transpose)
    operator = OPERATORS["spmm"]
    truth = operator.reference(*WHERE, *inputs, **options)
    values, dense, factors = (x.double() for x in inputs)
    torch.testing.assert_close(
        truth,
        operator.reference(*WHERE, values * factors, dense, **options),
        rtol=1e-12,
        atol=1e-12,
    )
    assert ((got - truth).abs() <= operator.error_bound(truth, *WHERE, *inputs, **options)).all()


@pytest.mark.parametrize(
    ("heads", "values_have_heads", "transpose"),
    [(None, False, True), (3, False, False), (3, True, True)],
)
def test_first_and_second_gradients_with_factors(
    heads: int | None, values_have_heads: bool, transpose: bool
) -> None:
    inputs = operands(heads, values_have_heads, transpose)
    assert gradcheck(lambda *x: weighted_product(*x, transpose), inputs, fast_mode=True)
    assert gradgradcheck(lambda *x: weighted_product(*x, transpose), inputs, fast_mode=True)
    options = {"m": M, "n": N, "transpose": transpose}
    torch.library.opcheck(torch.ops.sddmm.spmm.default, (*WHERE, *inputs), options)


def test_gradients_through_factors_are_no_narrower_than_the_widest_operand() -> None:
    """A result narrower than the operands has a gradient as narrow; factors keep their digits."""
    values, dense, factors = operands(3, True, False, torch.float32)
    with torch.no_grad():
        dense.fill_(1.0)
        values.fill_(1.0)
        factors.fill_(1 + 2**-20)
    result = torch.ops.sddmm.spmm(*WHERE, values, dense, factors, m=M, n=N, out_dtype=torch.float16)
    result.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, torch.full_like(values, D * (1 + 2**-20)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.float(), "factors are float32 and dense is float64"),
        (lambda f: f[1:], r"factors must have one entry per nonzero, \(24,\), got shape 23"),
        (lambda f: f.expand(3, NNZ), "factors must have one entry per nonzero"),
    ],
)
def test_factors_that_do_not_fit_are_refused(change: Any, message: str) -> None:
    values, dense, factors = operands(3, True, False)
    with pytest.raises((TypeError, ValueError), match=message):
        weighted_product(values, dense, change(factors), False)


class Sizes(TorchDispatchMode):
    """Collects the number of elements of every tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            memory = result.untyped_storage().nbytes() // result.element_size()
            self.largest = max(self.largest, memory)
        return result


@pytest.mark.parametrize("values_have_heads", [False, True])
def test_gradients_have_no_temporary_for_every_head_and_nonzero(values_have_heads: bool) -> None:
    """Results in the shape of an operand, and one number for each nonzero, are all they need."""
    values, dense, _ = operands(HEADS, values_have_heads, False)
    a, b, v = randn(HEADS, M, D), randn(HEADS, N, D), randn(NNZ)
    sampled = torch.ops.sddmm.sddmm(*WHERE, a, b.mT, v, alpha=2.0)
    product = sddmm.spmm(PATTERN, dense, values=values, alpha=2.0)
    grad_of_samples, grad_of_product = torch.randn_like(sampled), torch.randn_like(product)
    largest_operand = HEADS * M * D
    assert max(largest_operand, NNZ) < HEADS * NNZ
    with Sizes() as sizes:
        sampled.backward(grad_of_samples)
    assert sizes.largest <= max(largest_operand, NNZ)
    with Sizes() as sizes:
        product.backward(grad_of_product)
    assert sizes.largest <= (HEADS * NNZ if values_have_heads else max(largest_operand, NNZ))
