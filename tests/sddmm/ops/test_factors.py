"""alpha and beta are real numbers; what is none, or would lose a gradient, is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import sddmm
from sddmm.testing import random_pattern
from tests.sddmm.patterns import csr_tensor

PATTERN = random_pattern(4, 5, 6)
A, B, V = torch.randn(4, 3), torch.randn(3, 5), torch.randn(6)
csr = partial(csr_tensor, PATTERN)

USES: dict[str, Callable[[Any], torch.Tensor]] = {
    "alpha of sddmm": lambda x: sddmm.sddmm(PATTERN, A, B, alpha=x),
    "alpha of sampled_addmm": lambda x: sddmm.sampled_addmm(csr(V), A, B, alpha=x).values(),
    "beta of sampled_addmm": lambda x: sddmm.sampled_addmm(csr(V), A, B, beta=x).values(),
    "alpha of plan": lambda x: sddmm.plan(PATTERN, k=3, dtype=A.dtype, alpha=x).run(A, B),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize(
    "value",
    [1j, None, "2", [2.0], np.complex64(1), torch.ones(1), torch.tensor(1j), np.ones(2)],
    ids=repr,
)
def test_what_is_no_real_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name.split()[0]} must be a real number, got"):
        USES[name](value)


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize(
    "value",
    [2, True, np.float16(0.5), np.int8(3), Fraction(1, 4), torch.tensor(1.5), torch.tensor(2)],
    ids=repr,
)
def test_any_real_number_and_tensor_without_gradient_is_taken(name: str, value: Any) -> None:
    torch.testing.assert_close(USES[name](value), USES[name](float(value)), rtol=0, atol=0)


@pytest.mark.parametrize("name", USES)
def test_a_factor_whose_gradient_would_be_lost_is_refused(name: str) -> None:
    factor = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(ValueError, match=f"{name.split()[0]} is a tensor that requires grad"):
        USES[name](factor)
    with torch.no_grad():
        torch.testing.assert_close(USES[name](factor), USES[name](2.0))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        with pytest.raises(ValueError, match="is a tensor that requires grad"):
            USES[name](dual)


@pytest.mark.parametrize("special", [1.0, torch.nan, torch.inf])
def test_with_beta_zero_s_has_zeros_as_gradient_and_is_not_read(special: float) -> None:
    values = torch.full((6,), special, requires_grad=True)
    a = A.clone().requires_grad_()
    result = sddmm.sampled_addmm(csr(values), a, B, beta=0.0)
    torch.testing.assert_close(result.values(), sddmm.sddmm(PATTERN, A, B))
    result.values().square().sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, torch.zeros(6))
    assert a.grad is not None
    assert a.grad.any()


@pytest.mark.parametrize("autocast", [False, True])
def test_half_sums_are_rounded_once(autocast: bool) -> None:
    """float16 holds neither alpha * (a @ b) nor beta * S, but their sum."""
    a, b = torch.full((4, 1), 64.0), torch.full((1, 5), 64.0)
    values = torch.full((6,), -4096.0)
    if not autocast:
        a, b, values = (x.half() for x in (a, b, values))
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        result = sddmm.sampled_addmm(csr(values), a, b, alpha=100.0, beta=99.0).values()
    assert result.dtype == torch.float16
    assert torch.equal(result, torch.full((6,), 4096.0, dtype=torch.float16))
