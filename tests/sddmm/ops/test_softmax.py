"""softmax: right for every container, dtype and order; its gradients; what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import sddmm
from sddmm import SparsePattern
from sddmm.backends import row_softmax
from sddmm.testing import assert_softmax_close, random_pattern, softmax_reference
from tests.sddmm.dense import randn

M, N, NNZ = 9, 7, 30
CSR = random_pattern(M, N, NNZ)
COO = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
BSR = SparsePattern.from_bsr(torch.tensor([0, 2, 2, 3]), torch.tensor([1, 0, 1]), (3, 2), (9, 4))
PATTERNS = {
    "csr": CSR,
    "coo": COO,
    "bsr": BSR,
    "duplicates": SparsePattern.from_coo([8, 0, 8, 2, 8], [1, 4, 1, 0, 1], (M, N)),
    "hypersparse": SparsePattern.from_coo([2**40, 5, 2**40], [1, 4, 2], (2**41, N)),
    "no columns": random_pattern(M, 0, 0, layout="coo"),
}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
V = randn(NNZ)


def dense_softmax(values: torch.Tensor) -> torch.Tensor:
    """The softmax over the rows of CSR's dense matrix, in which all other entries are -inf."""
    matrix = torch.full((M, N), -torch.inf)
    matrix[CSR.row_ids, CSR.col_indices] = values
    return torch.softmax(matrix, 1).nan_to_num(0.0)


@pytest.fixture(params=["numba", "torch"])
def implementation(request: pytest.FixtureRequest) -> Any:
    """The CPU's two implementations."""
    if request.param == "numba":
        yield
    else:
        ways = row_softmax.ROW_SOFTMAX[-1:]
        with mock.patch.object(row_softmax, "ROW_SOFTMAX", ways):
            yield


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("heads", [None, 3])
def test_values_are_within_their_bound(dtype: torch.dtype, kind: str, heads: int | None) -> None:
    pattern = PATTERNS[kind]
    lead = () if heads is None else (heads,)
    values = (10 * randn(*lead, pattern.nnz)).to(dtype)
    assert_softmax_close(sddmm.softmax(pattern, values), pattern, values)


def test_the_reference_is_torchs_softmax_of_the_dense_matrix() -> None:
    truth = dense_softmax(V)[CSR.row_ids, CSR.col_indices]
    torch.testing.assert_close(softmax_reference(CSR, V).float(), truth)


CONTAINERS: dict[str, Callable[[], Any]] = {
    "torch CSR": lambda: CSR.to_torch(V),
    "torch COO": lambda: CSR.to_coo().to_torch(V),
    "scipy csr": lambda: scipy.sparse.csr_matrix(CSR.to_torch(V).to_dense().numpy()),
    "scipy csc": lambda: scipy.sparse.csc_array(CSR.to_torch(V).to_dense().numpy()),
    "scipy coo": lambda: scipy.sparse.coo_array(CSR.to_torch(V).to_dense().numpy()),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_comes_back_with_the_softmax_of_its_values(kind: str) -> None:
    S = CONTAINERS[kind]()
    result = sddmm.softmax(S)
    assert type(result) is type(S)
    if isinstance(S, torch.Tensor):
        assert result.layout == S.layout
        dense = result.to_dense()
    else:
        assert result.format == S.format
        dense = torch.from_numpy(result.toarray())
    torch.testing.assert_close(dense, dense_softmax(V))


def test_a_block_tensor_comes_back_with_its_blocks() -> None:
    values = randn(BSR.nnz)
    result = sddmm.softmax(BSR.to_torch(values))
    assert result.layout == torch.sparse_bsr
    assert_softmax_close(result.values().flatten(), BSR, values)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_values_given_replace_those_of_the_container(kind: str) -> None:
    S, values = CONTAINERS[kind](), randn(NNZ, seed=4)
    result = sddmm.softmax(S, values)
    if kind == "torch CSR":
        got = result.values()
    else:  # CSR's nonzeros are sorted
        got = result.coalesce().values() if kind == "torch COO" else torch.from_numpy(result.data)
    assert_softmax_close(got, S, values)


def test_values_with_heads_come_back_bare_and_as_what_they_were() -> None:
    values = randn(2, NNZ)
    assert_softmax_close(sddmm.softmax(CSR.to_torch(V), values), CSR, values)
    as_numpy = sddmm.softmax(COO, values.numpy())
    assert isinstance(as_numpy, np.ndarray)
    assert_softmax_close(as_numpy, COO, values)
    as_tuple = (COO.row_ids.numpy(), COO.col_indices.numpy(), (M, N))
    assert_softmax_close(sddmm.softmax(as_tuple, values), COO, values)


@pytest.mark.usefixtures("implementation")
def test_minus_infinity_gives_0_and_a_row_of_nothing_else_nan() -> None:
    pattern = SparsePattern.from_coo([0, 0, 1, 1, 2, 2, 3, 3], [0, 1] * 4, (4, 2))
    inf = torch.inf
    values = torch.tensor([1.0, -inf, -inf, -inf, 0.5, torch.nan, inf, 0.0])
    expected = torch.softmax(values.view(4, 2), 1).flatten()
    got = sddmm.softmax(pattern, values)
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert got[1] == 0


def test_values_of_any_size_do_not_overflow() -> None:
    pattern = SparsePattern.from_coo([0, 0, 1, 1], [0, 1, 0, 1], (2, 2))
    values = torch.tensor([3e38, 3e38, -3e38, 3e38])
    assert sddmm.softmax(pattern, values).tolist() == [0.5, 0.5, 0.0, 1.0]


@pytest.mark.usefixtures("implementation")
def test_the_same_values_give_the_same_bits_with_any_number_of_threads() -> None:
    pattern = random_pattern(50, 9000, 100_000, layout="coo", shuffled=True)
    values, grad = randn(pattern.nnz).requires_grad_(), randn(pattern.nnz, seed=1)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            p = sddmm.softmax(pattern, values)
            results.append((p.detach(), *torch.autograd.grad(p, values, grad)))
    finally:
        torch.set_num_threads(threads)
    for p, gradient in results[1:]:
        assert torch.equal(p, results[0][0])
        assert torch.equal(gradient, results[0][1])


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("kind", ["csr", "coo", "bsr", "duplicates"])
@pytest.mark.parametrize("heads", [None, 2])
def test_gradients_of_the_first_and_the_second_order(kind: str, heads: int | None) -> None:
    pattern = PATTERNS[kind]
    lead = () if heads is None else (heads,)
    values = randn(*lead, pattern.nnz, dtype=torch.float64).requires_grad_()

    def softmax(values: torch.Tensor) -> torch.Tensor:
        p: torch.Tensor = sddmm.softmax(pattern, values)
        return p

    assert gradcheck(softmax, values, fast_mode=True)
    assert gradgradcheck(softmax, values, fast_mode=True)


def test_gradients_of_the_third_order() -> None:
    values = randn(NNZ, dtype=torch.float64).requires_grad_()

    def gradient(values: torch.Tensor) -> torch.Tensor:
        cubes = sddmm.softmax(COO, values).pow(3).sum()
        (first,) = torch.autograd.grad(cubes, values, create_graph=True)
        return first

    assert gradgradcheck(gradient, values, fast_mode=True)


def test_the_gradient_reaches_the_values_of_a_sparse_tensor() -> None:
    values = V.clone().requires_grad_()
    weights = randn(NNZ, seed=2)
    (sddmm.softmax(CSR.to_torch(values)).values() * weights).sum().backward()
    expected = V.clone().requires_grad_()
    (dense_softmax(expected)[CSR.row_ids, CSR.col_indices] * weights).sum().backward()
    torch.testing.assert_close(values.grad, expected.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_gradients_are_rounded_once(dtype: torch.dtype) -> None:
    values, grad = randn(NNZ, dtype=dtype).requires_grad_(), randn(NNZ, dtype=dtype, seed=1)
    p = sddmm.softmax(COO, values)
    (got,) = torch.autograd.grad(p, values, grad)
    wide, g = p.detach().double(), grad.double()
    sums = torch.zeros(M, dtype=torch.float64).index_add_(0, COO.row_ids, wide * g)
    exact = wide * (g - sums[COO.row_ids])
    assert got.dtype == dtype
    assert torch.equal(got, exact.float().to(dtype))


def test_autocast_leaves_values_as_they_are() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float16, torch.float32):
            values = V.to(dtype)
            p = sddmm.softmax(CSR, values)
            assert torch.equal(p, sddmm.softmax(CSR, values))
            assert p.dtype == dtype


def test_it_is_taken_into_a_graph_whole() -> None:
    def layer(values: torch.Tensor) -> torch.Tensor:
        return sddmm.softmax(COO, 2 * values) * values

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    mine, theirs = V.clone().requires_grad_(), V.clone().requires_grad_()
    result, expected = compiled(mine), layer(theirs)
    assert torch.equal(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_torch_knows_all_of_the_operators() -> None:
    matrix = {"m": M, "n": N}
    values, p = randn(2, NNZ).requires_grad_(), randn(2, NNZ, seed=1).requires_grad_()
    indices = (COO.row_ids, COO.col_indices)
    torch.library.opcheck(torch.ops.sddmm.softmax.default, (*indices, values), matrix)
    backward = torch.ops.sddmm.softmax_backward.default
    torch.library.opcheck(backward, (*indices, p, values), matrix)


@pytest.mark.parametrize(
    ("S", "values", "error", "message"),
    [
        (CSR, None, ValueError, "S is a pattern without values; give values="),
        (CSR, torch.randn(NNZ - 1), ValueError, r"\(30,\) or \(h, 30\); got shape 29"),
        (CSR, torch.randn(1, 2, NNZ), ValueError, "values must have one entry per nonzero"),
        (
            CSR,
            torch.arange(NNZ),
            TypeError,
            r"values must be one of float16.*got torch.int64; convert",
        ),
        (CSR, torch.randn(NNZ) + 0j, TypeError, "complex numbers have no softmax"),
        (CSR, torch.randn(NNZ, device="meta"), ValueError, "values are on meta and S on cpu"),
        (CSR, [1.0] * NNZ, TypeError, "values must be a torch tensor, a numpy or a cupy array"),
        (CSR, CSR.to_torch(V), TypeError, "values must be a dense tensor, got layout"),
        (torch.ones(3, 3), None, TypeError, "S must be a torch sparse"),
        (SparsePattern.from_coo([M], [0], (M, N)), V[:1], ValueError, r"row_indices\[0\] is 9"),
        (
            scipy.sparse.csr_array(torch.eye(3).numpy()),
            V[:3].half(),
            TypeError,
            "cannot hold torch.float16",
        ),
        (
            scipy.sparse.csr_array(torch.eye(3).numpy()),
            V[:3].clone().requires_grad_(),
            ValueError,
            "cannot carry",
        ),
    ],
)
def test_refusals_name_the_argument(
    S: Any, values: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sddmm.softmax(S, values)


def test_forward_mode_is_refused() -> None:
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        sddmm.softmax(CSR, forward_ad.make_dual(V, V))
