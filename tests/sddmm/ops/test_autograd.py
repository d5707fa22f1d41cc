"""Gradients with respect to a, b and S's values, and what torch.library demands of an operator."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sddmm
from sddmm.backends.torch_csr import TorchCsrBackend
from sddmm.products import product_problem
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


FUNCTIONS = {
    "scaled": lambda S, a, b: sddmm.sddmm(S, a, b, alpha=1.5),
    "unscaled": lambda S, a, b: sddmm.sddmm(S, a, b, scale=False),
    "addmm": lambda S, a, b: sddmm.sampled_addmm(S, a, b, alpha=0.5, beta=-2.0),
}


@pytest.mark.parametrize(
    ("name", "heads", "container"),
    [
        ("scaled", None, coo), ("scaled", 3, csr), ("unscaled", 3, coo), ("unscaled", None, csr),
        ("addmm", None, coo), ("addmm", 3, csr),
    ],
)  # fmt: skip
def test_gradients_of_every_input(name: str, heads: int | None, container: Any) -> None:
    function = FUNCTIONS[name]
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
    assert gradgradcheck(op, inputs, fast_mode=True)


@pytest.mark.parametrize("heads", [None, 2])
def test_gradients_of_several_upstreams_at_once_are_those_of_each(heads: int | None) -> None:
    a, b, v = leaves(heads)

    def check(result: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> None:
        upstream = torch.randn(3, *result.shape, dtype=result.dtype)
        options: Any = {"retain_graph": True}
        batched = torch.autograd.grad(result, inputs, upstream, is_grads_batched=True, **options)
        for i, one in enumerate(upstream):
            for got, want in zip(
                batched, torch.autograd.grad(result, inputs, one, **options), strict=True
            ):
                torch.testing.assert_close(got[i], want)

    samples = torch.ops.sddmm.sddmm(PATTERN.row_ids, PATTERN.col_indices, a, b, v)
    check(samples, (a, b, v))
    check(sddmm.spmm(PATTERN, b.mT, values=v), (b, v))
    check(sddmm.softmax(PATTERN, v), (v,))


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("alpha", "upstream"), [(1e-6, 1e5), (1e6, 1e-8), (1.0, 1e5)])
@pytest.mark.parametrize("scale", [True, False])
def test_half_gradients_are_rounded_only_once_they_are_summed(
    dtype: torch.dtype, alpha: float, upstream: float, scale: bool
) -> None:
    """No half type holds the upstream gradient, or the weights made of it; it holds the result."""
    divisor = 2.0**10 if alpha == 1.0 else 1.0
    grads = []
    for wide in (None, torch.float64):
        leaves_now = [(t.detach().to(dtype) / divisor).to(wide or dtype) for t in leaves(2)]
        a, b, v = (t.requires_grad_() for t in leaves_now)
        out = sddmm.sddmm(coo(v), a, b, alpha=alpha, scale=scale, out_dtype=wide or torch.float32)
        out.backward(torch.full_like(out, upstream))
        grads.append([a.grad, b.grad] + ([v.grad] if scale else []))
    for got, expected in zip(*grads, strict=True):
        assert got.dtype == dtype
        assert got.isfinite().all()
        size = float(expected.abs().max())
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(got.double(), expected, rtol=4 * eps, atol=4 * eps * size)


def test_gradients_of_a_result_wider_than_the_operands_keep_its_range() -> None:
    a, b, _ = (t.detach().float().requires_grad_() for t in leaves(None))
    out = sddmm.sddmm(PATTERN, a, b, alpha=1e-200, out_dtype=torch.float64)
    out.backward(torch.full_like(out, 1e200))
    wide = [t.detach().double().requires_grad_() for t in (a, b)]
    sddmm.sddmm(PATTERN, *wide).sum().backward()
    for got, expected in zip((a, b), wide, strict=True):
        torch.testing.assert_close(got.grad, expected.grad.float())


def test_second_gradients_with_wide_weights_and_half_operands() -> None:
    results = []
    for dtype in (torch.bfloat16, torch.float64):
        a, b, v = (t.detach().bfloat16().to(dtype).requires_grad_() for t in leaves(None))
        out = sddmm.sddmm(coo(v), a, b, alpha=0.5).values()
        first = torch.autograd.grad(out.square().sum(), (a, b, v), create_graph=True)
        sum(x.square().sum() for x in first).backward()
        results.append([a.grad, b.grad, v.grad])
    for got, expected in zip(*results, strict=True):
        size = float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.02 * size)


def stacked(copies: int, m: int = 3, n: int = 4) -> sddmm.SparsePattern:
    """Some positions of an m x n matrix, `copies` times each, in no order."""
    order = torch.randperm(5 * copies, generator=torch.Generator().manual_seed(3))
    flat = torch.tensor([0, 3, 6, 7, 11]).repeat(copies)[order]
    return sddmm.SparsePattern.from_coo(flat // n, flat % n, (m, n))


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("csr", [True, False])
def test_gradients_of_more_nonzeros_than_positions(heads: int | None, csr: bool) -> None:
    pattern = stacked(4).to_csr() if csr else stacked(4)
    assert pattern.nnz > 3 * 4
    lead = () if heads is None else (heads,)
    a, b, v = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((*lead, 3, 2), (*lead, 2, 4), (pattern.nnz,))
    )

    def op(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.sddmm.sddmm(
            pattern.major_indices, pattern.col_indices, a, b, v, compressed=pattern.is_csr
        )

    assert gradcheck(op, (a, b, v))
    assert gradgradcheck(op, (a, b, v), fast_mode=True)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("m", "n"), [(3, 4), (12, 1), (1, 12)])
def test_torch_never_gets_more_nonzeros_than_positions(transpose: bool, m: int, n: int) -> None:
    """cuSPARSE refuses them."""
    pattern = stacked(40, m, n)
    values, dense = torch.randn(pattern.nnz), torch.randn(m if transpose else n, 2)
    with mock.patch("torch.sparse_csr_tensor", wraps=torch.sparse_csr_tensor) as made:
        matrix_pattern = pattern.T if transpose else pattern
        problem = product_problem(pattern, values, dense, None, transpose, None)
        got = torch.empty(problem.out_shape())
        TorchCsrBackend().prepare_product(matrix_pattern, problem)(values, None, dense, 1.0, got)
    (call,) = made.call_args_list
    crow, cols, _, size = call.args
    assert cols.numel() == pattern.nnz <= size[0] * size[1]
    assert crow.numel() == size[0] + 1
    where = (pattern.row_ids, pattern.col_indices)
    matrix = torch.zeros(m, n, dtype=torch.float64).index_put(
        where, values.double(), accumulate=True
    )
    matrix = matrix.mT if transpose else matrix
    torch.testing.assert_close(got.double(), matrix @ dense.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("special", [torch.inf, torch.nan])
def test_special_values_of_many_duplicates_stay_in_their_rows(special: float) -> None:
    pattern = stacked(4)
    values = torch.ones(pattern.nnz)
    values[0] = special
    row = int(pattern.row_ids[0])
    dense = torch.ones(4, 2)
    where = (pattern.row_ids, pattern.col_indices)
    got = torch.ops.sddmm.spmm(*where, values, dense, m=3, n=4)
    assert not got[row].isfinite().any()
    assert got[torch.arange(3) != row].isfinite().all()
    # An infinity in a row of the dense operand where no nonzero is, is not read.
    dense[1] = special
    assert torch.ops.sddmm.spmm(*where, torch.ones(pattern.nnz), dense, m=3, n=4).isfinite().all()


def test_duplicates_of_opposite_signs_make_nan_of_an_infinity() -> None:
    rows = cols = torch.zeros(3, dtype=torch.int64)
    values = torch.tensor([1.0, -3.0, 1.0])
    got = torch.ops.sddmm.spmm(rows, cols, values, torch.tensor([[torch.inf, 1.0]]), m=1, n=1)
    assert got[0, 0].isnan()
    assert got[0, 1] == -1


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


@pytest.mark.parametrize("columns", [[2, 0, 1, 1, 0], [2, 2, 1, 1, 1], [0, 1, 2, 0, 1]])
@pytest.mark.parametrize("way", ["values", "to_dense", "scaled", "product"])
def test_gradients_through_a_csr_result_in_any_order(columns: list[int], way: str) -> None:
    crow, cols = torch.tensor([0, 3, 5]), torch.tensor(columns)
    rows = torch.tensor([0, 0, 0, 1, 1])
    S = torch.sparse_csr_tensor(crow, cols, torch.ones(5).double(), (2, 3))
    a, b = (torch.randn(*size).double().requires_grad_() for size in ((2, 4), (4, 3)))
    weights, dense = torch.randn(5).double(), torch.randn(2, 3).double()

    def loss(P: torch.Tensor) -> torch.Tensor:
        if way == "values":
            return (P.values() * weights).sum()
        if way == "to_dense":
            return (P.to_dense() * dense).sum()
        if way == "scaled":
            return ((P * 2.0).values() * weights).sum()
        return (P @ dense.mT).sum()

    got = torch.autograd.grad(loss(sddmm.sddmm(S, a, b)), (a, b))
    samples = (a @ b)[rows, cols]
    if way in ("values", "scaled"):
        expected_loss = (samples * weights).sum() * (2 if way == "scaled" else 1)
    elif way == "to_dense":
        expected_loss = (samples * dense[rows, cols]).sum()
    else:
        expected_loss = (samples * dense.sum(0)[cols]).sum()
    torch.testing.assert_close(got, torch.autograd.grad(expected_loss, (a, b)))


def test_values_whose_gradient_torch_would_shuffle_are_refused() -> None:
    crow, cols = torch.tensor([0, 3, 5]), torch.tensor([2, 0, 1, 1, 0])
    v = torch.ones(5, requires_grad=True)
    S = torch.sparse_csr_tensor(crow, cols, v, (2, 3))
    with pytest.raises(ValueError, match="unsorted columns or duplicates, whose gradient torch"):
        sddmm.sddmm(S, torch.ones(2, 4), torch.ones(4, 3))
