"""Under autocast: as torch.mm, in the forward and in the backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import scipy.sparse
import torch

import sddmm
from sddmm.testing import random_pattern
from tests.sddmm.patterns import csr_tensor

CSR = random_pattern(4, 5, 6)
A, B, V = torch.randn(4, 3), torch.randn(3, 5), torch.randn(6)
PLAN = sddmm.plan(CSR, k=3, dtype=torch.float32)
HALVES = [torch.bfloat16, torch.float16]
csr = partial(csr_tensor, CSR)

CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "pattern": lambda a, b, v: sddmm.sddmm(CSR, a, b, alpha=0.5),
    "csr": lambda a, b, v: sddmm.sddmm(csr(v), a, b).values(),
    "sampled_addmm": lambda a, b, v: sddmm.sampled_addmm(csr(v), a, b, beta=0.5).values(),
    "plan": lambda a, b, v: PLAN.run(a, b),
    "operator": lambda a, b, v: torch.ops.sddmm.sddmm(
        CSR.crow_indices, CSR.col_indices, a, b, v, compressed=True
    ),
}


def with_gradients(
    call: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> list[torch.Tensor | None]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    values = call(*leaves)
    values.float().square().sum().backward()
    return [values.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("compiled", [False, True])
def test_operands_are_cast_and_gradients_come_back_in_their_dtype(
    name: str, half: torch.dtype, compiled: bool
) -> None:
    if compiled and name in ("csr", "sampled_addmm"):  # torch.compile takes no sparse tensors
        return
    call = CALLS[name]

    def cast(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=half):
            assert torch.mm(a, b).dtype == half
            return call(a, b, v)

    torch._dynamo.reset()
    used = torch.compile(cast, fullgraph=True, backend="aot_eager") if compiled else cast
    got = with_gradients(used, A, B, V)
    # The same by hand: the plan of float32 operands has no half ones.
    by_hand = CALLS["pattern"] if name == "plan" else call
    factor = 2.0 if name == "plan" else 1.0

    def cast_by_hand(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return by_hand(factor * a.to(half), b.to(half), v.to(half))

    for x, y in zip(got, with_gradients(cast_by_hand, A, B, V), strict=True):
        if y is None:
            assert x is None
            continue
        assert x is not None
        assert x.dtype == (half if x is got[0] else torch.float32)
        torch.testing.assert_close(x, y, rtol=0, atol=0)


@pytest.mark.parametrize("name", CALLS)
def test_a_backward_within_autocast_is_the_one_outside(name: str) -> None:
    results = []
    for inside in (True, False):
        leaves = [x.detach().clone().requires_grad_() for x in (A, B, V)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = CALLS[name](*leaves).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append([x.grad for x in leaves])
    for x, y in zip(*results, strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.equal(x, y)


@pytest.mark.parametrize("half", HALVES)
def test_spmm_is_cast_too(half: torch.dtype) -> None:
    where = (CSR.crow_indices, CSR.col_indices)
    options: dict[str, Any] = {"m": 4, "n": 5, "compressed": True}
    with torch.autocast("cpu", dtype=half):
        got = torch.ops.sddmm.spmm(*where, V, B.mT, **options)
    assert got.dtype == half
    by_hand = torch.ops.sddmm.spmm(*where, V.to(half), B.mT.to(half), **options)
    torch.testing.assert_close(got, by_hand, rtol=0, atol=0)


@pytest.mark.parametrize("name", CALLS)
def test_float64_is_not_cast(name: str) -> None:
    if name == "plan":
        plan = sddmm.plan(CSR, k=3, dtype=torch.float64)
        call: Any = lambda a, b, v: plan.run(a, b)  # noqa: E731
    else:
        call = CALLS[name]
    wide = [x.double() for x in (A, B, V)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = call(*wide)
    torch.testing.assert_close(got, call(*wide), rtol=0, atol=0)


def test_operands_that_autocast_makes_alike_are_taken_as_by_mm() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = sddmm.sddmm(CSR, A, B.bfloat16())
        assert torch.mm(A, B.bfloat16()).dtype == got.dtype == torch.bfloat16
        with pytest.raises(TypeError, match=r"a is torch.float64 and b is torch.bfloat16"):
            sddmm.sddmm(CSR, A.double(), B)
        with pytest.raises(TypeError, match=r"S has values of torch.float64"):
            sddmm.sampled_addmm(csr(V.double()), A, B)
        with pytest.raises(ValueError, match=r"dtype=torch.bfloat16, .* dtype=torch.float64"):
            PLAN.run(A.double(), B.double())


def test_out_dtype_is_kept_and_a_precision_of_float32_says_nothing() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = sddmm.sddmm(CSR, A, B, out_dtype=torch.float32, precision="tf32")
    assert got.dtype == torch.float32
    by_hand = sddmm.sddmm(CSR, A.bfloat16(), B.bfloat16(), out_dtype=torch.float32)
    torch.testing.assert_close(got, by_hand, rtol=0, atol=0)


def test_autocast_of_another_device_changes_nothing() -> None:
    with torch.autocast("cuda", dtype=torch.float16, enabled=True):
        for name, call in CALLS.items():
            assert call(A, B, V).dtype == torch.float32, name


def test_numpy_operands_and_scipy_matrices_are_computed_as_they_are() -> None:
    M = scipy.sparse.csr_array(csr(V).to_dense().numpy())
    expected = sddmm.sddmm(M, A, B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (sddmm.sddmm(M, A, B) != expected).nnz == 0
        values = sddmm.sddmm(CSR, A.numpy(), B.numpy())
    torch.testing.assert_close(torch.from_numpy(values), sddmm.sddmm(CSR, A, B), rtol=0, atol=0)


def test_unsorted_columns_get_their_own_gradients_or_are_refused() -> None:
    """torch would give them those of their neighbours, as it sorts the gradient's columns."""
    crow, cols = torch.tensor([0, 2, 2, 3, 3]), torch.tensor([4, 1, 2])
    S = torch.sparse_csr_tensor(crow, cols, torch.ones(3), (4, 5))
    a = A.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = sddmm.sddmm(S, a, B)
        (result.values() * torch.tensor([1.0, 0.0, 0.0])).sum().backward()
        values = torch.ones(3, requires_grad=True)
        with pytest.raises(ValueError, match="unsorted columns or duplicates"):
            sddmm.sddmm(torch.sparse_csr_tensor(crow, cols, values, (4, 5)), A, B)
    assert a.grad is not None
    torch.testing.assert_close(a.grad[0], B[:, 4].bfloat16().float())
    assert not a.grad[1:].any()
