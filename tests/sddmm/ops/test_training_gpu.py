"""Training on a GPU: gradients with the same bits at every run, captured, compiled, without large
temporaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sddmm
from sddmm import SparsePattern
from sddmm.ops.base import OPERATORS
from sddmm.testing import assert_spmm_close, random_pattern

pytestmark = pytest.mark.gpu

NODES, NNZ, D = 3000, 90_000, 48
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def uniform() -> SparsePattern:
    return random_pattern(NODES, NODES, NNZ, layout="coo", shuffled=True, device="cuda")


def skewed() -> SparsePattern:
    """Few rows and columns have most nonzeros, some twice, in no order."""
    generator = torch.Generator().manual_seed(0)
    rows, cols = ((torch.rand(NNZ, generator=generator) ** 6 * NODES).long() for _ in range(2))
    return SparsePattern.from_coo(rows.cuda(), cols.cuda(), (NODES, NODES))


def windowed() -> SparsePattern:
    nodes = torch.arange(NODES)
    near = (nodes[:, None] - nodes[None, :]).abs() < 16
    return SparsePattern.from_torch(near.cuda())


PATTERNS: dict[str, Callable[[], SparsePattern]] = {
    "uniform": uniform, "skewed": skewed, "windowed": windowed,
}  # fmt: skip


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to("cuda", dtype)


def attention(S: SparsePattern, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One layer of graph attention; q, k and v are (nodes, heads, d)."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    weights = sddmm.softmax(S, values=sddmm.sddmm(S, q, k.mT, alpha=q.shape[-1] ** -0.5))
    result: Tensor = sddmm.spmm(S, v, values=weights)
    return result


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result and the gradients of its product with fixed numbers."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    result.backward(randn(*result.shape, dtype=result.dtype, seed=1))
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def same_bits(results: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(results, others, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_hundred_products_and_gradients_have_the_same_bits(
    pattern: str, dtype: torch.dtype
) -> None:
    S = PATTERNS[pattern]()
    values, dense = randn(4, S.nnz, dtype=dtype), randn(4, NODES, D, dtype=dtype, seed=2)
    for transpose in (False, True):

        def product(values: Tensor, dense: Tensor, transpose: bool = transpose) -> Tensor:
            result: Tensor = sddmm.spmm(S, dense, values=values, transpose=transpose)
            return result

        first = gradients(product, values, dense)
        assert_spmm_close(first[0], S, dense, values=values, transpose=transpose)
        assert all(same_bits(gradients(product, values, dense), first) for _ in range(99))
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            assert same_bits(gradients(product, values, dense), first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_hundred_samples_and_their_gradients_have_the_same_bits(
    pattern: str, dtype: torch.dtype
) -> None:
    S = PATTERNS[pattern]()
    a, b, v = randn(2, NODES, D, dtype=dtype), randn(2, NODES, D, dtype=dtype), randn(S.nnz)

    def samples(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        result: Tensor = torch.ops.sddmm.sddmm(
            S.major_indices, S.col_indices, a, b.mT, v, compressed=S.is_csr, alpha=0.5
        )
        return result

    inputs = (a, b, v.to(dtype))
    gradients(samples, *inputs)  # a first call may round otherwise
    second = gradients(samples, *inputs)
    upstream = randn(2, S.nnz, dtype=dtype, seed=1)
    options = {"m": NODES, "n": NODES, "compressed": S.is_csr, "alpha": 0.5}
    spmm = OPERATORS["spmm"]
    for got, dense, transpose in ((second[1], inputs[1], False), (second[2], inputs[0], True)):
        arguments = (S.major_indices, S.col_indices, upstream, dense, inputs[2])
        product = {**options, "transpose": transpose}
        truth = spmm.reference(*arguments, **product)
        assert ((got - truth).abs() <= spmm.error_bound(truth, *arguments, **product)).all()
    assert all(same_bits(gradients(samples, *inputs), second) for _ in range(99))


def trained(steps: int) -> list[float]:
    """The losses of a layer of graph attention, which starts from the same numbers each time."""
    S = skewed()
    torch.manual_seed(0)
    x, target = randn(NODES, 32), randn(4, NODES, 16, seed=3)
    layers = [torch.nn.Linear(32, 4 * 16).cuda() for _ in range(3)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        q, k, v = (layer(x).view(NODES, 4, 16) for layer in layers)
        loss = (attention(S, q, k, v) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def test_a_layer_that_is_trained_twice_has_the_same_losses_to_the_bit() -> None:
    losses = trained(50)
    assert losses[-1] < losses[0]
    assert trained(50) == losses


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_step_is_captured_in_a_cuda_graph(dtype: torch.dtype) -> None:
    S = skewed()
    q, k, v = (randn(NODES, 4, D, dtype=dtype, seed=seed).requires_grad_() for seed in range(3))
    upstream = randn(4, NODES, D, dtype=dtype, seed=9)

    def step() -> list[Tensor]:
        result = attention(S, q, k, v)
        return [result, *torch.autograd.grad(result, (q, k, v), upstream)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits([x.detach() for x in captured], [x.detach() for x in step()])


def test_a_first_product_is_not_captured() -> None:
    S, values, dense = uniform(), randn(NNZ), randn(NODES, D)
    with (
        pytest.raises(RuntimeError, match="call it once before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        sddmm.spmm(S, dense, values=values, transpose=True)
    assert_spmm_close(
        sddmm.spmm(S, dense, values=values, transpose=True), S, dense, values=values, transpose=True
    )


def test_a_compiled_layer_gives_the_gradients_of_the_eager_one() -> None:
    S = uniform()
    inputs = [randn(NODES, 2, D, seed=seed) for seed in range(3)]
    compiled: Any = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for _ in range(2):  # a first call may round otherwise
        eager = gradients(lambda *x: attention(S, *x), *inputs)
        traced = gradients(lambda *x: compiled(S, *x), *inputs)
    for got, expected in zip(traced, eager, strict=True):
        torch.testing.assert_close(got, expected)


def test_autocast_casts_products_and_leaves_gradients_as_their_operands() -> None:
    S = uniform()
    values, dense = randn(NNZ).requires_grad_(), randn(NODES, D).requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = sddmm.spmm(S, dense, values=values)
    assert result.dtype == torch.bfloat16
    assert_spmm_close(result, S, dense.bfloat16(), values=values.bfloat16())
    result.float().square().sum().backward()
    assert values.grad is not None
    assert dense.grad is not None
    assert (values.grad.dtype, dense.grad.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("values_have_heads", [False, True])
def test_first_and_second_gradients_in_float64(heads: int | None, values_have_heads: bool) -> None:
    S = random_pattern(6, 5, 14, layout="coo", shuffled=True, device="cuda")
    where = (S.row_ids, S.col_indices)
    lead = () if heads is None else (heads,)
    a, b, x = (
        randn(*lead, *size, dtype=torch.float64).requires_grad_()
        for size in [(6, 3), (3, 5), (5, 4)]
    )
    v, f = (randn(14, dtype=torch.float64, seed=seed).requires_grad_() for seed in (3, 4))
    weights = randn(*(lead if values_have_heads else ()), 14, dtype=torch.float64).requires_grad_()

    def samples(*inputs: Tensor) -> Tensor:
        result: Tensor = torch.ops.sddmm.sddmm(*where, *inputs, alpha=0.5)
        return result

    def product(*inputs: Tensor) -> Tensor:
        result: Tensor = torch.ops.sddmm.spmm(*where, *inputs, m=6, n=5, alpha=0.5)
        return result

    for function, inputs in ((samples, (a, b, v)), (product, (weights, x, f))):
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)
    torch.library.opcheck(torch.ops.sddmm.spmm.default, (*where, weights, x, f), {"m": 6, "n": 5})


def allocated_by(function: Callable[[], Any]) -> int:
    """The most bytes that were allocated at once while a function ran, beside those before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def test_gradients_of_samples_take_no_memory_for_every_head_and_nonzero() -> None:
    """That of S's values takes two sums of floats for every nonzero, whatever the heads."""
    heads, nnz = 8, 2_000_000
    S = random_pattern(NODES, NODES, nnz, device="cuda")
    a, b = (randn(heads, NODES, 16, dtype=torch.float16).requires_grad_() for _ in range(2))
    v = randn(nnz, dtype=torch.float16).requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        result = torch.ops.sddmm.sddmm(
            S.major_indices, S.col_indices, a, b.mT, v, compressed=True, alpha=0.5
        )
        return result, torch.randn_like(result)

    for _ in range(2):
        result, upstream = step()
        torch.autograd.grad(result, (a, b), upstream)
    result, upstream = step()
    taken = allocated_by(lambda: torch.autograd.grad(result, (a, b), upstream))
    assert taken < 2 * nnz * 4 + 2 * a.numel() * 2 + 2**20


def test_a_permuted_operand_is_read_without_a_copy() -> None:
    """(n, h, d) seen as (h, n, d); beside the result only sums of cut rows take memory."""
    heads, d = 16, 256
    S, values = uniform(), randn(NNZ)
    dense = randn(NODES, heads, d).transpose(0, 1)
    sddmm.spmm(S, dense, values=values)
    taken = allocated_by(lambda: sddmm.spmm(S, dense, values=values))
    assert taken < 2 * dense.numel() * 4 + 2**20
    assert_spmm_close(sddmm.spmm(S, dense, values=values), S, dense, values=values)
