"""spmm_gather's sources, run on the CPU: every index, guard and tail, without a GPU.

Integers small enough to be exact, whatever the order of summation.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER, SpmmGather, work_of
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.problem import SpmmProblem
from sddmm.products import product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, assert_spmm_close, emulated_gpu, random_pattern
from tests.cases import cases
from tests.sddmm.memory import at_a_cliff

FEW = replace(H200, sm_count=2)
# Shares the nonzeros of short rows, too.
SHARES = replace(SPMM_GATHER, longest_short=0)


def run(
    pattern: SparsePattern,
    values: Tensor,
    dense: Tensor,
    factors: Tensor | None = None,
    *,
    transpose: bool = False,
    alpha: float = 1.0,
    out_dtype: torch.dtype = torch.float32,
    device: Device = FEW,
    kernel: SpmmGather = SHARES,
    launched: str = "spmm_gather",
    is_lean: bool = False,
) -> Tensor:
    """The product by the emulated GPU, which launches this; what it does not write is NaN."""
    problem = product_problem(pattern, values, dense, factors, transpose, out_dtype, is_lean)
    out = at_a_cliff(torch.full(problem.out_shape(), torch.nan, dtype=out_dtype))
    with emulated_gpu(device) as launches:
        matrix = pattern.T if transpose else pattern
        planner = Planner({kernel.name: kernel}, ProductExecutor)
        executor = planner.prepare(matrix, problem, device, kernel.name)
        executor(values, factors, dense, alpha, out)
    orders = kernel.order_from == 0
    side_by_side = orders and problem.values_have_heads and kernel.part_bytes > 2**19
    if problem.is_lean:  # one head's weights at a time
        assert not orders or launches.count("spmm_weights") == problem.heads
        side_by_side = False
    assert ("spmm_weights" in launches) == orders
    assert ("weights_by_nonzero" in launches) == side_by_side
    assert launched in launches
    return out


def integers(
    shape: tuple[int, ...], dtype: torch.dtype, pitch: int = 0, interleaved: bool = False
) -> Tensor:
    """Small integers, the last of them at the edge of memory; rows are `pitch` elements apart, or
    adjacent. interleaved: the rows of all heads lie together."""
    generator = torch.Generator().manual_seed(sum(shape))
    *lead, rows, k = shape
    whole = torch.randint(-2, 3, (*lead, rows, max(k, pitch)), generator=generator).to(dtype)
    if interleaved:
        return at_a_cliff(whole.transpose(0, 1).contiguous()[..., :k]).transpose(0, 1)
    return at_a_cliff(whole[..., :k])


def check(
    pattern: SparsePattern,
    k: int,
    dtype: torch.dtype,
    values_dtype: torch.dtype | None = None,
    *,
    heads: int | None = None,
    values_have_heads: bool = False,
    has_factors: bool = False,
    transpose: bool = False,
    pitch: int = 0,
    interleaved: bool = False,
    out_dtype: torch.dtype = torch.float32,
    device: Device = FEW,
    kernel: SpmmGather = SHARES,
    launched: str = "spmm_gather",
    is_lean: bool = False,
) -> Tensor:
    """Compare every entry with the exact one; the result."""
    m, n = pattern.shape[::-1] if transpose else pattern.shape
    lead = () if heads is None else (heads,)
    dense = integers((*lead, n, k), dtype, pitch, interleaved)
    shape = (heads or 1, pattern.nnz) if values_have_heads else (1, pattern.nnz)
    values = integers(shape, values_dtype or dtype)
    values = values if values_have_heads else values[0]
    factors = integers((1, pattern.nnz), dtype)[0] if has_factors else None
    alpha = 2.0 if has_factors else 1.0
    got = run(
        pattern, values, dense, factors, transpose=transpose, alpha=alpha, out_dtype=out_dtype,
        device=device, kernel=kernel, launched=launched, is_lean=is_lean,
    )  # fmt: skip
    weights = alpha * values.double() * (1 if factors is None else factors.double())
    target, source = pattern.row_ids.long(), pattern.col_indices.long()
    target, source = (source, target) if transpose else (target, source)
    terms = weights[..., None] * dense.double()[..., source, :]
    expected = torch.zeros(*lead, m, k, dtype=torch.float64)
    expected.index_add_(-2, target, terms)
    wrong = (got.double() != expected).nonzero()
    assert not len(wrong), f"{len(wrong)} of {got.numel()} wrong, first at {wrong[0].tolist()}"
    return got


@pytest.mark.parametrize(
    ("dtype", "k"),
    cases(
        [
            (torch.float16, 1), (torch.float16, 100), (torch.float16, 300), (torch.bfloat16, 256),
            (torch.bfloat16, 168), (torch.float32, 33), (torch.float32, 64), (torch.float64, 7),
        ],
        here=[
            (torch.float16, 1), (torch.float16, 300), (torch.bfloat16, 168), (torch.float32, 33),
        ],
    ),
)  # fmt: skip
def test_rows_of_any_length(dtype: torch.dtype, k: int) -> None:
    """Rows of X in one slice and in many, with tails, and of every alignment."""
    check(random_pattern(67, 131, 1500), k, dtype)


def test_rows_of_another_alignment_in_a_known_plan() -> None:
    pattern = random_pattern(67, 90, 400)
    values = torch.randn(400)
    with emulated_gpu(FEW):
        for pitch in (20, 21, 20):
            x = torch.randn(90, pitch)[:, :20]
            assert_spmm_close(sddmm.spmm(pattern, x, values=values), pattern, x, values=values)


def test_values_of_another_dtype() -> None:
    """Double values make double sums."""
    pattern = random_pattern(67, 131, 700)
    check(pattern, 64, torch.float16, torch.float64, out_dtype=torch.float64)
    check(pattern, 64, torch.float32, torch.bfloat16, out_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("transpose", "values_have_heads", "interleaved"),
    cases(
        itertools.product([False, True], repeat=3),
        here=[(False, True, True), (True, False, True), (True, True, False)],
    ),
)
def test_heads_factors_and_unsorted_nonzeros(
    transpose: bool, values_have_heads: bool, interleaved: bool
) -> None:
    check(
        random_pattern(60, 70, 900, layout="coo", shuffled=True), 64, torch.float16, heads=3,
        values_have_heads=values_have_heads, has_factors=True, transpose=transpose,
        interleaved=interleaved, pitch=72,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("transpose", "values_have_heads", "has_factors", "part_bytes"),
    [(True, True, False, 2**20), (True, False, True, 2**20), (False, True, True, 4000),
     (True, True, False, 4000), (True, False, False, 500)],
)  # fmt: skip
def test_weights_that_are_put_in_order_first(
    transpose: bool, values_have_heads: bool, has_factors: bool, part_bytes: int
) -> None:
    """All at once, the weights of some heads at a time, and a part of a head's at a time; among
    rows and columns that several blocks share."""
    torch.manual_seed(0)
    rows, cols = (torch.rand(2, 3000) ** 4 * 400).long()
    pattern = SparsePattern.from_coo(rows, cols, (500, 400))
    orders = replace(SPMM_GATHER, order_from=0, part_bytes=part_bytes)
    check(
        pattern, 80, torch.float16, torch.bfloat16, heads=3, values_have_heads=values_have_heads,
        has_factors=has_factors, transpose=transpose, kernel=orders,
        device=replace(H200, sm_count=20),
    )  # fmt: skip


@pytest.mark.parametrize("values_dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("heads", [3, 9])
@pytest.mark.parametrize("has_factors", [False, True])
@pytest.mark.parametrize("is_lean", [False, True])
def test_the_weights_of_all_heads_of_a_nonzero_are_found_together(
    values_dtype: torch.dtype, heads: int, has_factors: bool, is_lean: bool
) -> None:
    """More heads than one load reads, and fewer; but in gradients, which are lean."""
    pattern = random_pattern(60, 70, 900, layout="coo", shuffled=True)
    check(
        pattern, 32, torch.float16, values_dtype, heads=heads, values_have_heads=True,
        has_factors=has_factors, transpose=True, out_dtype=torch.float64,
        kernel=replace(SHARES, order_from=0), is_lean=is_lean,
    )  # fmt: skip


ONE = (57_000_000, 64, torch.float16, None)


@pytest.mark.parametrize(
    ("nnz", "k", "dtype", "heads", "is_sorted", "expected"),
    [
        (*ONE, False, True), (*ONE, True, False),
        (3_000_000, 64, torch.float16, None, False, False),
        (16_000_000, 64, torch.float16, None, False, False),
        (3_000_000, 256, torch.float16, None, False, True),
        (3_000_000, 32, torch.float16, 8, False, True),
        (3_000_000, 32, torch.float16, 2, False, False),
        (300_000, 32, torch.float16, 8, False, False),
        (40_000_000, 16, torch.float16, 4, False, False),  # one head is what fits into a part
        (3_000_000, 64, torch.float32, 4, False, True),
        (1_600_000, 32, torch.float32, 4, False, True),
    ],
)  # fmt: skip
def test_weights_are_put_in_order_where_they_are_many_and_rows_are_long(
    nnz: int, k: int, dtype: torch.dtype, heads: int | None, is_sorted: bool, expected: bool
) -> None:
    """Or where one read finds those of several heads."""
    lead = () if heads is None else (heads,)
    pattern = random_pattern(3, 3, 9)
    values, dense = torch.ones(*lead, 9, dtype=dtype), torch.ones(*lead, 3, k, dtype=dtype)
    problem = product_problem(pattern, values, dense, None, False, dtype)
    work = work_of(SPMM_GATHER, problem._replace(nnz=nnz), H200, not is_sorted)
    assert (work.orders, work.has_perm) == (expected, not is_sorted and not expected)
    if heads is not None:  # those of short rows are near each other
        short = problem._replace(nnz=nnz, m=nnz // 2)
        assert not work_of(SPMM_GATHER, short, H200, has_perm=True).orders


@pytest.mark.parametrize(
    ("m", "n", "nnz", "k", "heads", "expected"),
    [
        (200_000, 200_000, 6_000_000, 64, 2, True), (200_000, 200_000, 6_000_000, 64, None, False),
        (500, 1_000_000, 8_000_000, 32, None, True),
        (100_000, 100_000, 2_000_000, 128, None, False),
        (2**20, 2**20, 16_000_000, 64, None, False), (2_000_000, 500_000, 5_000_000, 64, 4, False),
    ],
)  # fmt: skip
def test_weights_are_put_in_order_where_l2_holds_not_both_these_and_x(
    m: int, n: int, nnz: int, k: int, heads: int | None, expected: bool
) -> None:
    """Unless it holds few rows of X anyway, or rows are short."""
    f16 = torch.float16
    problem = SpmmProblem(
        m, n, k, nnz, f16, f16, f16, torch.int32, heads, heads is not None, False,
        torch.device("cuda", 0), is_lean=True,
    )  # fmt: skip
    assert work_of(SPMM_GATHER, problem, H200, has_perm=True).orders == expected


@pytest.mark.parametrize("length", [90, 100])
@pytest.mark.parametrize("heads", [None, 2])
def test_warps_that_begin_where_long_rows_begin(length: int, heads: int | None) -> None:
    """And warps that begin within a row, as no row ends nearby."""
    rows = torch.arange(60 * length) // length
    rows = torch.cat([rows, torch.full((3000,), 60), torch.arange(61, 70)])
    pattern = SparsePattern.from_coo(rows, torch.arange(len(rows)) * 7 % 150, (75, 150))
    for k, dtype in ((256, torch.float16), (64, torch.float32)):
        problem = product_problem(
            pattern, torch.ones(len(rows), dtype=dtype), torch.ones(150, k, dtype=dtype), None,
            False, dtype,
        )  # fmt: skip
        assert work_of(SHARES, problem, FEW, has_perm=False).sharing.aligns_warps
        check(pattern, k, dtype, heads=heads)


@pytest.mark.parametrize("sm_count", [1, 20])
def test_a_row_or_a_column_with_everything(sm_count: int) -> None:
    """Rows that no block, one block and many blocks cut; and thousands of empty rows."""
    device = replace(H200, sm_count=sm_count)
    long = torch.arange(2000)
    for rows, cols in ((torch.full_like(long, 700), long), (long, torch.full_like(long, 700))):
        pattern = SparsePattern.from_coo(rows, cols, (2000, 2000))
        for transpose in (False, True):
            check(pattern, 64, torch.float16, transpose=transpose, device=device)


@pytest.mark.parametrize("nnz", [1, 31, 33, 1000])
@pytest.mark.parametrize("shape", [(3, 90), (40, 50), (5000, 30)])
def test_rows_that_begin_and_end_anywhere(shape: tuple[int, int], nnz: int) -> None:
    """Among them rows that are empty, at both ends of the matrix and in between."""
    m, n = shape
    pattern = random_pattern(m, n, min(nnz, m * n), seed=nnz)
    check(pattern, 64, torch.float16, device=H200)
    shifted = SparsePattern.from_coo(pattern.row_ids + 37, pattern.col_indices, (m + 90, n))
    check(shifted, 64, torch.float16, device=H200)


def test_duplicates_add_up() -> None:
    rows = torch.tensor([2, 0, 2, 2, 0]).repeat(40)
    pattern = SparsePattern.from_coo(rows, torch.tensor([1, 3, 1, 0, 3]).repeat(40), (4, 5))
    check(pattern, 64, torch.float16)
    check(pattern, 64, torch.float16, transpose=True)


def test_nan_and_infinities_stay_in_their_own_rows() -> None:
    """Rows of X that are loaded for no nonzero, past the end of a share, reach nothing."""
    pattern = random_pattern(90, 110, 800, layout="coo", shuffled=True)
    dense, values = torch.randn(110, 64).half(), torch.randn(800).half()
    dense[3, 5], dense[50, 63], dense[70, 0] = torch.nan, torch.inf, -torch.inf
    values[17], values[400] = torch.inf, torch.nan
    got = run(pattern, values, dense, device=H200)
    assert_spmm_close(got, pattern, dense, values=values)
    assert got.isfinite().sum() > got.numel() // 2


def test_infinite_factors_stay_in_their_own_rows() -> None:
    """A lane's factors of before reach nothing past the end of its group."""
    pattern = random_pattern(90, 110, 5000)
    dense, values, factors = torch.randn(110, 64), torch.randn(5000), torch.randn(5000)
    factors[pattern.row_ids % 3 == 0] = torch.inf
    got = run(pattern, values.half(), dense.half(), factors.half())
    assert torch.equal(got.isfinite().all(1), torch.arange(90) % 3 != 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sums_round_once(dtype: torch.dtype) -> None:
    pattern = random_pattern(40, 500, 9000)
    dense, values = torch.randn(500, 64).to(dtype), torch.randn(9000).to(dtype)
    assert_spmm_close(run(pattern, values, dense, out_dtype=dtype), pattern, dense, values=values)
