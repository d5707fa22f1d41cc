"""Gradients with respect to a, b and S's values, and what torch.library demands of an operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sddmm
from sddmm.testing import random_pattern

M, K, N, NNZ = 6, 3, 5, 14
PATTERN = random_pattern(M, N, NNZ, layout="coo")
SHUFFLED = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
DUPLICATED = sddmm.SparsePattern.from_coo(
    torch.tensor([5, 0, 5, 2]), torch.tensor([1, 4, 1, 0]), (M, N)
)


def leaves(heads: int | None, nnz: int = NNZ) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    lead = () if heads is None else (heads,)
    shapes = [(*lead, M, K), (*lead, K, N), (nnz,)]
    return tuple(
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in shapes
    )


def coo(values: torch.Tensor) -> torch.Tensor:
    indices = torch.stack([PATTERN.row_ids, PATTERN.col_indices])
    return torch.sparse_coo_tensor(indices, values, (M, N), is_coalesced=True)


def csr(values: torch.Tensor) -> torch.Tensor:
    pattern = PATTERN.to_csr()
    return torch.sparse_csr_tensor(pattern.major_indices, pattern.col_indices, values, (M, N))


def values_of(result: torch.Tensor) -> torch.Tensor:
    return result if result.layout == torch.strided else result.values()


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("container", [coo, csr])
@pytest.mark.parametrize(
    "function",
    [
        lambda S, a, b: sddmm.sddmm(S, a, b, alpha=1.5),
        lambda S, a, b: sddmm.sddmm(S, a, b, scale=False),
        lambda S, a, b: sddmm.sampled_addmm(S, a, b, alpha=0.5, beta=-2.0),
    ],
    ids=["scaled", "unscaled", "addmm"],
)
def test_gradients_of_every_input(heads: int | None, container: Any, function: Any) -> None:
    assert gradcheck(lambda a, b, v: values_of(function(container(v), a, b)), leaves(heads))


@pytest.mark.parametrize("pattern", [SHUFFLED, DUPLICATED, PATTERN.to_csr()], ids=repr)
@pytest.mark.parametrize("heads", [None, 2])
def test_first_and_second_gradients_in_any_order_of_nonzeros(
    pattern: sddmm.SparsePattern, heads: int | None
) -> None:
    def op(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.sddmm.sddmm(
            pattern.major_indices, pattern.col_indices, a, b, v, compressed=pattern.is_csr
        )

    inputs = leaves(heads, pattern.nnz)
    assert gradcheck(op, inputs)
    assert gradgradcheck(op, inputs)


def test_gradients_through_a_plan() -> None:
    a, b, v = leaves(None)
    plan = sddmm.plan(coo(v), k=K, dtype=torch.float64, alpha=2.0)
    assert gradcheck(lambda a, b: plan.run(a, b), (a, b))
    with pytest.raises(ValueError, match="out= cannot be differentiated"):
        plan.run(a, b, out=torch.empty(NNZ, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_narrow_types_are_those_of_float64(dtype: torch.dtype) -> None:
    narrow = [t.detach().to(dtype).requires_grad_() for t in leaves(2)]
    wide = [t.detach().double().requires_grad_() for t in narrow]
    for inputs in (narrow, wide):
        sddmm.sddmm(coo(inputs[2]), *inputs[:2]).square().sum().backward()
    tolerance = 8 * torch.finfo(dtype).eps
    for got, expected in zip(narrow, wide, strict=True):
        assert got.grad is not None
        assert got.grad.dtype == dtype
        scale = float(expected.grad.abs().max())
        torch.testing.assert_close(
            got.grad.double(), expected.grad, rtol=tolerance, atol=tolerance * scale
        )


def test_gradients_of_empty_problems_are_zero() -> None:
    a, b, _ = leaves(None)
    empty = random_pattern(M, N, 0)
    sddmm.sddmm(empty, a, b).sum().backward()
    for leaf in (a, b):
        assert leaf.grad is not None
        assert not leaf.grad.any()


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("with_values", [True, False])
def test_opcheck_of_sddmm(heads: int | None, with_values: bool) -> None:
    a, b, v = leaves(heads)
    arguments = (SHUFFLED.row_ids, SHUFFLED.col_indices, a, b, v if with_values else None)
    torch.library.opcheck(torch.ops.sddmm.sddmm.default, arguments, {"alpha": 2.0})
    options = {"out_dtype": torch.float32}
    torch.library.opcheck(
        torch.ops.sddmm.sddmm.default,
        tuple(t.detach() if t is not None else None for t in arguments),
        options,
    )


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads", [None, 2])
def test_opcheck_of_spmm(transpose: bool, heads: int | None) -> None:
    lead = () if heads is None else (heads,)
    values = torch.randn(*lead, NNZ, dtype=torch.float64, requires_grad=True)
    dense = torch.randn(*lead, M if transpose else N, K, dtype=torch.float64, requires_grad=True)
    csr_pattern = PATTERN.to_csr()
    torch.library.opcheck(
        torch.ops.sddmm.spmm.default,
        (csr_pattern.major_indices, csr_pattern.col_indices, values, dense),
        {"m": M, "n": N, "compressed": True, "transpose": transpose},
    )


def test_spmm_is_the_sparse_product() -> None:
    values, dense = torch.randn(4), torch.randn(N, K)
    S = torch.sparse_coo_tensor(
        torch.stack([DUPLICATED.row_ids, DUPLICATED.col_indices]), values, (M, N)
    ).to_dense()
    where = (DUPLICATED.row_ids, DUPLICATED.col_indices)
    got = torch.ops.sddmm.spmm(*where, values, dense, m=M, n=N)
    torch.testing.assert_close(got, S @ dense)
    transposed = torch.ops.sddmm.spmm(*where, values, torch.ones(M, K), m=M, n=N, transpose=True)
    torch.testing.assert_close(transposed, S.T @ torch.ones(M, K))


def test_a_compiled_function_calls_the_operator_without_a_graph_break() -> None:
    def loss(rows: Any, cols: Any, a: Any, b: Any, v: Any) -> torch.Tensor:
        return torch.ops.sddmm.sddmm(rows, cols, a, b, v, alpha=0.5).relu().sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        inputs = leaves(2)
        value = function(SHUFFLED.row_ids, SHUFFLED.col_indices, *inputs)
        value.backward()
        results.append([value.detach(), *(t.grad for t in inputs)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
