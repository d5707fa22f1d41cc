"""Every GPU kernel against float64: dtypes, patterns, sizes; streams, graphs, repeats."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.runtime.device import device
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.row_gather.costs import gather_slice
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, random_pattern, reference
from tests.sddmm.backends.cuda.representatives import every_case_of_k, is_served

pytestmark = pytest.mark.gpu

EVERY_SPEC = [pytest.param(spec, id=name) for name, spec in SPECS.items()]
CASES = [
    pytest.param(spec, dtype, id=f"{name}-{str(dtype)[6:]}")
    for name, spec in SPECS.items()
    for dtype in spec.dtypes
]
every_case = pytest.mark.parametrize(("spec", "dtype"), CASES)
every_kernel = pytest.mark.parametrize("spec", EVERY_SPEC)


def operands(
    pattern: SparsePattern, k: int, dtype: torch.dtype, heads: int | None = None
) -> tuple[Tensor, Tensor]:
    lead = () if heads is None else (heads,)
    a = torch.randn(*lead, pattern.shape[0], k, device="cuda").to(dtype)
    b_t = torch.randn(*lead, pattern.shape[1], k, device="cuda").to(dtype)
    return a, b_t.mT


def plan_of(
    spec: KernelSpec,
    pattern: SparsePattern,
    k: int,
    dtype: torch.dtype,
    heads: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> sddmm.Plan:
    """Values of float32 or wider, unless asked otherwise."""
    out_dtype = out_dtype or torch.promote_types(dtype, torch.float32)
    return sddmm.plan(
        pattern, k=k, dtype=dtype, heads=heads, out_dtype=out_dtype, precision=spec.precision,
        kernel=spec.name,
    )  # fmt: skip


def check(
    spec: KernelSpec,
    pattern: SparsePattern,
    k: int,
    dtype: torch.dtype,
    heads: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> None:
    plan = plan_of(spec, pattern, k, dtype, heads, out_dtype)
    a, b = operands(pattern, k, dtype, heads)
    out = torch.full(plan.problem.values_shape(), torch.nan, dtype=plan.problem.out_dtype).cuda()
    assert_close(plan.run(a, b, out), pattern, a, b, precision=spec.precision)


def coo(rows: Tensor, cols: Tensor, shape: tuple[int, int]) -> SparsePattern:
    return SparsePattern.from_coo(rows.cuda(), cols.cuda(), shape)


def patterns() -> dict[str, SparsePattern]:
    """One of every family."""
    grid = torch.cartesian_prod(torch.arange(140), torch.arange(70)).T
    diagonal = torch.arange(300)
    row = torch.full((5000,), 3)
    popular = (torch.rand(2, 20_000) ** 3 * 2000).long()
    return {
        "one nonzero": coo(torch.tensor([130]), torch.tensor([257]), (131, 300)),
        "one full row": coo(row, torch.arange(5000), (7, 5000)),
        "one full column": coo(torch.arange(5000), row, (5000, 7)),
        "dense": coo(grid[0], grid[1], (140, 70)),
        "diagonal": coo(diagonal, diagonal, (300, 300)),
        "duplicates": coo(
            torch.tensor([5] * 70 + [2] * 9), torch.tensor([1, 4] * 39 + [3]), (9, 8)
        ),
        "unsorted": random_pattern(500, 400, 9000, layout="coo", shuffled=True, device="cuda"),
        "all in one tile": coo(diagonal[:40] + 256, diagonal[:40].flip(0) + 512, (2000, 2000)),
        "power law": coo(popular[0], popular[1], (2000, 2000)),
        "tall": random_pattern(30_000, 20, 40_000, device="cuda"),
        "wide": random_pattern(20, 30_000, 40_000, device="cuda"),
        # An address made of such a column is far outside shared memory.
        "runs far to the right": coo(
            torch.arange(0, 128, 3).repeat_interleave(20),
            200_000 - torch.arange(20, 0, -1).repeat(43),
            (128, 200_000),
        ),
    }


@every_case
def test_every_family_of_patterns(spec: KernelSpec, dtype: torch.dtype) -> None:
    for name, pattern in patterns().items():
        try:
            check(spec, pattern, 64, dtype)
            check(spec, pattern, 64, dtype, out_dtype=dtype)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@every_case_of_k(1, 7, 100, 256, 257)
def test_inner_dimensions(spec: KernelSpec, dtype: torch.dtype, k: int) -> None:
    check(spec, random_pattern(200, 300, 5000, device="cuda"), k, dtype)


@every_case_of_k(512, 1000, 2053)
def test_long_rows(spec: KernelSpec, dtype: torch.dtype, k: int) -> None:
    check(spec, random_pattern(200, 300, 5000, device="cuda"), k, dtype)


@every_kernel
def test_sizes_around_the_tile(spec: KernelSpec) -> None:
    tile = [size or 64 for size in spec.tile]
    around = ((size - 1, size, size + 1) for size in tile)
    for m, n, k in itertools.product(*around):
        if is_served(spec, spec.dtypes[0], k):
            check(spec, random_pattern(m, n, min(m * n, 900), device="cuda"), k, spec.dtypes[0])


@every_case
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_heads_and_index_types(
    spec: KernelSpec, dtype: torch.dtype, index_dtype: torch.dtype
) -> None:
    pattern = random_pattern(
        150, 90, 3000, layout="coo", shuffled=True, device="cuda", index_dtype=index_dtype
    )
    check(spec, pattern, 48, dtype, heads=3)


@every_kernel
def test_more_tiles_than_multiprocessors(spec: KernelSpec) -> None:
    pattern = random_pattern(6000, 5000, 200_000, device="cuda")
    for out_dtype in (spec.dtypes[0], None):
        check(spec, pattern, 200, spec.dtypes[0], out_dtype=out_dtype)


@pytest.mark.parametrize("dtype", SPECS["row_gather"].dtypes)
def test_rows_gathered_by_slices(dtype: torch.dtype) -> None:
    """Operands of more than L2; two runs of one plan at a time keep their partial sums apart."""
    k, spec = 8200 // dtype.itemsize * 2, SPECS["row_gather"]
    pattern = random_pattern(8000, 8000, 70_000, device="cuda")
    plan = plan_of(spec, pattern, k, dtype)
    assert gather_slice(plan.problem, pattern.nnz, device(0)) < k
    pairs = [operands(pattern, k, dtype) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    results = []
    for (a, b), stream in zip(pairs, streams, strict=True):
        with torch.cuda.stream(stream):
            results.append(plan.run(a, b))
    torch.cuda.synchronize()
    for (a, b), values in zip(pairs, results, strict=True):
        assert_close(values, pattern, a, b)


def test_a_result_without_room_is_told_in_bytes() -> None:
    """As many heads as make the result larger than the device's memory."""
    size = 1000
    full = torch.cartesian_prod(torch.arange(size), torch.arange(size)).T
    pattern = coo(full[0], full[1], (size, size))
    result_bytes = 4 * pattern.nnz
    heads = torch.cuda.get_device_properties("cuda").total_memory // result_bytes + 1
    plan = plan_of(SPECS["row_gather"], pattern, 1, torch.float16, heads)
    a, b = operands(pattern, 1, torch.float16, heads)
    told = rf"shape \({heads}, 1000000\) needs {heads * result_bytes} bytes"
    with pytest.raises(torch.OutOfMemoryError, match=told):
        plan.run(a, b)


@every_kernel
def test_empty_pattern(spec: KernelSpec) -> None:
    plan = plan_of(spec, random_pattern(9, 8, 0, device="cuda"), 16, spec.dtypes[0])
    a, b = operands(plan.pattern, 16, spec.dtypes[0])
    assert plan.run(a, b).shape == (0,)


@every_kernel
def test_strided_operands(spec: KernelSpec) -> None:
    """Rows that start anywhere, and operands stored by columns."""
    pattern = random_pattern(100, 120, 3000, device="cuda")
    k = 33 if is_served(spec, spec.dtypes[0], 33) else 36
    plan = plan_of(spec, pattern, k, spec.dtypes[0])
    for make in (
        lambda rows: torch.randn(rows, k + 4, device="cuda")[:, 1 : k + 1],
        lambda rows: torch.randn(k, rows, device="cuda").T,
        lambda rows: torch.randn(1, k, device="cuda").expand(rows, k),
        lambda rows: torch.randn(2 * rows, 40, device="cuda")[::2, :k],
    ):
        a, b_t = (make(rows).to(spec.dtypes[0]) for rows in (100, 120))
        assert_close(plan.run(a, b_t.mT), pattern, a, b_t.mT, precision=spec.precision)


@every_case
def test_values_and_alpha_scale(spec: KernelSpec, dtype: torch.dtype) -> None:
    pattern = random_pattern(100, 120, 3000, layout="coo", shuffled=True, device="cuda")
    a, b = operands(pattern, 40, dtype)
    values = torch.randn(3000, device="cuda").to(dtype)
    indices = torch.stack([pattern.row_ids, pattern.col_indices])
    S = torch.sparse_coo_tensor(indices, values, (100, 120), is_coalesced=True)
    plan = sddmm.plan(S, k=40, dtype=dtype, precision=spec.precision, alpha=-0.7, kernel=spec.name)
    assert_close(plan.run(a, b), S, a, b, alpha=-0.7, precision=spec.precision)


def surrounded_by_nan(rows: int, k: int, dtype: torch.dtype, offset: int) -> Tensor:
    """Normal numbers in the middle of NaN, `offset` elements after multiples of 16 bytes.

    Rows of zeros, and rows with one infinity or NaN, among them.
    """
    pitch = -(-(k + offset) // 16) * 16 + 16
    field = torch.full((rows + 300, pitch), torch.nan, dtype=dtype, device="cuda")
    x = field[150 : 150 + rows, offset : offset + k]
    x.copy_(torch.randn(rows, k, device="cuda"))
    x[7::13] = 0
    for first, value in ((0, torch.inf), (4, torch.nan), (9, -torch.inf)):
        special = torch.arange(first, rows, 13, device="cuda")
        x[special, 37 * special % k] = value
    return x


@every_case_of_k(24, 72, 200, 300, 600)
@pytest.mark.parametrize("offset", [0, 1])
def test_nan_and_infinity_reach_the_values_of_their_row_and_column_only(
    spec: KernelSpec, dtype: torch.dtype, offset: int, k: int
) -> None:
    """Those inside the operands, and none of the NaN that lies around them."""
    lengths = torch.arange(301) * (torch.arange(301) % 3 > 0) // 4
    rows = torch.repeat_interleave(torch.arange(301), lengths)
    cols = torch.arange(len(rows)) * 11 % 267
    pattern = coo(rows, cols, (301, 267))
    a, b_t = (surrounded_by_nan(size, k, dtype, offset) for size in (301, 267))
    plan = plan_of(spec, pattern, k, dtype)
    out = torch.full((pattern.nnz,), 777.0, dtype=plan.problem.out_dtype, device="cuda")
    plan.run(a, b_t.mT, out)
    truth = reference(pattern, a, b_t.mT)
    assert 0 < int(truth.isnan().sum()) < int(truth.isfinite().sum())
    assert_close(out, pattern, a, b_t.mT, precision=spec.precision)


@pytest.mark.parametrize("name", [name for name in SPECS if "tf32" in name])
def test_the_largest_floats_stay_finite_in_tf32(name: str) -> None:
    """And an infinity beside large numbers is no NaN."""
    spec = SPECS[name]
    pattern = random_pattern(67, 131, 700, device="cuda")
    a = torch.full((67, 40), 3.4025e38, device="cuda")
    b = 0.1 + 0.8 * torch.rand(40, 131, device="cuda")
    plan = plan_of(spec, pattern, 40, torch.float32)
    assert_close(plan.run(a, 0.02 * b), pattern, a, 0.02 * b, precision=spec.precision)
    a.fill_(torch.inf)
    assert (plan.run(a, 1e6 * b) == torch.inf).all()


@every_case
def test_any_dtype_of_results(spec: KernelSpec, dtype: torch.dtype) -> None:
    pattern = random_pattern(200, 300, 5000, device="cuda")
    for out_dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        check(spec, pattern, 40, dtype, out_dtype=out_dtype)


@every_kernel
def test_repeats_are_bit_equal(spec: KernelSpec) -> None:
    pattern = random_pattern(700, 900, 60_000, device="cuda")
    plan = plan_of(spec, pattern, 96, spec.dtypes[0])
    a, b = operands(pattern, 96, spec.dtypes[0])
    first = plan.run(a, b)
    for _ in range(50):
        assert torch.equal(plan.run(a, b), first)


@every_kernel
def test_side_streams_and_graphs(spec: KernelSpec) -> None:
    """A captured run reads the operands as they are when it is replayed."""
    pattern = random_pattern(300, 400, 9000, device="cuda")
    plan = plan_of(spec, pattern, 64, spec.dtypes[0])
    a, b = operands(pattern, 64, spec.dtypes[0])
    out = torch.empty(pattern.nnz, device="cuda", dtype=plan.problem.out_dtype)
    plan.run(a, b, out)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        plan.run(a, b, out.fill_(torch.nan))
        stream.synchronize()
        assert_close(out, pattern, a, b, precision=spec.precision)
        with torch.cuda.graph(graph, stream=stream):
            plan.run(a, b, out)
    for _ in range(3):
        a.copy_(torch.randn_like(a, dtype=torch.float32))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert_close(out, pattern, a, b, precision=spec.precision)


def test_the_hybrid_covers_every_nonzero() -> None:
    block = torch.cartesian_prod(torch.arange(128), torch.arange(256)).T + 128
    scattered = torch.randint(0, 2000, (2, 9000))
    rows, cols = torch.cat([block, scattered], 1)
    pattern = coo(rows, cols, (2000, 2000))
    plan = sddmm.plan(pattern, k=64, dtype=torch.float16, out_dtype=torch.float32, kernel="hybrid")
    a, b = operands(pattern, 64, torch.float16)
    assert_close(plan.run(a, b), pattern, a, b)


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, "ieee"), (torch.float32, "tf32")])
def test_dense_patterns_by_tiles_that_one_pass_finds(
    layout: str, index_dtype: torch.dtype, dtype: torch.dtype, precision: str
) -> None:
    """Even ones, whose tiles are all computed; with empty tiles; and unsorted."""
    even = random_pattern(3001, 3003, 900_000, layout="csr", device="cuda", index_dtype=index_dtype)
    rows, cols = even.row_ids, even.col_indices
    right_half = (rows >= 1500).to(index_dtype)
    uneven = SparsePattern.from_coo(rows, cols + 3003 * right_half, (3001, 6006))
    unsorted = SparsePattern.from_coo(rows, 3002 - cols, even.shape)
    a, b = operands(uneven, 500, dtype)
    for pattern in (even, uneven, unsorted):
        stored = pattern.to_csr() if layout == "csr" else pattern.to_coo()
        out_dtype = torch.promote_types(dtype, torch.float32)
        plan = sddmm.plan(stored, k=500, dtype=dtype, out_dtype=out_dtype, precision=precision)
        assert "kernel   tile" in plan.explain()
        right = b[:, : stored.shape[1]]
        out = torch.full((stored.nnz,), torch.nan, dtype=out_dtype, device="cuda")
        assert_close(plan.run(a, right, out), stored, a, right, precision=precision)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
@every_kernel
def test_another_device_than_the_current(spec: KernelSpec) -> None:
    pattern = random_pattern(150, 290, 900, layout="coo", shuffled=True, device="cuda:1")
    a, b = (x.to("cuda:1") for x in operands(pattern, 100, spec.dtypes[0]))
    plan = plan_of(spec, pattern, 100, spec.dtypes[0])
    for _ in range(2):
        assert_close(plan.run(a, b), pattern, a, b, precision=spec.precision)
    assert torch.cuda.current_device() == 0


def test_offsets_beyond_31_bits() -> None:
    """Operands of more than 2^31 elements, nonzeros in their first and last rows."""
    m, k = 2**31 // 256 + 1000, 256
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    rows = torch.cat([torch.arange(500), torch.arange(m - 500, m)])
    pattern = coo(rows, torch.arange(1000) % 70, (m, 70))
    b = torch.randn(70, k, device="cuda", dtype=torch.float16).mT
    for name in ("row_gather", "windows", "tile_mma_64x64x32", "tile_wgmma_128x256x64"):
        if (
            SPECS[name].refuses(
                plan_of(SPECS["row_gather"], pattern, k, a.dtype).problem, device(0)
            )
            is None
        ):
            plan = plan_of(SPECS[name], pattern, k, a.dtype)
            assert_close(plan.run(a, b), pattern, a, b)


def test_a_pattern_changed_in_place_is_planned_anew() -> None:
    pattern = random_pattern(300, 400, 9000, layout="coo", device="cuda", index_dtype=torch.int32)
    a, b = operands(pattern, 64, torch.float16)
    plan = sddmm.plan(pattern, k=64, dtype=torch.float16, out_dtype=torch.float32)
    plan.run(a, b)
    pattern.col_indices.copy_(pattern.col_indices.flip(0))
    assert_close(plan.run(a, b), pattern, a, b)


def test_a_demand_that_cannot_be_met_says_why() -> None:
    pattern = random_pattern(30, 40, 90, device="cuda")
    with pytest.raises(ValueError, match="computes float16, bfloat16, not float32"):
        sddmm.plan(pattern, k=8, dtype=torch.float32, kernel="tile_mma_64x64x32")
    with pytest.raises(ValueError, match="kernel must be one of row_gather"):
        sddmm.plan(pattern, k=8, dtype=torch.float32, kernel="fast")


def test_the_plan_tells_what_was_chosen_and_why_not_the_others() -> None:
    pattern = random_pattern(300, 400, 9000, device="cuda")
    told = sddmm.plan(pattern, k=64, dtype=torch.float16).explain()
    assert "us predicted" in told
    assert "tile_mma_tf32_64x64x32: computes float32, not float16" in told
