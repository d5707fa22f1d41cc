"""Samples at a CSR tensor on the CPU: every call reads and checks the indices as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import sddmm
from sddmm.backends.cpu.backend import CpuBackend
from sddmm.backends.selection import forget_choices
from sddmm.testing import assert_close, random_pattern

M, N, K, NNZ = 7, 9, 5, 30
PATTERN = random_pattern(M, N, NNZ)


def csr_tensor(
    dtype: torch.dtype = torch.float32, index_dtype: torch.dtype = torch.int64
) -> Tensor:
    crow, cols = (x.to(index_dtype, copy=True) for x in (PATTERN.major_indices, PATTERN.col_ids))
    values = torch.linspace(1, 2, NNZ, dtype=dtype)
    return torch.sparse_csr_tensor(crow, cols, values, (M, N), check_invariants=False)


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_call_gives_the_same_and_nothing_is_kept(
    dtype: torch.dtype, index_dtype: torch.dtype, scale: bool
) -> None:
    sddmm.clear_cache()
    S, (a, b) = csr_tensor(dtype, index_dtype), operands(dtype)
    results = [sddmm.sddmm(S, a, b, alpha=0.5, scale=scale) for _ in range(3)]
    for result in results:
        assert torch.equal(result.values(), results[0].values())
        assert torch.equal(result.crow_indices(), S.crow_indices())
        assert torch.equal(result.col_indices(), S.col_indices())
    assert sddmm.cache_info().patterns == 0
    assert_close(results[0].values(), S, a, b, alpha=0.5, scale=scale)


@pytest.mark.parametrize("call", [sddmm.sddmm, sddmm.sampled_addmm])
def test_a_tensor_without_memory_is_refused(call: Callable[..., Any]) -> None:
    """With operands that have some: the kernel reads addresses."""
    fake = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(csr_tensor())
    with pytest.raises((ValueError, RuntimeError)):
        call(fake, *operands())


def test_a_change_that_torch_does_not_count_is_noticed() -> None:
    S, (a, b) = csr_tensor(torch.float64), operands(torch.float64)
    product = a @ b
    for column in range(N):
        S.col_indices().data[3] = column
        values = sddmm.sddmm(S, a, b, scale=False).values()
        assert torch.allclose(values, product[PATTERN.row_ids, S.col_indices()])
    S.col_indices().data[3] = N
    for call in (sddmm.sddmm, sddmm.sampled_addmm):
        with pytest.raises(ValueError, match=rf"col_indices\[3\] is {N}; valid are 0..{N - 1}"):
            call(S, a, b)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "contiguous": lambda x: x.contiguous(),
    "every second column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "rows apart": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "expanded": lambda x: x[:1].expand(x.shape),
    "negated when read": torch._neg_view,
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "a leaf that requires grad": lambda x: x.clone().requires_grad_(),
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("change", CHANGES)
def test_operands_of_any_memory_are_read_in_calls_one_after_another(
    change: str, dtype: torch.dtype
) -> None:
    """Calls with equal shapes and dtypes share what was found at the first."""
    S, (a, b) = csr_tensor(dtype), operands(dtype)
    changed = CHANGES[change]
    for x, y in ((a, b), (changed(a), b), (a, changed(b)), (changed(a), changed(b)), (a, b)):
        assert_close(sddmm.sddmm(S, x, y, scale=False).values(), PATTERN, x + 0, y + 0)


def test_strided_indices_and_values_are_read() -> None:
    S, (a, b) = csr_tensor(), operands()
    parts = (S.crow_indices(), S.col_indices(), S.values())
    strided = (x.repeat_interleave(2)[::2] for x in parts)
    T = torch.sparse_csr_tensor(*strided, (M, N), check_invariants=False)
    assert torch.equal(sddmm.sddmm(T, a, b).values(), sddmm.sddmm(S, a, b).values())


def test_heads_are_each_sampled_at_their_memory() -> None:
    S, a, b = csr_tensor(), torch.randn(3, M, K), torch.randn(3, N, K).mT
    values = sddmm.sddmm(S, a, b)
    assert values.shape == (3, NNZ)
    assert_close(values, S, a, b)
    no_heads = sddmm.sddmm(S, a[:0], b[:0])
    assert no_heads.shape == (0, NNZ)


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sampled_addmm_is_torchs(dtype: torch.dtype, beta: float) -> None:
    S, (a, b) = csr_tensor(dtype), operands(dtype)
    ours = sddmm.sampled_addmm(S, a, b, beta=beta, alpha=3.0)
    theirs = torch.sparse.sampled_addmm(S, a, b, beta=beta, alpha=3.0)
    torch.testing.assert_close(ours, theirs)


WRONG: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Any], str]] = {
    "a": (lambda S, a, b: (S, a[1:], b), "a"),
    "b": (lambda S, a, b: (S, a, b[:, 1:]), "b"),
    "k": (lambda S, a, b: (S, a[:, 1:], b), "k"),
    "dtypes": (lambda S, a, b: (S, a, b.double()), "their dtypes must agree"),
    "values": (lambda S, a, b: (S, a.double(), b.double()), "S has values of torch.float32"),
    "sparse a": (lambda S, a, b: (S, a.to_sparse_csr(), b), "a must be a dense tensor"),
    "sparse b": (lambda S, a, b: (S, a, b.to_sparse()), "b must be a dense tensor"),
    "device": (lambda S, a, b: (S, a, b.to("meta")), "meta"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_at_every_call_before_and_after_right_ones(wrong: str) -> None:
    S, (a, b) = csr_tensor(), operands()
    change, message = WRONG[wrong]
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=message):
            sddmm.sddmm(*change(S, a, b))
        sddmm.sddmm(S, a, b)


def test_calls_that_differ_in_one_thing_are_told_apart() -> None:
    """Each comes after one that is right, and equal to it but for this."""
    S, (a, b) = csr_tensor(), operands()
    expected = sddmm.sddmm(S, a, b, scale=False).values()
    assert sddmm.sddmm(S, a, b, scale=False, out_dtype=torch.float64).dtype == torch.float64
    with pytest.raises(ValueError, match="precision"):
        sddmm.sddmm(S, a, b, scale=False, precision="none")
    narrow = csr_tensor(index_dtype=torch.int32)
    assert torch.equal(sddmm.sddmm(narrow, a, b, scale=False).values(), expected)
    double = csr_tensor(torch.float64)
    sddmm.sddmm(double, a, b, scale=False)
    sddmm.sddmm(S, a, b)
    with pytest.raises(TypeError, match="S has values of"):
        sddmm.sddmm(double, a, b)
    crow, cols = S.crow_indices().clone(), S.col_indices()[:-1].clone()
    crow[-1] = NNZ - 1
    fewer = torch.sparse_csr_tensor(crow, cols, S.values()[:-1], (M, N), check_invariants=False)
    assert torch.equal(sddmm.sddmm(fewer, a, b, scale=False).values(), expected[:-1])
    crow, cols, values = S.crow_indices()[:-1], S.col_indices(), S.values()
    short = torch.sparse_csr_tensor(crow, cols, values, (M, N), check_invariants=False)
    with pytest.raises(ValueError, match="crow_indices must have m"):
        sddmm.sddmm(short, a, b, scale=False)


def test_sizes_of_zero() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    for m, k in ((0, 3), (2, 3), (2, 0)):
        crow = torch.zeros(m + 1, dtype=torch.int64)
        S = torch.sparse_csr_tensor(crow, empty, torch.zeros(0), (m, 4), check_invariants=False)
        assert sddmm.sddmm(S, torch.ones(m, k), torch.ones(k, 4)).values().shape == (0,)
        crow[-1] += 1
        with pytest.raises(ValueError, match="crow_indices must"):
            sddmm.sddmm(S, torch.ones(m, k), torch.ones(k, 4))
    S, k = csr_tensor(), 0
    assert (sddmm.sddmm(S, torch.ones(M, k), torch.ones(k, N)).values() == 0).all()


def test_a_gradient_is_asked_for_by_the_operator() -> None:
    S, (a, b) = csr_tensor(torch.float64), operands(torch.float64)
    sddmm.sddmm(S, a, b)
    a.requires_grad_()
    sddmm.sddmm(S, a, b, scale=False).values().sum().backward()
    mask = torch.zeros(M, N, dtype=torch.float64)
    mask[PATTERN.row_ids, PATTERN.col_ids] = 1
    torch.testing.assert_close(a.grad, mask @ b.T)


def test_another_backend_serves_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    S, (a, b) = csr_tensor(), operands()
    expected = sddmm.sddmm(S, a, b).values()
    monkeypatch.setattr(CpuBackend, "available", lambda self: "it is not installed")
    forget_choices()
    try:
        for _ in range(2):
            torch.testing.assert_close(sddmm.sddmm(S, a, b).values(), expected)
    finally:
        monkeypatch.undo()
        forget_choices()
