"""Sixteen threads give the bits that one gives: first calls, plans, gradients, evictions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm import SparsePattern
from sddmm.testing import random_pattern

THREADS = 16
M, K, N, NNZ = 120, 48, 90, 6000
Operands = tuple[Tensor, Tensor]


def at_once(work: Callable[[int], None]) -> None:
    """work(i) on thread i of sixteen, all begun together; the first error is raised."""
    together = threading.Barrier(THREADS)

    def begin(i: int) -> None:
        together.wait(60)
        work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(begin, i) for i in range(THREADS)]:
            done.result(timeout=120)


def operands(seed: int, dtype: torch.dtype = torch.float32, k: int = K) -> Operands:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(M, k, generator=generator), torch.randn(k, N, generator=generator)
    return a.to(dtype), b.to(dtype)


def pattern_of(seed: int) -> SparsePattern:
    layout = "csr" if seed % 2 else "coo"
    return random_pattern(M, N, NNZ, layout=layout, shuffled=layout == "coo", seed=seed)


def weighted(pattern: SparsePattern, values: Tensor) -> Tensor:
    """A torch tensor of the pattern, COO or CSR as it is."""
    if pattern.is_csr:
        return torch.sparse_csr_tensor(
            pattern.major_indices, pattern.col_indices, values, pattern.shape
        )
    indices = torch.stack([pattern.row_ids, pattern.col_indices])
    return torch.sparse_coo_tensor(indices, values, pattern.shape)


def values_of(result: Tensor) -> Tensor:
    return result.values() if result.layout == torch.sparse_csr else result._values()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_one_pattern_first_calls_included(dtype: torch.dtype) -> None:
    pairs = [operands(i, dtype) for i in range(THREADS)]
    expected = [sddmm.sddmm(pattern_of(0), a, b) for a, b in pairs]
    shared = pattern_of(0)  # never seen

    def work(i: int) -> None:
        for _ in range(10):
            assert torch.equal(sddmm.sddmm(shared, *pairs[i]), expected[i])

    at_once(work)


def test_many_patterns_more_than_are_remembered() -> None:
    """Torch tensors of sixty patterns, so that each thread's calls evict what others use."""
    patterns = [pattern_of(seed) for seed in range(60)]
    weights = torch.randn(NNZ, generator=torch.Generator().manual_seed(1))
    pair = operands(0)
    expected = [values_of(sddmm.sddmm(weighted(p.clone(), weights), *pair)) for p in patterns]
    matrices = [weighted(p, weights) for p in patterns]

    def work(i: int) -> None:
        for step in range(60):
            at = (step * 7 + i * 11) % len(matrices)
            assert torch.equal(values_of(sddmm.sddmm(matrices[at], *pair)), expected[at])

    at_once(work)


def test_plans_of_one_pattern_more_than_it_keeps() -> None:
    inner = [1 + 5 * i for i in range(THREADS + 4)]
    pairs = [operands(k, k=k) for k in inner]
    expected = [sddmm.sddmm(pattern_of(1), a, b) for a, b in pairs]
    shared = pattern_of(1)

    def work(i: int) -> None:
        for step in range(len(inner)):
            at = (i + step) % len(inner)
            plan = sddmm.plan(shared, k=inner[at], dtype=torch.float32)
            assert torch.equal(plan.run(*pairs[at]), expected[at])

    at_once(work)


def test_one_plan_run_by_all() -> None:
    plan = sddmm.plan(pattern_of(2), k=K, dtype=torch.float32)
    pairs = [operands(i) for i in range(THREADS)]
    expected = [plan.run(a, b) for a, b in pairs]

    def work(i: int) -> None:
        out = torch.empty(NNZ)
        for _ in range(20):
            assert torch.equal(plan.run(*pairs[i], out), expected[i])

    at_once(work)


def _gradients(S: SparsePattern, pair: Operands) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in pair]
    return list(torch.autograd.grad(sddmm.sddmm(S, *leaves).square().sum(), leaves))


def test_gradients() -> None:
    pairs = [operands(i) for i in range(THREADS)]
    expected = [_gradients(pattern_of(3), pair) for pair in pairs]
    shared = pattern_of(3)

    def work(i: int) -> None:
        for _ in range(5):
            for got, right in zip(_gradients(shared, pairs[i]), expected[i], strict=True):
                torch.testing.assert_close(got, right)

    at_once(work)


def test_a_pattern_changed_by_its_own_thread_between_calls() -> None:
    """Each thread changes the indices of its own pattern, while others fill the cache."""
    pair = operands(5)
    dense = (pair[0].double() @ pair[1].double()).float()

    def work(i: int) -> None:
        pattern = random_pattern(M, N, NNZ, layout="coo", shuffled=True, seed=i)
        rows, cols = pattern.row_ids, pattern.col_indices
        for _ in range(8):
            values = sddmm.sddmm((rows, cols, (M, N)), *pair)
            torch.testing.assert_close(values, dense[rows, cols], rtol=1e-4, atol=1e-4)
            rows.copy_(rows.flip(0))

    at_once(work)
