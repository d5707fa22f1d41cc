"""Products at block patterns and torch BSR tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm import SparsePattern
from sddmm.ops.base import OPERATORS
from sddmm.testing import assert_close, assert_spmm_close

M, N, K = 12, 20, 7
# Three rows and four columns of blocks, unsorted in the first row.
CROW, COL = torch.tensor([0, 2, 2, 3]), torch.tensor([3, 0, 1])
SORTED_COL = torch.tensor([0, 3, 1])
BLOCKSIZE = (4, 5)
PATTERN = SparsePattern.from_bsr(CROW, COL, BLOCKSIZE, (M, N))


def operands(dtype: torch.dtype = torch.float32, heads: int | None = None) -> tuple[Tensor, Tensor]:
    lead = () if heads is None else (heads,)
    return torch.randn(*lead, M, K, dtype=dtype), torch.randn(*lead, K, N, dtype=dtype)


def blocks_of(dense: Tensor, col: Tensor = COL) -> Tensor:
    """The blocks of a dense (m, n) matrix at the pattern, (blocks, bm, bn)."""
    tiles = dense.view(3, 4, 4, 5).transpose(1, 2)
    return tiles[torch.tensor([0, 0, 2]), col]


def tensor(blocks: Tensor, col: Tensor = COL) -> Tensor:
    return torch.sparse_bsr_tensor(CROW, col, blocks, (M, N), check_invariants=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_values_of_a_pattern_are_in_the_order_of_its_blocks(
    dtype: torch.dtype, heads: int | None, backend: str | None
) -> None:
    a, b = operands(dtype, heads)
    plan = sddmm.plan(PATTERN, k=K, dtype=dtype, heads=heads, backend=backend)
    values = plan.run(a, b)
    assert_close(values, PATTERN, a, b)
    head = values.view(-1, 60)[0].view(3, *BLOCKSIZE).float()
    product = (a.float() @ b.float()).view(-1, M, N)[0]
    torch.testing.assert_close(head, blocks_of(product), rtol=1e-2, atol=1e-2)
    assert "(BSR 4x5, int64 indices)" in plan.explain()


@pytest.mark.parametrize("scale", [True, False])
def test_a_torch_tensor_in_and_out(scale: bool) -> None:
    a, b = operands()
    S = tensor(torch.randn(3, *BLOCKSIZE))
    result = sddmm.sddmm(S, a, b, alpha=2.0, scale=scale)
    assert result.layout == torch.sparse_bsr
    assert result.col_indices().data_ptr() == S.col_indices().data_ptr()
    expected = 2 * blocks_of(a @ b) * (S.values() if scale else 1)
    torch.testing.assert_close(result.values(), expected)


def test_values_alone_with_heads() -> None:
    a, b = operands(heads=3)
    S = tensor(torch.randn(3, *BLOCKSIZE))
    values = sddmm.sddmm(S, a, b)
    assert values.shape == (3, 60)
    assert_close(values, S, a, b)


def test_sampled_addmm_adds_the_blocks() -> None:
    a, b = operands()
    S = tensor(torch.randn(3, *BLOCKSIZE))
    result = sddmm.sampled_addmm(S, a, b, beta=0.5, alpha=2.0)
    torch.testing.assert_close(result.values(), 0.5 * S.values() + 2 * blocks_of(a @ b))


@pytest.mark.parametrize("transpose", [False, True])
def test_the_product_with_a_dense_matrix(transpose: bool) -> None:
    S = tensor(torch.randn(3, *BLOCKSIZE))
    dense = torch.randn(M if transpose else N, K)
    product = sddmm.spmm(S, dense, transpose=transpose)
    torch.testing.assert_close(product, (S.to_dense().mT if transpose else S.to_dense()) @ dense)
    values = torch.randn(2, 60)
    heads = torch.stack([dense, dense])
    product = sddmm.spmm(PATTERN, heads, values=values, transpose=transpose)
    assert_spmm_close(product, PATTERN, heads, values=values, transpose=transpose)
    with pytest.raises(ValueError, match=r"values must have one entry per nonzero, \(60,\)"):
        sddmm.spmm(PATTERN, dense, values=torch.randn(3), transpose=transpose)


@pytest.mark.parametrize("function", [sddmm.sddmm, sddmm.sampled_addmm])
def test_gradients_of_the_operands_and_the_blocks(function: Any) -> None:
    a, b = (x.requires_grad_() for x in operands(torch.float64))
    blocks = torch.randn(3, *BLOCKSIZE, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(blocks)
    result = function(tensor(blocks, SORTED_COL), a, b).values()
    got = torch.autograd.grad((result * weights).sum(), (a, b, blocks))
    sampled = blocks_of(a @ b, SORTED_COL)
    by_hand = sampled * blocks if function is sddmm.sddmm else sampled + blocks
    expected = torch.autograd.grad((by_hand * weights).sum(), (a, b, blocks))
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_gradients_of_a_plan_and_of_a_product() -> None:
    a, b = (x.requires_grad_() for x in operands(torch.float64, 2))
    plan = sddmm.plan(PATTERN, k=K, dtype=torch.float64, heads=2)
    torch.autograd.gradcheck(plan.run, (a, b))
    values = torch.randn(60, dtype=torch.float64, requires_grad=True)
    dense = torch.randn(N, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda v, x: sddmm.spmm(PATTERN, x, values=v), (values, dense))


def test_unsorted_blocks_with_values_that_require_grad_are_refused() -> None:
    """torch's own gradient of such a tensor is in another order."""
    blocks = torch.randn(3, *BLOCKSIZE, requires_grad=True)
    with pytest.raises(ValueError, match="BSR tensor made of values that require grad, with unsor"):
        sddmm.sddmm(tensor(blocks), *operands())


def test_the_plan_of_a_tensor_keeps_its_values() -> None:
    a, b = operands()
    S = tensor(torch.randn(3, *BLOCKSIZE))
    plan = sddmm.plan(S, k=K, dtype=torch.float32)
    torch.testing.assert_close(plan.run(a, b).view(3, *BLOCKSIZE), S.values() * blocks_of(a @ b))
    out = torch.full((60,), torch.nan)
    assert plan.run(a, b, out=out) is out
    S.values().mul_(2)
    torch.testing.assert_close(plan.run(a, b), 2 * out)


def test_the_compiler_takes_a_block_pattern_into_its_graph() -> None:
    a, b = (x.requires_grad_() for x in operands())

    def function(x: Tensor, y: Tensor) -> Tensor:
        return 2 * sddmm.sddmm(PATTERN, x, y)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for got, expected in zip(
        torch.autograd.grad(compiled(a, b).square().sum(), (a, b)),
        torch.autograd.grad(function(a, b).square().sum(), (a, b)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_the_operator_refuses_blocks_of_rows() -> None:
    with pytest.raises(ValueError, match="blocksize is of compressed rows and cols"):
        torch.ops.sddmm.sddmm(CROW, COL, *operands(), None, blocksize=BLOCKSIZE)


@pytest.mark.parametrize("name", ["sddmm", "spmm"])
def test_the_operators_take_blocks_under_every_tracer(name: str) -> None:
    a, b = operands()
    blocks = {"compressed": True, "blocksize": list(BLOCKSIZE)}
    values = torch.randn(60, requires_grad=True)
    inputs: tuple[Tensor, ...] = (CROW, COL, a.requires_grad_(), b.requires_grad_(), values)
    options: dict[str, Any] = blocks
    if name == "spmm":
        inputs, options = (CROW, COL, values, torch.randn(N, 3)), {"m": M, "n": N, **blocks}
    torch.library.opcheck(getattr(torch.ops.sddmm, name).default, inputs, options)
    operator = OPERATORS[name]
    with torch.no_grad():
        truth = operator.reference(*inputs, **options)
        error = (getattr(torch.ops.sddmm, name)(*inputs, **options).double() - truth).abs()
        assert bool((error <= operator.error_bound(truth, *inputs, **options)).all())


def test_autocast_casts_the_operands_beside_blocks() -> None:
    S = tensor(torch.randn(3, *BLOCKSIZE))
    with torch.autocast("cpu", torch.bfloat16):
        result = sddmm.sddmm(S, *operands())
    assert (result.dtype, result.layout) == (torch.bfloat16, torch.sparse_bsr)
