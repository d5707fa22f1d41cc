"""Products by windows of rows of X on a GPU: within the bound, and the same bits every time."""

from __future__ import annotations

import pytest
import torch

import sddmm
from gemm_core.runtime.device import device
from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.products import find_or_prepare, product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_spmm_close, random_pattern

pytestmark = pytest.mark.gpu


def skewed(rows: int, columns: int, nnz: int) -> SparsePattern:
    """A few rows have most nonzeros, many have none, and positions repeat."""
    row = (rows * torch.rand(nnz, device="cuda") ** 6).long()
    return SparsePattern.from_coo(
        row, torch.randint(columns, (nnz,), device="cuda"), (rows, columns)
    )


def patterns() -> dict[str, SparsePattern]:
    uniform = random_pattern(3000, 7000, 300_000, layout="csr", device="cuda")
    return {
        "uniform": uniform, "transposed": uniform.T, "skewed": skewed(3000, 7000, 300_000),
        "wide": random_pattern(5, 200_000, 50_000, device="cuda"),
        "tall": random_pattern(100_000, 300, 500_000, device="cuda"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["uniform", "transposed", "skewed", "wide", "tall"])
@pytest.mark.parametrize(("k", "heads"), [(256, None), (33, 3), (1, None)])
def test_a_hundred_repeats_have_the_same_bits(name: str, k: int, heads: int | None) -> None:
    pattern = patterns()[name]
    lead = () if heads is None else (heads,)
    dense = torch.randn(*lead, pattern.shape[1], k, device="cuda")
    values = torch.randn(*lead, pattern.nnz, device="cuda")
    factors = torch.randn(pattern.nnz, device="cuda") if heads else None
    problem = product_problem(pattern, values, dense, factors, False, None)
    executor = Planner(SPMM_KERNELS, ProductExecutor).prepare(
        pattern, problem, device(0), "spmm_windows"
    )
    first, again = (torch.full(problem.out_shape(), 7.0, device="cuda") for _ in range(2))
    executor(values, factors, dense, 0.5, first)
    weights = values if factors is None else values * factors
    assert_spmm_close(first, pattern, dense, values=weights, alpha=0.5)
    for _ in range(100):
        executor(values, factors, dense, 0.5, again.fill_(7))
        assert torch.equal(first.view(torch.int32), again.view(torch.int32))


def test_an_even_pattern_is_multiplied_by_windows_and_an_uneven_one_is_not() -> None:
    """Also the gradients of both operands, and a step in a CUDA graph."""
    even = random_pattern(10_000, 10_000, 1_000_000, layout="csr", device="cuda")
    dense = torch.randn(10_000, 256, device="cuda", requires_grad=True)
    values = torch.randn(1_000_000, device="cuda", requires_grad=True)
    problem = product_problem(even, values, dense, None, False, None)
    assert "spmm_windows" in find_or_prepare(even, problem).notes[0]
    uneven = skewed(10_000, 10_000, 1_000_000)
    assert "spmm_windows" not in find_or_prepare(uneven, problem).notes[0]

    def step() -> tuple[torch.Tensor, ...]:
        out = sddmm.spmm(even, dense, values=values)
        return (out, *torch.autograd.grad(out, (dense, values), torch.ones_like(out)))

    eager = [x.detach().clone() for x in step()]
    assert_spmm_close(eager[0], even, dense.detach(), values=values.detach())
    assert_spmm_close(
        eager[1], even, torch.ones_like(eager[0]), values=values.detach(), transpose=True
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(eager, captured, strict=True))
