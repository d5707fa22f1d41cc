"""sparse_attention: right for every container, dtype and stride; its gradients; what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck, gradgradcheck

import sddmm
from sddmm import SparsePattern, attention
from sddmm.testing import (
    assert_attention_close,
    assert_attention_gradients_close,
    attention_reference,
    random_pattern,
)
from tests.sddmm.dense import randn

M, N, NNZ, D, DV = 9, 7, 30, 5, 4
CSR = random_pattern(M, N, NNZ)
COO = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
PATTERNS = {
    "csr": CSR,
    "coo": COO,
    "bsr": SparsePattern.from_bsr([0, 2, 2, 3], [1, 0, 1], (3, 2), (9, 4)),
    "duplicates": SparsePattern.from_coo([8, 0, 8, 2, 8], [1, 4, 1, 0, 1], (M, N)),
    "int32": random_pattern(M, N, NNZ, index_dtype=torch.int32),
}  # fmt: skip
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def operands(
    pattern: SparsePattern = CSR, *lead: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, n = pattern.shape
    q, k, v = (
        randn(*lead, *size, dtype=dtype, seed=i).requires_grad_()
        for i, size in enumerate(((m, D), (n, D), (n, DV)))
    )
    return q, k, v


def seed_of(generator_seed: int) -> torch.Tensor:
    """The seed that a call draws from a generator with this seed."""
    generator = torch.Generator().manual_seed(generator_seed)
    return torch.randint(2**63 - 1, (1,), generator=generator)


@pytest.fixture(params=["fused", "parts"])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """The CPU's kernel, and what serves where no backend has one."""
    if request.param == "fused":
        yield
    else:
        with mock.patch.object(attention, "select_attention_backend", return_value=None):
            yield


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize(("heads", "bias_heads"), [(None, None), (3, None), (3, 3)])
def test_results_and_gradients_are_within_their_bounds(
    dtype: torch.dtype, kind: str, heads: int | None, bias_heads: int | None
) -> None:
    pattern = PATTERNS[kind]
    inputs = operands(pattern, *(() if heads is None else (heads,)), dtype=dtype)
    lead = () if bias_heads is None else (bias_heads,)
    bias = randn(*lead, pattern.nnz, dtype=dtype, seed=5).requires_grad_()
    options = {"bias": bias, "scale": 1.5, "dropout_p": 0.3}
    out, lse = sddmm.sparse_attention(
        pattern, *inputs, **options, generator=torch.Generator().manual_seed(4), return_lse=True
    )
    checked = {**options, "seed": seed_of(4)}
    assert_attention_close(out, pattern, *inputs, lse=lse, **checked)
    grad_out, grad_lse = randn(*out.shape, dtype=dtype, seed=6), torch.randn_like(lse)
    found = torch.autograd.grad((out, lse), (*inputs, bias), (grad_out, grad_lse))
    assert_attention_gradients_close(
        found, pattern, *inputs, grad_out, grad_lse=grad_lse, **checked
    )


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """torch's attention with CSR as its mask, rows without nonzeros 0."""
    scores = torch.full((M, N), -torch.inf)
    scores[CSR.row_ids, CSR.col_indices] = 0.0 if bias is None else bias
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=scores)
    return out.nan_to_num(0.0)


@pytest.mark.usefixtures("implementation")
def test_it_is_torchs_attention_with_a_mask() -> None:
    inputs, bias = operands(CSR, 2), randn(NNZ)
    torch.testing.assert_close(
        sddmm.sparse_attention(CSR, *inputs, bias=bias), dense_attention(*inputs, bias)
    )
    out, _ = attention_reference(CSR, *inputs, bias=bias)
    torch.testing.assert_close(out.float(), dense_attention(*inputs, bias))


CONTAINERS: dict[str, Callable[[], Any]] = {
    "torch CSR": lambda: CSR.to_torch(randn(NNZ)),
    "torch COO": lambda: CSR.to_coo().to_torch(randn(NNZ)),
    "scipy csr": lambda: scipy.sparse.csr_matrix(CSR.to_torch(randn(NNZ)).to_dense().numpy()),
    "scipy csc": lambda: scipy.sparse.csc_array(CSR.to_torch(randn(NNZ)).to_dense().numpy()),
    "scipy coo": lambda: scipy.sparse.coo_array(CSR.to_torch(randn(NNZ)).to_dense().numpy()),
    "tuple": lambda: (COO.row_ids, COO.col_indices, (M, N)),
    "tuple of arrays": lambda: (COO.row_ids.numpy(), COO.col_indices.numpy(), (M, N)),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_every_kind_of_s_serves_and_orders_its_bias(kind: str) -> None:
    S, inputs, bias = CONTAINERS[kind](), operands(), randn(NNZ, seed=8).requires_grad_()
    out = sddmm.sparse_attention(S, *inputs, bias=bias)
    assert_attention_close(out, S, *inputs, bias=bias)
    grad = randn(M, DV, seed=9)
    found = torch.autograd.grad(out, (*inputs, bias), grad)
    assert_attention_gradients_close(found, S, *inputs, grad, bias=bias)


def test_numpy_operands_give_numpy() -> None:
    inputs = [x.detach().numpy() for x in operands()]
    out, lse = sddmm.sparse_attention(CSR, *inputs, return_lse=True)
    assert isinstance(out, np.ndarray)
    assert isinstance(lse, np.ndarray)
    assert_attention_close(out, CSR, *inputs, lse=lse)


@pytest.mark.usefixtures("implementation")
def test_operands_of_any_strides_are_read_as_they_are() -> None:
    q = randn(M, 2, D).transpose(0, 1).requires_grad_()
    k = randn(2, D, N).mT.requires_grad_()
    v = torch._neg_view(randn(2, N, 2 * DV)[..., ::2]).requires_grad_()
    bias = randn(1).expand(2, NNZ)
    out = sddmm.sparse_attention(COO, q, k, v, bias=bias)
    assert_attention_close(out, COO, q, k, v, bias=bias)
    assert out.is_contiguous()
    grad = randn(1).expand(2, M, DV)
    found = torch.autograd.grad(out, (q, k, v), grad)
    assert_attention_gradients_close(found, COO, q, k, v, grad, bias=bias)
    same_rows, shared = randn(D).expand(2, M, D), randn(1, N, D).expand(2, N, D)
    out = sddmm.sparse_attention(COO, same_rows, shared, shared)
    assert_attention_close(out, COO, same_rows, shared, shared)


class Spy:
    """A prepared attention that keeps the operands it is given."""

    def __init__(self) -> None:
        self.operands: Any = None

    def forward(self, operands: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.operands = operands
        out.zero_()
        lse.zero_()


def test_a_backend_receives_rows_without_gaps_and_copies_of_no_others() -> None:
    spy, backend = Spy(), mock.Mock()
    backend.prepare_attention.return_value = spy
    pattern = random_pattern(M, N, NNZ)
    q, k = torch.randn(M, 2, D).transpose(0, 1), torch.randn(2, D, N).mT
    v, bias = torch._neg_view(torch.randn(2, N, DV)), torch.randn(2, 2 * NNZ)[:, ::2]
    with mock.patch.object(attention, "select_attention_backend", return_value=backend):
        sddmm.sparse_attention(pattern, q, k, v, bias=bias)
        got = spy.operands
        for mine, theirs in zip(got[:4], (q, k, v, bias), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.stride(-1) == 1
            assert not mine.is_neg()
        assert got.q.data_ptr() == q.data_ptr()
        sddmm.sparse_attention(pattern, q[0], k[0], v[0], bias=bias[0])
        assert spy.operands.q.shape == (1, M, D)
        assert spy.operands.bias.shape == (NNZ,)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("sizes", ["m", "n", "d", "dv", "heads", "nnz"])
def test_sizes_of_zero(sizes: str) -> None:
    m, n = (0 if sizes == "m" else M), (0 if sizes == "n" else N)
    empty = sizes in ("m", "n", "nnz")
    pattern = random_pattern(m, n, 0 if empty else NNZ)
    d, dv, heads = (
        0 if sizes == "d" else D,
        0 if sizes == "dv" else DV,
        0 if sizes == "heads" else 2,
    )
    q, k, v = (randn(heads, *size).requires_grad_() for size in ((m, d), (n, d), (n, dv)))
    bias = randn(heads, pattern.nnz).requires_grad_()
    out, lse = sddmm.sparse_attention(pattern, q, k, v, bias=bias, return_lse=True)
    assert out.shape == (heads, m, dv)
    assert_attention_close(out, pattern, q, k, v, lse=lse, bias=bias)
    if empty:
        assert (out == 0).all()
        assert (lse == -torch.inf).all()
    found = torch.autograd.grad(out.sum() + lse.sum(), (q, k, v, bias))
    ones, grad_lse = torch.ones_like(out), torch.ones_like(lse)
    assert_attention_gradients_close(found, pattern, q, k, v, ones, bias=bias, grad_lse=grad_lse)


@pytest.mark.usefixtures("implementation")
def test_rows_of_nothing_are_zero_and_so_are_their_gradients() -> None:
    """Rows 0 and 3 have no nonzeros, row 2 no score but -inf."""
    pattern = SparsePattern.from_coo([1, 1, 2, 2], [0, 1, 1, 2], (4, 3))
    q, k, v = (randn(r, 2, seed=i).requires_grad_() for i, r in enumerate((4, 3, 3)))
    bias = torch.tensor([0.5, -torch.inf, -torch.inf, -torch.inf], requires_grad=True)
    out, lse = sddmm.sparse_attention(pattern, q, k, v, bias=bias, return_lse=True)
    assert (out[[0, 2, 3]] == 0).all()
    assert (lse[[0, 2, 3]] == -torch.inf).all()
    torch.testing.assert_close(out[1], v[0])
    inputs = (q, k, v, bias)
    grads = torch.autograd.grad(out.sum() + lse[1], inputs, retain_graph=True)
    assert all(x.isfinite().all() for x in grads)
    assert (grads[0][[0, 2, 3]] == 0).all()
    assert (grads[2][1:] == 0).all()
    torch.testing.assert_close(grads[3], torch.tensor([1.0, 0.0, 0.0, 0.0]))
    again = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in again), inputs)
    assert all(x.isfinite().all() for x in second)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("where", ["q", "k", "v", "bias"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_nan_and_infinity_reach_the_rows_they_must_and_no_other(where: str, number: float) -> None:
    inputs = dict(zip("qkv", (x.detach() for x in operands()), strict=True), bias=randn(NNZ))
    spoiled = inputs[where][3:4]
    spoiled[..., 0] = number
    out, lse = sddmm.sparse_attention(CSR, return_lse=True, **inputs)
    S = CSR.to_torch(torch.ones(NNZ)).to_dense() > 0
    reached = {
        "q": torch.arange(M) == 3, "k": S[:, 3], "v": S[:, 3],
        "bias": torch.arange(M) == CSR.row_ids[3],
    }[where]  # fmt: skip
    truth, _ = attention_reference(CSR, **inputs)
    assert torch.equal(out.isfinite(), truth.isfinite())
    assert out[~reached].isfinite().all()
    assert not (out[reached].isfinite().all(1) & S[reached].any(1)).any() or number == torch.inf
    if where == "v":
        assert lse[S.any(1)].isfinite().all()
        assert out[:, 1:].isfinite().all()


@pytest.mark.usefixtures("implementation")
def test_scores_of_any_size_do_not_overflow() -> None:
    pattern = SparsePattern.from_coo([0, 0, 1, 1], [0, 1, 0, 1], (2, 2))
    q, k, v = torch.tensor([[3e38], [-3e38]]), torch.tensor([[1.0], [-1.0]]), torch.eye(2)
    out = sddmm.sparse_attention(pattern, q, k, v, scale=1.0)
    assert out.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(("kind", "heads"), [("coo", None), ("bsr", 2), ("duplicates", 2)])
def test_gradients_of_the_first_and_the_second_order(kind: str, heads: int | None) -> None:
    pattern, lead = PATTERNS[kind], () if heads is None else (heads,)
    inputs = (*operands(pattern, *lead, dtype=torch.float64),)
    bias = randn(pattern.nnz, dtype=torch.float64, seed=7).requires_grad_()

    rows = pattern.row_ids.unique()  # the logarithms of the others are infinite

    def attend(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = sddmm.sparse_attention(
            pattern, *inputs[:3], bias=inputs[3], dropout_p=0.2, return_lse=True,
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        return out, lse[..., rows]

    assert gradcheck(attend, (*inputs, bias), fast_mode=True, check_batched_grad=heads is None)
    assert gradgradcheck(attend, (*inputs, bias), fast_mode=True)


def test_the_logarithms_alone_are_differentiable() -> None:
    inputs = operands()
    _, lse = sddmm.sparse_attention(CSR, *inputs, return_lse=True)
    rows = CSR.row_ids.unique()
    found = torch.autograd.grad(lse[rows].sum(), inputs)
    grad_lse = torch.zeros(M).index_fill_(0, rows, 1.0)
    zeros = torch.zeros(M, DV)
    assert_attention_gradients_close(found, CSR, *inputs, zeros, grad_lse=grad_lse)
    assert (found[2] == 0).all()


@pytest.mark.usefixtures("implementation")
def test_dropout_drops_what_its_seed_says_in_every_order_of_the_nonzeros() -> None:
    """Sorted or shuffled: a weight is known by its place in S's order."""
    inputs = operands(CSR, 3)
    generator = torch.Generator().manual_seed(2)
    out = sddmm.sparse_attention(CSR, *inputs, dropout_p=0.6, generator=generator)
    assert_attention_close(out, CSR, *inputs, dropout_p=0.6, seed=seed_of(2))
    again = sddmm.sparse_attention(CSR, *inputs, dropout_p=0.6, generator=generator)
    assert not torch.equal(out, again)  # the generator has gone on
    torch.manual_seed(2)
    by_default = sddmm.sparse_attention(CSR, *inputs, dropout_p=0.6)
    assert torch.equal(out, by_default)
    state = generator.get_state()
    sddmm.sparse_attention(CSR, *inputs, generator=generator)
    assert torch.equal(state, generator.get_state())  # nothing is drawn without dropout
    out = sddmm.sparse_attention(
        COO, *inputs, dropout_p=0.6, generator=torch.Generator().manual_seed(2)
    )
    assert_attention_close(out, COO, *inputs, dropout_p=0.6, seed=seed_of(2))
    assert (sddmm.sparse_attention(CSR, *inputs, dropout_p=1.0) == 0).all()


def test_autocast_casts_the_operands() -> None:
    inputs = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for bias in (None, randn(NNZ)):
            out = sddmm.sparse_attention(CSR, *inputs, bias=bias)
            halves = [x.detach().bfloat16() for x in inputs]
            other = None if bias is None else bias.bfloat16()
            assert_attention_close(out, CSR, *halves, bias=other)
            assert [x.dtype for x in torch.autograd.grad(out.float().sum(), inputs)] == [
                torch.float32
            ] * 3


def test_it_is_taken_into_a_graph_whole() -> None:
    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = sddmm.sparse_attention(COO, 2 * q, k, v)
        return out + sddmm.sparse_attention(COO, q, k, v, dropout_p=1.0)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    mine, theirs = operands(), operands()
    result, expected = compiled(*mine), layer(*theirs)
    assert torch.equal(result, expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_torch_knows_all_of_the_operators() -> None:
    indices, bias, seed = (COO.row_ids, COO.col_indices), randn(NNZ), torch.tensor([3])
    inputs = (*indices, *operands(COO, 2), bias.requires_grad_(), seed)
    torch.library.opcheck(torch.ops.sddmm.attention.default, inputs, {"dropout_p": 0.3})
    saved = tuple(x.detach() for x in inputs)
    out, lse = torch.ops.sddmm.attention(*saved, dropout_p=0.3)
    torch.library.opcheck(
        torch.ops.sddmm.attention_backward.default,
        (*saved, out, lse, torch.randn_like(out), None),
        {"dropout_p": 0.3, "needs": [True, False, True, True]},
    )
