"""softmax on a GPU: right and with the same bits on every run, captured, on any stream."""

from __future__ import annotations

import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.ops.base import OPERATORS
from sddmm.testing import assert_softmax_close

pytestmark = pytest.mark.gpu

LENGTHS = {
    "uniform": torch.full((3000,), 40),
    "skewed": (3000 / torch.arange(1, 3001)).long() * 9,
    "one row of 300 000": torch.tensor([3, 300_000, 0, 2]),
    "rows of one and of none": torch.tensor([1, 0, 0, 2, 0, 1]).repeat(900),
}


def of_lengths(kind: str, shuffled: bool = False) -> SparsePattern:
    lengths = LENGTHS[kind].cuda()
    rows = torch.arange(len(lengths), device="cuda").repeat_interleave(lengths)
    if shuffled:
        generator = torch.Generator(device="cuda").manual_seed(0)
        rows = rows[torch.randperm(len(rows), generator=generator, device="cuda")]
    return SparsePattern.from_coo(rows, rows % 7, (len(lengths), 7))


def operands(
    pattern: SparsePattern, dtype: torch.dtype, *lead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(1)
    shape = (*lead, pattern.nnz)
    values, grad = torch.randn(2, *shape, generator=generator, device="cuda").to(dtype)
    return (3 * values).requires_grad_(), grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_values_and_gradients_are_within_their_bounds(
    dtype: torch.dtype, kind: str, shuffled: bool
) -> None:
    pattern = of_lengths(kind, shuffled)
    values, grad = operands(pattern, dtype, 3)
    p = sddmm.softmax(pattern, values)
    assert_softmax_close(p, pattern, values)
    (got,) = torch.autograd.grad(p, values, grad)
    operator = OPERATORS["softmax_backward"]
    inputs = (pattern.row_ids, pattern.col_ids, p.detach(), grad)
    matrix = {"m": pattern.shape[0], "n": pattern.shape[1]}
    truth = operator.reference(*inputs, **matrix)
    bound = operator.error_bound(truth, *inputs, **matrix)
    assert ((got.double() - truth).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "one row of 300 000"])
def test_a_hundred_repeats_give_the_same_bits_on_any_stream(dtype: torch.dtype, kind: str) -> None:
    pattern = of_lengths(kind, shuffled=True)
    values, grad = operands(pattern, dtype, 2)
    first = sddmm.softmax(pattern, values)
    (first_grad,) = torch.autograd.grad(first, values, grad)
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    for i in range(100):
        with torch.cuda.stream(other if i % 2 else torch.cuda.current_stream()):
            p = sddmm.softmax(pattern, values)
            (gradient,) = torch.autograd.grad(p, values, grad)
            assert torch.equal(p, first)
            assert torch.equal(gradient, first_grad)


def test_a_graph_of_forward_and_backward_follows_the_values() -> None:
    pattern = of_lengths("skewed")
    values, grad = operands(pattern, torch.float32)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        p = sddmm.softmax(pattern, values)
        return p, torch.autograd.grad(p, values, grad)[0]

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    with torch.no_grad():
        values.copy_(torch.randn_like(values))
    graph.replay()
    torch.cuda.synchronize()
    for captured, expected in zip(results, step(), strict=True):
        assert torch.equal(captured, expected)


def test_gradients_of_both_orders_in_float64() -> None:
    pattern = SparsePattern.from_coo(
        torch.tensor([2, 0, 2, 1, 2], device="cuda"), torch.arange(5, device="cuda"), (4, 5)
    )
    values = torch.randn(2, 5, dtype=torch.float64, device="cuda", requires_grad=True)

    def softmax(values: torch.Tensor) -> torch.Tensor:
        p: torch.Tensor = sddmm.softmax(pattern, values)
        return p

    assert torch.autograd.gradcheck(softmax, values)
    assert torch.autograd.gradgradcheck(softmax, values)


def test_a_sparse_tensor_comes_back_as_one() -> None:
    S = torch.randn(50, 60, device="cuda").relu().to_sparse_csr()
    weights = sddmm.softmax(S)
    assert weights.layout == torch.sparse_csr
    assert_softmax_close(weights.values(), S)
