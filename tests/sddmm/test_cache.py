"""The cache counts the memory that it holds, all of it once, and keeps to its bounds."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.cache import CACHE, MAX_BYTES, Cache
from sddmm.prepared import PreparedPlan, plans_of
from sddmm.testing import emulated_gpu, random_pattern

M, N, K = 40, 30, 8


def reachable(root: object, kind: type) -> Iterator[Any]:
    """Every object of a type that Python's collector reaches; not through modules and types, nor
    through tracebacks: numba keeps the errors of what it could not compile, as in another test."""
    waiting: list[Any] = [root]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (types.ModuleType, type, types.TracebackType)):
            continue
        seen.add(id(each))
        if isinstance(each, kind):
            yield each
        if isinstance(each, types.FunctionType):  # without the globals of its module
            waiting += [*(each.__closure__ or ()), *(each.__defaults__ or ())]
        else:
            waiting += gc.get_referents(each)


def storage_bytes(root: object) -> int:
    storages = (tensor.untyped_storage() for tensor in reachable(root, Tensor))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def operands(requires_grad: bool = False) -> tuple[Tensor, Tensor]:
    return torch.randn(M, K, requires_grad=requires_grad), torch.randn(K, N)


def tensor_of(layout: str, seed: int) -> Tensor:
    """A torch sparse tensor; its COO indices are views of one (2, nnz) tensor."""
    S = random_pattern(M, N, 200, seed=seed)
    if layout == "csr":
        return torch.sparse_csr_tensor(S.major_indices, S.col_indices, torch.ones(200), (M, N))
    indices = torch.stack([S.row_ids, S.col_indices])
    return torch.sparse_coo_tensor(indices, torch.ones(200), (M, N), is_coalesced=True)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", ["csr", "coo", "tuple", "views"])
def test_the_count_is_the_memory_that_can_be_reached(kind: str, requires_grad: bool) -> None:
    inputs: list[Any] = []
    for seed in range(3):
        if kind in ("csr", "coo"):
            inputs.append(tensor_of(kind, seed))
            continue
        both = tensor_of("coo", seed).indices()
        rows, cols = both if kind == "views" else both.clone().unbind()
        # The same memory as another shape, too: it is counted once.
        inputs += [(rows, cols, (M, N)), (rows, cols, (M, N + 1))]
    for S in inputs:
        a, b = operands(requires_grad)
        if isinstance(S, tuple):
            b = torch.randn(K, S[2][1])
        result = sddmm.sddmm(S, a, b)
        if requires_grad:
            (result if isinstance(S, tuple) else result.values()).sum().backward()
    info = sddmm.cache_info()
    # A CPU keeps nothing of a CSR tensor whose samples are all that is asked for.
    is_kept = kind != "csr" or requires_grad
    assert info.patterns == (len(inputs) if is_kept else 0)
    assert info.bytes == storage_bytes(CACHE)
    assert (info.bytes > 0) == is_kept


def test_the_count_includes_what_a_gpu_plan_holds() -> None:
    with emulated_gpu():
        for layout in ("csr", "coo"):
            S = tensor_of(layout, 1)
            sddmm.sddmm(S, *operands())
            assert sddmm.cache_info().bytes == storage_bytes(CACHE)
            for k in (8, 16):
                sddmm.sddmm(S, torch.randn(M, k), torch.randn(k, N))
                assert 0 < sddmm.cache_info().bytes == storage_bytes(CACHE)


@pytest.mark.parametrize("operator", ["sddmm", "spmm", "attention"])
def test_what_is_prepared_after_a_pattern_was_cached_counts_against_the_bound(
    operator: str,
) -> None:
    """Every row has an entry in a pattern's CSR form, however few nonzeros there are."""
    m = 50_000
    tensors = [(torch.tensor([seed]), torch.tensor([0]), (m, 2)) for seed in range(4)]
    a, b = torch.randn(m, 3), torch.randn(3, 2)
    sddmm.set_cache_limit(2 * 8 * m + 1000)
    try:
        for S in tensors:
            if operator == "sddmm":
                sddmm.sddmm(S, a, b)
            elif operator == "spmm":
                sddmm.spmm(S, b.mT, values=torch.ones(1))
            else:
                sddmm.sparse_attention(S, a, b.mT, b.mT)
            assert sddmm.cache_info().bytes <= sddmm.cache_info().max_bytes
        assert sddmm.cache_info().patterns == 2
    finally:
        sddmm.set_cache_limit(MAX_BYTES)


def test_a_plan_that_goes_takes_its_signatures_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sddmm.prepared.MAX_PLANS_PER_PATTERN", 3)
    S = random_pattern(M, N, 200)
    for k in range(1, 9):
        sddmm.sddmm(S, torch.randn(M, k), torch.randn(k, N))
    assert len(list(reachable(S, PreparedPlan))) == 3


def test_products_and_attentions_of_a_pattern_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sddmm.prepared.MAX_PLANS_PER_PATTERN", 3)
    S = random_pattern(M, M, 200)
    for d in range(1, 6):
        x = torch.ones(M, d)
        sddmm.spmm(S, x, values=torch.ones(S.nnz))
        sddmm.sparse_attention(S, x, x, x)
    plans = plans_of(S)
    assert [problem.k for problem, _ in plans.products] == [3, 4, 5]
    assert [problem.d for problem, _ in plans.attentions] == [3, 4, 5]


def test_emptied_caches_hold_nothing() -> None:
    S = tensor_of("csr", 0)
    sddmm.sddmm(S, *operands())
    sddmm.clear_cache()
    assert sddmm.cache_info() == (0, 0, MAX_BYTES)
    assert storage_bytes(CACHE) == 0
    assert len(Cache()) == 0


@pytest.mark.parametrize("name", ["sddmm", "spmm", "sparse_attention"])
def test_operators_find_the_copy_that_is_kept_of_a_sparse_tensor(name: str) -> None:
    sddmm.clear_cache()
    S, x = tensor_of("csr", 0), torch.randn(N, K, requires_grad=True)
    a, b = operands(requires_grad=True)
    arguments = {"sddmm": (a, b), "spmm": (x,), "sparse_attention": (a, b.mT, x)}[name]
    result = getattr(sddmm, name)(S, *arguments)
    (result.values() if name == "sddmm" else result).sum().backward()
    assert sddmm.cache_info().patterns == 1
