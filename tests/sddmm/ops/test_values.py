"""sddmm gives the right values: for every kind of S, dtype, shape and order of nonzeros."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_close, random_pattern

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BACKENDS = ["cpu", "torch_csr", "reference"]


def operands(
    m: int, k: int, n: int, dtype: torch.dtype = torch.float32, heads: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m * 7919 + k * 31 + n)
    lead = () if heads is None else (heads,)
    a = torch.randn(*lead, m, k, generator=generator).to(dtype)
    return a, torch.randn(*lead, n, k, generator=generator).to(dtype).mT


def by_definition(S: SparsePattern, a: torch.Tensor, b: torch.Tensor) -> list[float]:
    """Entry by entry, in Python floats: independent of every backend."""
    rows, cols = S.row_ids.tolist(), S.col_indices.tolist()
    left, right = a.double().tolist(), b.mT.double().tolist()
    return [
        sum(x * y for x, y in zip(left[i], right[j], strict=True))
        for i, j in zip(rows, cols, strict=True)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_computes_the_definition(backend: str) -> None:
    S = random_pattern(13, 9, 50, layout="coo", shuffled=True)
    a, b = operands(13, 11, 9)
    values = sddmm.plan(S, k=11, dtype=a.dtype, backend=backend).run(a, b)
    np.testing.assert_allclose(values.numpy(), by_definition(S, a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_dtypes_and_index_dtypes(dtype: torch.dtype, index_dtype: torch.dtype, layout: str) -> None:
    S = random_pattern(37, 41, 300, layout=layout, index_dtype=index_dtype)
    a, b = operands(37, 19, 41, dtype)
    values = sddmm.sddmm(S, a, b)
    assert values.dtype == dtype
    assert_close(values, S, a, b)
    wide = sddmm.sddmm(S, a, b, out_dtype=torch.float64)
    assert wide.dtype == torch.float64
    assert_close(wide, S, a, b)


@pytest.mark.parametrize("k", [1, 2, 7, 16, 17, 100, 257])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 300), (300, 1), (15, 17), (64, 33)])
def test_shapes_and_inner_dimensions(m: int, n: int, k: int) -> None:
    S = random_pattern(m, n, max(1, m * n // 3))
    a, b = operands(m, k, n)
    for backend in BACKENDS:
        values = sddmm.plan(S, k=k, dtype=a.dtype, backend=backend).run(a, b)
        assert_close(values, S, a, b)


@pytest.mark.parametrize(
    ("m", "k", "n", "nnz"),
    [(0, 4, 5, 0), (5, 4, 0, 0), (0, 0, 0, 0), (5, 0, 6, 7), (5, 4, 6, 0), (0, 4, 0, 0)],
)
@pytest.mark.parametrize("heads", [None, 3, 0])
def test_empty_problems_give_empty_or_zero_values(
    m: int, k: int, n: int, nnz: int, heads: int | None
) -> None:
    a, b = operands(m, k, n, heads=heads)
    for layout in ("csr", "coo"):
        values = sddmm.sddmm(random_pattern(m, n, nnz, layout=layout), a, b)
        assert values.shape == ((nnz,) if heads is None else (heads, nnz))
        assert (values == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_heads_share_one_pattern(dtype: torch.dtype) -> None:
    S = random_pattern(20, 30, 100)
    a, b = operands(20, 8, 30, dtype, heads=5)
    values = sddmm.sddmm(S, a, b)
    assert values.shape == (5, 100)
    assert_close(values, S, a, b)
    for head in range(5):
        assert torch.equal(values[head], sddmm.sddmm(S, a[head], b[head]))


def test_unsorted_coo_with_duplicates_keeps_order_and_samples_each() -> None:
    rows = torch.tensor([3, 0, 3, 1, 0, 3, 3])
    cols = torch.tensor([2, 1, 2, 0, 0, 2, 1])
    a, b = operands(4, 6, 3)
    S = SparsePattern.from_coo(rows, cols, (4, 3))
    for backend in BACKENDS:
        values = sddmm.plan(S, k=6, dtype=a.dtype, backend=backend).run(a, b)
        torch.testing.assert_close(values, (a @ b)[rows, cols])


@pytest.mark.parametrize(
    "strided",
    [
        lambda x: x,
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
        lambda x: x[:1].expand_as(x),
    ],
    ids=["contiguous", "transposed", "every second", "padded rows", "broadcast"],
)
def test_any_strides(strided: Any) -> None:
    S = random_pattern(21, 18, 120)
    a, b = operands(21, 12, 18)
    a, b = strided(a), strided(b)
    assert_close(sddmm.sddmm(S, a, b), S, a, b)
    heads_a, heads_b = a.expand(3, 21, 12), b.expand(3, 12, 18)
    assert_close(sddmm.sddmm(S, heads_a, heads_b), S, heads_a, heads_b)


def test_the_transpose_of_a_contiguous_tensor_is_read_as_b_without_a_copy() -> None:
    S, a, b_rows = random_pattern(21, 4000, 120), torch.randn(21, 32), torch.randn(4000, 32)
    plan = sddmm.plan(S, k=32, dtype=torch.float32)
    for b, is_copied in ((b_rows.mT, False), (b_rows.mT.contiguous(), True)):
        plan.run(a, b)
        tracemalloc.start()  # numpy tells it of every array, and torch of its copies the profiler
        with torch.autograd.profiler.profile() as profile:
            plan.run(a, b)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        clones = any(event.name == "aten::clone" for event in profile.function_events)
        assert (peak >= b.nbytes or clones) == is_copied


class TestContainers:
    """What goes in comes out: kind, order, duplicates, values of the product."""

    def setup_method(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.rows = torch.tensor([4, 0, 2, 2, 4, 1])
        self.cols = torch.tensor([1, 3, 0, 2, 1, 3])
        self.v = torch.randn(6, dtype=torch.float64, generator=generator)
        self.a, self.b = operands(5, 7, 4, torch.float64)
        self.dots = (self.a @ self.b)[self.rows, self.cols]

    def test_torch_coo_uncoalesced(self) -> None:
        S = torch.sparse_coo_tensor(torch.stack([self.rows, self.cols]), self.v, (5, 4))
        P = sddmm.sddmm(S, self.a, self.b, alpha=2.0)
        assert P.layout == torch.sparse_coo
        assert not P.is_coalesced()
        assert torch.equal(P._indices(), S._indices())
        torch.testing.assert_close(P._values(), 2 * self.dots * self.v)

    def test_torch_coo_coalesced_stays_coalesced(self) -> None:
        S = torch.sparse_coo_tensor(torch.stack([self.rows, self.cols]), self.v, (5, 4)).coalesce()
        P = sddmm.sddmm(S, self.a, self.b)
        assert P.is_coalesced()
        torch.testing.assert_close(P.to_dense(), (self.a @ self.b) * S.to_dense())

    def test_torch_csr(self) -> None:
        S = torch.sparse_coo_tensor(
            torch.stack([self.rows, self.cols]), self.v, (5, 4)
        ).to_sparse_csr()
        P = sddmm.sddmm(S, self.a, self.b, scale=False)
        assert P.layout == torch.sparse_csr
        assert torch.equal(P.crow_indices(), S.crow_indices())
        assert torch.equal(P.col_indices(), S.col_indices())
        torch.testing.assert_close(P.to_dense(), (self.a @ self.b) * (S.to_dense() != 0))

    @pytest.mark.parametrize("kind", ["array", "matrix"])
    @pytest.mark.parametrize("form", ["coo", "csr", "csc"])
    def test_scipy(self, kind: str, form: str) -> None:
        make = getattr(scipy.sparse, f"coo_{kind}")
        entries = (self.v.numpy(), (self.rows.numpy(), self.cols.numpy()))
        S = make(entries, shape=(5, 4)).asformat(form)
        before = S.copy()
        a, b = self.a.numpy(), self.b.numpy()
        P = sddmm.sddmm(S, a, b)
        assert type(P) is type(S)
        np.testing.assert_allclose(P.toarray(), (a @ b) * S.toarray())
        values = sddmm.plan(S, k=7, dtype=torch.float64).run(a, b)
        assert isinstance(values, np.ndarray)
        np.testing.assert_array_equal(values, P.data)
        P.data[:] = 0
        (P.row if form == "coo" else P.indices)[:] = 0
        assert (before != S).nnz == 0

    def test_scipy_coo_keeps_order_and_duplicates(self) -> None:
        entries = (self.v.numpy(), (self.rows.numpy(), self.cols.numpy()))
        P = sddmm.sddmm(
            scipy.sparse.coo_array(entries, shape=(5, 4)), self.a.numpy(), self.b.numpy()
        )
        np.testing.assert_array_equal(P.row, self.rows)
        np.testing.assert_allclose(P.data, (self.dots * self.v).numpy())

    def test_pattern_and_tuple_give_values(self) -> None:
        pattern = SparsePattern.from_coo(self.rows, self.cols, (5, 4))
        for S in (pattern, (self.rows, self.cols, (5, 4))):
            torch.testing.assert_close(sddmm.sddmm(S, self.a, self.b), self.dots)

    def test_tuple_of_numpy_gives_numpy(self) -> None:
        S = (self.rows.numpy(), self.cols.numpy(), (5, 4))
        values = sddmm.sddmm(S, self.a.numpy(), self.b.numpy())
        assert isinstance(values, np.ndarray)
        np.testing.assert_allclose(values, self.dots.numpy())

    def test_numpy_operands_of_any_strides(self) -> None:
        S = (self.rows.numpy(), self.cols.numpy(), (5, 4))
        a, b = self.a.numpy()[::-1], np.asfortranarray(self.b.numpy())[:, ::-1]
        b.flags.writeable = False
        expected = (a @ b)[S[0], S[1]]
        np.testing.assert_allclose(sddmm.sddmm(S, a, b), expected)

    def test_heads_give_the_bare_values_for_every_kind(self) -> None:
        S = torch.sparse_coo_tensor(torch.stack([self.rows, self.cols]), self.v, (5, 4))
        a, b = self.a.expand(2, 5, 7), self.b.expand(2, 7, 4)
        torch.testing.assert_close(sddmm.sddmm(S, a, b), (self.dots * self.v).expand(2, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sampled_addmm_is_a_drop_in_for_torchs(dtype: torch.dtype) -> None:
    pattern = random_pattern(30, 20, 150)
    v = torch.randn(150, dtype=dtype)
    S = torch.sparse_csr_tensor(pattern.major_indices, pattern.col_indices, v, (30, 20))
    a, b = operands(30, 9, 20, dtype)
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (3.0, 0.0)):
        ours = sddmm.sampled_addmm(S, a, b, alpha=alpha, beta=beta)
        theirs = torch.sparse.sampled_addmm(S, a, b, alpha=alpha, beta=beta)
        torch.testing.assert_close(ours.values(), theirs.values())


def test_sampled_addmm_with_beta_zero_does_not_read_the_values() -> None:
    indices = torch.tensor([[0, 1], [1, 0]])
    S = torch.sparse_coo_tensor(indices, torch.full((2,), torch.nan), (2, 2))
    a, b = operands(2, 3, 2)
    assert not sddmm.sampled_addmm(S, a, b, beta=0.0)._values().isnan().any()


def test_nan_and_infinity_reach_their_row_and_column_only() -> None:
    a, b = operands(12, 40, 12)
    a[3, 5], b[7, 4] = torch.nan, torch.inf
    S = SparsePattern.from_coo(*torch.ones(12, 12).nonzero().T, (12, 12))
    for backend in BACKENDS:
        values = sddmm.plan(S, k=40, dtype=a.dtype, backend=backend).run(a, b).view(12, 12)
        expected = torch.zeros(12, 12, dtype=torch.bool)
        expected[3], expected[:, 4] = True, True
        assert torch.equal(~values.isfinite(), expected)
        assert values[3].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_call_gives_the_same_bits_on_any_number_of_threads(backend: str) -> None:
    S = random_pattern(400, 300, 30_000, layout="coo", shuffled=True)
    a, b = operands(400, 100, 300)
    plan = sddmm.plan(S, k=100, dtype=a.dtype, backend=backend)
    first = plan.run(a, b)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(plan.run(a, b), first)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("backend", ["cpu", "torch_csr", "reference"])
def test_values_of_a_narrower_type_are_rounded_once(backend: str) -> None:
    pattern = random_pattern(60, 50, 1000, layout="coo", shuffled=True)
    weights = torch.randn(1000, dtype=torch.float64)
    indices = torch.stack([pattern.row_ids, pattern.col_indices])
    S = torch.sparse_coo_tensor(indices, weights, pattern.shape)
    a, b = torch.randn(60, 30).double(), torch.randn(30, 50).double()
    plan = sddmm.plan(S, k=30, dtype=a.dtype, out_dtype=torch.float32, alpha=-2.75, backend=backend)
    assert_close(plan.run(a, b), S, a, b, alpha=-2.75)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("repeats", [1, 3])
def test_torch_csr_samples_every_duplicate_of_a_dense_pattern(device: str, repeats: int) -> None:
    rows, cols = (torch.randint(size, (20_000,), device=device) for size in (256, 127))
    rows, cols = rows.repeat(repeats), cols.repeat(repeats)
    pattern = SparsePattern.from_coo(rows, cols, (256, 127)).to_csr()
    a, b = torch.randn(256, 257, device=device), torch.randn(257, 127, device=device)
    plan = sddmm.plan(pattern, k=257, dtype=a.dtype, backend="torch_csr")
    assert_close(plan.run(a, b), pattern, a, b)
