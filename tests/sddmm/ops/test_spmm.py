"""spmm: right for every container, dtype and size; its gradients; what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_spmm_close, random_pattern, spmm_reference
from tests.sddmm.dense import randn
from tests.sddmm.patterns import csr_tensor

M, N, D, NNZ = 9, 7, 5, 30
CSR = random_pattern(M, N, NNZ)
COO = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
DUPLICATES = SparsePattern.from_coo([8, 0, 8, 2, 8], [1, 4, 1, 0, 1], (M, N))
# More nonzeros than positions.
CROWDED = SparsePattern.from_coo([1] * 64, [2] * 64, (M, N))
CACHE = {"csr": CSR, "coo": COO, "duplicates": DUPLICATES, "crowded": CROWDED}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
V = randn(NNZ)
torch_csr = partial(csr_tensor, CSR)


def torch_coo(values: torch.Tensor, coalesced: bool = False) -> torch.Tensor:
    indices = torch.stack([CSR.row_ids, CSR.col_indices])
    return torch.sparse_coo_tensor(indices, values, (M, N), is_coalesced=coalesced)


def to_dense(pattern: SparsePattern, values: torch.Tensor) -> torch.Tensor:
    matrix = values.new_zeros(*values.shape[:-1], M, N, dtype=torch.float64)
    for target, each in zip(matrix.view(-1, M, N), values.view(-1, pattern.nnz), strict=True):
        where = (pattern.row_ids.long(), pattern.col_indices.long())
        target.index_put_(where, each.double(), accumulate=True)
    return matrix


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CACHE)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads", [None, 3])
def test_the_product_is_that_of_the_dense_matrix(
    dtype: torch.dtype, kind: str, transpose: bool, heads: int | None
) -> None:
    pattern = CACHE[kind]
    lead = () if heads is None else (heads,)
    values = randn(*lead, pattern.nnz, dtype=dtype)
    dense = randn(*lead, M if transpose else N, D, dtype=dtype, seed=1)
    options = {"values": values, "transpose": transpose, "alpha": -0.5}
    result = sddmm.spmm(pattern, dense, **options)
    matrix = to_dense(pattern, values)
    expected = -0.5 * (matrix.mT if transpose else matrix) @ dense.double()
    torch.testing.assert_close(spmm_reference(pattern, dense, **options), expected)
    assert result.dtype == dtype
    assert_spmm_close(result, pattern, dense, **options)


CONTAINERS: dict[str, Callable[[], Any]] = {
    "torch CSR": lambda: torch_csr(V),
    "torch COO": lambda: torch_coo(V),
    "coalesced COO": lambda: torch_coo(V, coalesced=True),
    "scipy csr": lambda: scipy.sparse.csr_matrix(to_dense(CSR, V).float().numpy()),
    "scipy csc": lambda: scipy.sparse.csc_array(to_dense(CSR, V).float().numpy()),
    "scipy coo": lambda: scipy.sparse.coo_array(to_dense(CSR, V).float().numpy()),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads", [None, 2])
def test_every_container_multiplies_by_its_own_values(
    kind: str, transpose: bool, heads: int | None
) -> None:
    lead = () if heads is None else (heads,)
    dense = randn(*lead, M if transpose else N, D)
    S = CONTAINERS[kind]()
    result = sddmm.spmm(S, dense, transpose=transpose)
    assert_spmm_close(result, S, dense, transpose=transpose)
    assert_spmm_close(result, CSR, dense, values=V, transpose=transpose)
    assert isinstance(sddmm.spmm(S, dense.numpy(), transpose=transpose), np.ndarray)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_values_given_replace_those_of_the_container(kind: str) -> None:
    S, dense = CONTAINERS[kind](), randn(2, N, D)
    if kind == "scipy csc":
        as_coo = S.tocoo()
        rows, cols = as_coo.row, as_coo.col
        order = torch.from_numpy(np.lexsort((cols, rows)))  # CSR's nonzeros among S's
        values = torch.empty(2, NNZ)
        values[:, order] = randn(2, NNZ, seed=4)
    else:
        values = randn(2, NNZ, seed=4)
    result = sddmm.spmm(S, dense, values=values)
    assert_spmm_close(result, CSR, dense, values=randn(2, NNZ, seed=4))


def test_a_tuple_of_indices_takes_values() -> None:
    S, dense = (COO.row_ids, COO.col_indices, (M, N)), randn(N, D)
    assert_spmm_close(sddmm.spmm(S, dense, values=V), COO, dense, values=V)
    as_numpy = (COO.row_ids.numpy(), COO.col_indices.numpy(), (M, N))
    result = sddmm.spmm(as_numpy, dense.numpy(), values=V.numpy())
    assert isinstance(result, np.ndarray)
    assert_spmm_close(result, COO, dense, values=V)


def test_a_square_matrix_and_its_transpose_are_prepared_apart() -> None:
    S = SparsePattern.from_coo([0, 0, 1], [1, 2, 2], (3, 3))
    values, identity = torch.tensor([1.0, 2.0, 3.0]), torch.eye(3)
    matrix = sddmm.spmm(S, identity, values=values)
    torch.testing.assert_close(sddmm.spmm(S, identity, values=values, transpose=True), matrix.mT)


@pytest.mark.parametrize("transpose", [False, True])
def test_values_without_heads_serve_every_head(transpose: bool) -> None:
    dense = randn(3, M if transpose else N, D)
    result = sddmm.spmm(COO, dense, values=V, transpose=transpose)
    assert_spmm_close(result, COO, dense, values=V.expand(3, NNZ), transpose=transpose)


@pytest.mark.parametrize("out_dtype", DTYPES)
def test_the_result_is_rounded_once_to_out_dtype(out_dtype: torch.dtype) -> None:
    dense, values = randn(N, D, dtype=torch.float16), V.half()
    result = sddmm.spmm(COO, dense, values=values, out_dtype=out_dtype)
    assert result.dtype == out_dtype
    assert_spmm_close(result, COO, dense, values=values)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "d", "nnz"), [(0, 4, 3, 0), (5, 0, 3, 0), (5, 4, 0, 6), (5, 4, 3, 0)]
)
@pytest.mark.parametrize("grad", [False, True])
def test_empty_sizes_give_zeros(
    transpose: bool, m: int, n: int, d: int, nnz: int, grad: bool
) -> None:
    for pattern in (random_pattern(m, n, nnz), random_pattern(m, n, nnz, layout="coo")):
        dense = randn(m if transpose else n, d).requires_grad_(grad)
        values = randn(nnz).requires_grad_(grad)
        result = sddmm.spmm(pattern, dense, values=values, transpose=transpose)
        assert result.shape == (n if transpose else m, d)
        assert not result.any()
        if grad:
            result.sum().backward()
            assert not dense.grad.any()
            assert not values.grad.any()


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_numbers_reach_exactly_the_rows_that_read_them(
    special: float, transpose: bool, dtype: torch.dtype
) -> None:
    values = randn(NNZ, dtype=dtype)
    values[3] = 0  # a stored zero is a nonzero: 0 * inf is NaN
    dense = randn(M if transpose else N, D, dtype=dtype)
    source = COO.row_ids if transpose else COO.col_indices
    target = COO.col_indices if transpose else COO.row_ids
    dense[source[3], 2] = special
    result = sddmm.spmm(COO, dense, values=values, transpose=transpose)
    touched = torch.zeros(result.shape, dtype=torch.bool)
    touched[target[source == source[3]], 2] = True
    assert torch.equal(~result.isfinite(), touched)
    assert_spmm_close(result, COO, dense, values=values, transpose=transpose)
    values[5] = special
    result = sddmm.spmm(COO, torch.ones_like(dense), values=values, transpose=transpose)
    assert (~result.isfinite()).all(1).nonzero().flatten().tolist() == [int(target[5])]
    assert result.isfinite().sum() == result.numel() - D


@pytest.mark.parametrize(
    ("kind", "transpose", "heads"),
    [
        ("csr", False, "none"), ("csr", True, "both"), ("coo", False, "both"),
        ("coo", True, "dense"), ("duplicates", True, "none"), ("duplicates", False, "dense"),
        ("crowded", False, "both"), ("crowded", True, "dense"),
    ],
)  # fmt: skip
def test_first_and_second_gradients(kind: str, transpose: bool, heads: str) -> None:
    pattern = CACHE[kind]
    lead = () if heads == "none" else (2,)
    values = randn(*(lead if heads == "both" else ()), pattern.nnz, dtype=torch.float64)
    dense = randn(*lead, M if transpose else N, 2, dtype=torch.float64)

    def product(values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = sddmm.spmm(
            pattern, dense, values=values, transpose=transpose, alpha=1.5
        )
        return result

    inputs = (values.requires_grad_(), dense.requires_grad_())
    assert gradcheck(product, inputs, fast_mode=True)
    assert gradgradcheck(product, inputs, fast_mode=True)


@pytest.mark.parametrize("container", [torch_csr, lambda v: torch_coo(v, coalesced=True)])
def test_gradients_reach_the_values_of_a_torch_matrix(container: Any) -> None:
    values = V.double().requires_grad_()
    dense = randn(2, N, D, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda v, x: sddmm.spmm(container(v), x), (values, dense), fast_mode=True)


@pytest.mark.parametrize("kind", ["scipy csr", "scipy csc", "scipy coo"])
def test_a_dense_operand_gets_its_gradient_beside_a_scipy_matrix(kind: str) -> None:
    S, dense = CONTAINERS[kind](), randn(N, D).requires_grad_()
    result = sddmm.spmm(S, dense)
    S.data[:] = 0  # scipy's memory changes unseen by torch; the product is of what it was
    result.backward(torch.ones(M, D))
    expected = to_dense(CSR, V).float().mT @ torch.ones(M, D)
    torch.testing.assert_close(dense.grad, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_half_gradients_are_those_of_float64(
    dtype: torch.dtype, out_dtype: torch.dtype | None
) -> None:
    narrow = [randn(NNZ, dtype=dtype), randn(2, N, D, dtype=dtype)]
    results = []
    for inputs in (narrow, [x.double() for x in narrow]):
        values, dense = (x.requires_grad_() for x in inputs)
        wide = None if inputs[0].dtype == torch.float64 else out_dtype
        product = sddmm.spmm(COO, dense, values=values, alpha=0.5, out_dtype=wide)
        product.backward(torch.ones_like(product))
        results.append([values.grad, dense.grad])
    for got, expected in zip(*results, strict=True):
        assert got.dtype == dtype
        eps, size = torch.finfo(dtype).eps, float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected, rtol=2 * eps, atol=2 * eps * size)


def test_a_change_of_the_indices_in_place_is_seen() -> None:
    rows, cols = COO.row_ids.clone(), COO.col_indices.clone()
    pattern, dense = SparsePattern.from_coo(rows, cols, (M, N)), randn(N, D)
    sddmm.spmm(pattern, dense, values=V)
    rows.copy_(rows.flip(0))
    now = SparsePattern.from_coo(rows.clone(), cols.clone(), (M, N))
    assert_spmm_close(sddmm.spmm(pattern, dense, values=V), now, dense, values=V)
    assert_spmm_close(sddmm.spmm((rows, cols, (M, N)), dense, values=V), now, dense, values=V)


def test_lazy_views_and_strides_are_read_right() -> None:
    wide = randn(D, 2 * N)
    dense = torch._neg_view(wide.mT[::2])
    values = torch._neg_view(V.repeat_interleave(2)[::2])
    assert_spmm_close(sddmm.spmm(COO, dense, values=values), COO, -wide.mT[::2], values=-V)


def test_compiled_without_a_graph_break_it_is_as_in_eager() -> None:
    torch._dynamo.reset()

    def attention_like(rows: Any, cols: Any, values: Any, dense: Any) -> torch.Tensor:
        weights = values.relu()
        one = sddmm.spmm(COO, dense, values=weights, alpha=0.5)
        two = sddmm.spmm((rows, cols, (M, N)), one, values=weights, transpose=True)
        result: torch.Tensor = two.sum()
        return result

    results = []
    compiled = torch.compile(attention_like, fullgraph=True, backend="aot_eager")
    for function in (attention_like, compiled):
        values, dense = V.clone().requires_grad_(), randn(N, D).requires_grad_()
        loss = function(COO.row_ids, COO.col_indices, values, dense)
        loss.backward()
        results.append([loss.detach(), values.grad, dense.grad])
    torch.testing.assert_close(*results)


def test_parameters_of_a_compiled_module_are_values_and_dense() -> None:
    torch._dynamo.reset()
    weights, dense = torch.nn.Parameter(V.clone()), torch.nn.Parameter(randn(N, D))
    compiled = torch.compile(
        lambda: sddmm.spmm(COO, dense, values=weights), fullgraph=True, backend="aot_eager"
    )
    assert_spmm_close(compiled().detach(), COO, dense.detach(), values=V)


@pytest.mark.skipif(
    torch.__version__ < (2, 11), reason="needs torch 2.11: Dynamo 2.5 fails on sparse tensors"
)
def test_a_torch_matrix_breaks_the_graph_and_is_multiplied_all_the_same() -> None:
    torch._dynamo.reset()
    S, dense = torch_csr(V), randn(N, D)
    compiled = torch.compile(lambda x: sddmm.spmm(S, x * 2) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(dense), sddmm.spmm(S, dense * 2) + 1)


@pytest.mark.parametrize("container", [torch_csr, lambda v: (COO, v)])
def test_autocast_casts_dense_and_values(container: Any) -> None:
    made = container(V)
    S, values = made if isinstance(made, tuple) else (made, None)
    dense = randn(N, D)
    with torch.autocast("cpu", torch.bfloat16):
        result = sddmm.spmm(S, dense, values=values)
        wide = sddmm.spmm(S, dense, values=values, out_dtype=torch.float32)
        assert sddmm.spmm(S, dense.numpy(), values=None if values is None else V.numpy()).dtype == (
            np.float32
        )
    assert (result.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    pattern = CSR if values is None else COO
    assert_spmm_close(wide, pattern, dense.bfloat16(), values=V.bfloat16())


def test_forward_mode_and_torch_func_are_refused() -> None:
    dense = randn(N, D)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode"):
        sddmm.spmm(COO, forward_ad.make_dual(dense, dense), values=V)
    with pytest.raises(NotImplementedError, match=r"cannot be differentiated by torch.func"):
        torch.func.grad(lambda x: sddmm.spmm(COO, x, values=V).sum())(dense)


X = randn(N, D)


@pytest.mark.parametrize(
    ("S", "dense", "options", "error", "message"),
    [
        (COO, X, {}, ValueError, r"S is a pattern without values; give values=, .*\(h, nnz\)"),
        (COO, X[:5], {"values": V}, ValueError, "S has shape 9x7, so dense must have 7 rows; got"),
        (
            COO, X, {"values": V, "transpose": True}, ValueError,
            "dense must have 9 rows with transpose=True; got dense 7x5",
        ),
        (
            scipy.sparse.csc_array(np.ones((M, N), np.float32)), X[:5], {}, ValueError,
            "S has shape 9x7, so dense must have 7 rows",
        ),
        (COO, X[0], {"values": V}, ValueError, r"dense must have 2 .* as dense\[:, None\]"),
        (COO, X[None, None], {"values": V}, ValueError, r"dense must .*dense.flatten\(0, -3\)"),
        (COO, X, {"values": V[:4]}, ValueError, r"values must have one entry .*\(30,\) .* shape 4"),
        (COO, X, {"values": V[None]}, ValueError, r"\(30,\) beside dense 7x5; got shape 1x30"),
        (
            COO, X.expand(3, N, D), {"values": V.expand(2, NNZ)}, ValueError,
            r"\(30,\) or \(3, 30\) beside dense 3x7x5; got shape 2x30",
        ),
        (COO, X.half(), {"values": V}, TypeError, "values are torch.float32 and dense is torch.fl"),
        (torch_csr(V), X.half(), {}, TypeError, "S's values are torch.float32 and dense is torch"),
        (COO, X.int(), {"values": V}, TypeError, "dense must be one of .* got torch.int32"),
        (COO, X, {"values": V.long()}, TypeError, "values must be one of .* got torch.int64"),
        (COO, X, {"values": V.tolist()}, TypeError, "values must be a torch tensor, a numpy"),
        (COO, torch_csr(V), {"values": V}, TypeError, "dense must be a dense tensor, got layout"),
        (COO, X.to("meta"), {"values": V}, ValueError, "dense is on meta and S on cpu"),
        (COO, X, {"values": V.to("meta")}, ValueError, "values are on meta and S on cpu"),
        (COO, X, {"values": V, "out_dtype": torch.int32}, TypeError, "out_dtype must be one of"),
        (COO, X, {"values": V, "transpose": "no"}, TypeError, "transpose must be True or False"),
        (COO, X.cfloat(), {"values": V}, TypeError, "complex64; complex products are not support"),
        (COO, X, {"values": V, "alpha": "2"}, TypeError, "alpha must be a real number"),
        (([0, 9], [0, 1], (M, N)), X, {"values": V[:2]}, ValueError, r"row_indices\[1\] is 9"),
        (torch.ones(M, N), X, {}, TypeError, "S must be a torch sparse COO, CSR or BSR tensor"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_the_name_of_its_argument(
    S: Any, dense: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        sddmm.spmm(S, dense, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "dense", "out_dtype", "message"),
    [
        (V.long(), X, None, "values must be one of .* got torch.int64"),
        (V, X.long(), None, "dense must be one of .* got torch.int64"),
        (V, X, torch.int32, "out_dtype must be one of .* got torch.int32"),
    ],
)
def test_the_torch_operator_refuses_what_spmm_does(
    values: torch.Tensor, dense: torch.Tensor, out_dtype: torch.dtype | None, message: str
) -> None:
    indices = COO.row_ids, COO.col_indices
    with pytest.raises(TypeError, match=message):
        torch.ops.sddmm.spmm(*indices, values, dense, m=M, n=N, out_dtype=out_dtype)


def test_wrong_products_are_caught() -> None:
    right = sddmm.spmm(COO, X, values=V)
    wrong = right.clone()
    wrong[4, 1] *= 1 + 1e-4
    for result in (wrong, sddmm.spmm(COO, X, values=V * (1 + 1e-4)), right[:, :-1]):
        with pytest.raises(AssertionError, match="values"):
            assert_spmm_close(result, COO, X, values=V)
