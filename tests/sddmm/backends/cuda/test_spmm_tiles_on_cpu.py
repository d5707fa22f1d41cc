"""Products by tiles of weights: the kernels' sources, run on the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES
from sddmm.backends.cuda.kernels.spmm_tile.stripes import cut_stripes
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.backends.reference import reference_product
from sddmm.memory import memory_blocks
from sddmm.ops.base import rounded_bound, tolerance
from sddmm.ops.spmm_operator import product_error_bound
from sddmm.products import product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, emulated_gpu, mismatches, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.exact_products import Operands, check, run

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

KERNELS = {kernel.name: kernel for kernel in SPMM_TILES}
EXACT = ["spmm_tile_exact_64", "spmm_tile16_exact_64"]
FLOAT = ["spmm_tile_float_64", "spmm_tile16_float_64"]


def band(size: int, width: int) -> SparsePattern:
    """Rows of consecutive columns, from empty parts of tiles to full ones."""
    index = torch.arange(size)
    rows, cols = ((index[:, None] - index).abs() <= width).nonzero().unbind(1)
    return SparsePattern.from_coo(rows, cols, (size, size))


def blocks(side: int) -> SparsePattern:
    """Squares of nonzeros at random places: lines of tiles have gaps."""
    kept = random_pattern(208 // side, 208 // side, 6 * 208 // side)
    mask = torch.zeros(208 // side, 208 // side, dtype=torch.bool)
    mask[kept.row_ids.long(), kept.col_indices.long()] = True
    rows, cols = mask.repeat_interleave(side, 0).repeat_interleave(side, 1).nonzero().unbind(1)
    return SparsePattern.from_coo(rows, cols, (208, 208))


SCATTERED = random_pattern(130, 200, 6000, layout="csr")
BAND = band(210, 70)
BLOCKS = blocks(16)
PATTERNS = {
    "rows": SCATTERED, "columns": SCATTERED.T, "band": BAND, "band of columns": BAND.T,
    "blocks": BLOCKS,
}  # fmt: skip
UNSORTED = random_pattern(130, 200, 600, layout="coo", shuffled=True)


@pytest.mark.parametrize(
    ("kernel", "k", "stored"),
    cases(
        [
            (kernel, k, stored)
            for kernel, k in (
                ("spmm_tile_32", 32),
                ("spmm_tile_64", 72),
                ("spmm_tile_128", 128),
                ("spmm_tile16_32", 40),
                ("spmm_tile16_64", 72),
            )
            for stored in PATTERNS
        ],
        here=[
            ("spmm_tile16_32", 40, "blocks"),
            ("spmm_tile16_64", 72, "band"),
            ("spmm_tile16_64", 72, "columns"),
            ("spmm_tile32_64", 72, "band"),
            ("spmm_tile32_64", 72, "band of columns"),
            ("spmm_tile_32", 32, "band"),
            ("spmm_tile_64", 72, "rows"),
            ("spmm_tile_64", 72, "columns"),
            ("spmm_tile_128", 128, "columns"),
        ],
    ),
)
def test_tiles_of_rows_and_of_columns(kernel: str, k: int, stored: str) -> None:
    check(KERNELS[kernel], PATTERNS[stored], k)


@pytest.mark.parametrize(
    ("kernel", "side"), [("spmm_tile_64", 8), ("spmm_tile_64", 13), ("spmm_tile16_64", 13)]
)
def test_squares_of_any_side(kernel: str, side: int) -> None:
    check(KERNELS[kernel], blocks(side), 64, torch.bfloat16)


@pytest.mark.parametrize(
    ("kernel", "stored", "has_factors"),
    cases(
        itertools.product(EXACT, ["rows", "band of columns", "blocks"], [True, False]),
        here=[
            ("spmm_tile_exact_64", "rows", False),
            ("spmm_tile_exact_64", "band of columns", True),
            ("spmm_tile_exact_64", "blocks", True),
            ("spmm_tile16_exact_64", "rows", False),
            ("spmm_tile16_exact_64", "band of columns", True),
        ],
    ),
)
def test_weights_with_more_bits_than_a_half(kernel: str, stored: str, has_factors: bool) -> None:
    """Products of two halves, and float32 values."""
    values_dtype = torch.float16 if has_factors else torch.float32
    check(KERNELS[kernel], PATTERNS[stored], 64, values_dtype=values_dtype, has_factors=has_factors)


@pytest.mark.parametrize("kernel", FLOAT)
@pytest.mark.parametrize("pattern", [SCATTERED, BAND.T], ids=["rows", "columns"])
def test_float32(kernel: str, pattern: SparsePattern) -> None:
    has_factors = pattern is SCATTERED
    check(KERNELS[kernel], pattern, 68, torch.float32, has_factors=has_factors)


@pytest.mark.parametrize(
    ("kernel", "k"),
    cases(
        [(kernel, k) for kernel in (*FLOAT, EXACT[1]) for k in (7, 16, 32, 33, 48, 80, 96, 130)],
        here=[(FLOAT[0], 30), (FLOAT[1], 7), (FLOAT[1], 32), (FLOAT[1], 90), (EXACT[1], 80)],
    ),
)
@pytest.mark.parametrize("stored", ["rows", "columns"])
def test_slices_of_x_are_no_wider_than_needed(kernel: str, k: int, stored: str) -> None:
    dtype = torch.float32 if kernel in FLOAT else torch.bfloat16
    check(KERNELS[kernel], PATTERNS[stored], k, dtype, heads=2, has_factors=kernel in EXACT)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("spmm_tile_64", torch.bfloat16),
        ("spmm_tile_exact_64", torch.bfloat16),
        ("spmm_tile_float_64", torch.float32),
        ("spmm_tile16_64", torch.float16),
        ("spmm_tile32_64", torch.float16),
        ("spmm_tile16_exact_64", torch.bfloat16),
        ("spmm_tile16_float_64", torch.float32),
    ],
)
def test_heads_rows_that_start_anywhere_and_a_permutation(kernel: str, dtype: torch.dtype) -> None:
    has_factors = KERNELS[kernel].float_weights
    check(KERNELS[kernel], UNSORTED, 65, dtype, heads=2, has_factors=has_factors, pad=3)


def test_no_more_rows_than_those_of_a_tile_are_needed() -> None:
    for m, n, nnz in ((1, 1, 1), (3, 300, 40), (300, 3, 40), (70, 70, 0)):
        for kernel in ("spmm_tile_64", "spmm_tile16_64"):
            check(KERNELS[kernel], random_pattern(m, n, nnz), 5)


@pytest.mark.parametrize(
    ("kernel", "k"),
    [
        ("spmm_tile_64", 65), ("spmm_tile_128", 100), ("spmm_tile_float_64", 65),
        ("spmm_tile16_32", 40), ("spmm_tile32_64", 65), ("spmm_tile16_float_64", 16),
        ("spmm_tile16_float_64", 80), ("spmm_tile_float_64", 32),
    ],
)  # fmt: skip
def test_long_rows_of_tiles_are_cut_and_their_sums_added(kernel: str, k: int) -> None:
    pattern = random_pattern(70, 64 * 30, 2000)
    dtype = torch.float32 if "float" in kernel else torch.float16
    launches = check(KERNELS[kernel], pattern, k, dtype, heads=2)
    assert launches[-2:] == [kernel, "spmm_tile_sums"]


def test_the_longest_parts_come_first_and_those_of_a_row_of_tiles_are_about_equal() -> None:
    tiles, pieces = np.array([3, 0, 30, 12, 25]), np.array([1, 1, 3, 1, 3])
    parts, shared, slots = cut_stripes(tiles, pieces, 64, torch.device("cpu"))
    assert parts.tolist() == [
        [33, 45, 192, -1],
        [3, 13, 128, 0], [13, 23, 128, 1], [23, 33, 128, 2],
        [61, 70, 256, 5], [45, 53, 256, 3], [53, 61, 256, 4],
        [0, 3, 0, -1],
        [3, 3, 64, -1],
    ]  # fmt: skip
    assert shared.tolist() == [[128, 0, 3, 1], [256, 3, 3, 1]]
    assert parts.dtype == shared.dtype == torch.int32
    assert slots == 6


def test_duplicates_all_count() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, cols = torch.randint(90, (2, 3000), generator=generator)
    unsorted = SparsePattern.from_coo(rows, cols, (90, 90))
    for pattern in (unsorted, unsorted.to_csr(), unsorted.to_csr().T):
        for kernel in ("spmm_tile_64", "spmm_tile16_64"):
            check(KERNELS[kernel], pattern, 16)


@pytest.mark.parametrize(
    ("kernel", "stored"),
    cases(
        itertools.product(["spmm_tile_64", "spmm_tile16_64", *EXACT, *FLOAT], ["rows", "columns"]),
        here=[
            ("spmm_tile_64", "rows"),
            ("spmm_tile_exact_64", "columns"),
            ("spmm_tile_float_64", "rows"),
            ("spmm_tile16_64", "columns"),
            ("spmm_tile32_64", "rows"),
            ("spmm_tile16_exact_64", "rows"),
        ],
    ),
)
def test_what_is_not_finite_reaches_the_rows_that_multiply_it(kernel: str, stored: str) -> None:
    """NaN and infinities of X and of the values, next to rows that hold finite numbers alone."""
    pattern, dtype = PATTERNS[stored], torch.float32 if "float" in kernel else torch.float16
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(pattern.shape[1], 40, generator=generator).to(dtype)
    dense[::29, 3] = torch.inf
    dense[5::31, 0] = torch.nan
    dense[7::37, 39] = -torch.inf
    values = torch.randn(pattern.nnz, generator=generator).to(dtype)
    values[11::700] = torch.inf
    factors = torch.rand(pattern.nnz).to(dtype) + 0.5 if "exact" in kernel else None
    operands = Operands(values, dense, factors)
    out, _ = run(KERNELS[kernel], pattern, operands)
    truth = reference_product(pattern, *operands)
    size = reference_product(pattern, values.abs(), dense.abs(), factors)
    wrong = mismatches(out, truth, tolerance(dtype, 210) * size).nonzero()
    assert not len(wrong), f"{len(wrong)} wrong, first at {wrong[0].tolist()}"
    for kind in (truth.isnan(), truth.isinf(), truth.isfinite()):
        assert kind.any()


@pytest.mark.parametrize(
    ("kernel", "dtype", "has_factors", "kept"),
    [
        ("spmm_tile_float_64", torch.float32, False, 64),
        ("spmm_tile_exact_64", torch.float16, True, 112),
    ],
)
@pytest.mark.parametrize("by_column", [False, True])
def test_finite_sums_are_not_formed_again(
    kernel: str, dtype: torch.dtype, has_factors: bool, kept: int, by_column: bool
) -> None:
    """Nonzero by nonzero all ones are lost beside 2^24; a tile adds half of its columns, or groups
    of 16, before. What no thread stored is NaN here: forming its sums again would hide it."""
    mask = torch.ones(70, 128, dtype=torch.bool)
    mask[::2, 5] = False
    rows, cols = (mask.T if by_column else mask).nonzero().unbind(1)
    pattern = SparsePattern.from_coo(rows, cols, (128, 70) if by_column else (70, 128))
    dense = torch.ones(128, 68).index_fill_(0, torch.tensor([0]), 2**12).to(dtype)
    values = torch.where((rows if by_column else cols) == 0, 2**12, 1).to(dtype)
    operands = Operands(values, dense, torch.ones_like(values) if has_factors else None)
    out, _ = run(KERNELS[kernel], pattern.T if by_column else pattern, operands)
    assert out.eq(2**24 + kept).all()


@pytest.mark.parametrize(
    ("size", "dtype", "values_dtype"),
    cases(
        itertools.product(
            ["", "16"], [torch.float16, torch.bfloat16, torch.float32], [None, torch.float32]
        ),
        here=[
            ("", torch.float16, None),
            ("", torch.bfloat16, torch.float32),
            ("", torch.float32, None),
            ("16", torch.float16, None),
        ],
    ),
)
def test_weights_are_not_rounded(
    size: str, dtype: torch.dtype, values_dtype: torch.dtype | None
) -> None:
    """A float32 result shows every bit; gradients are small and of different sizes."""
    kernel = f"spmm_tile{size}_{'float' if dtype == torch.float32 else 'exact'}_64"
    generator = torch.Generator().manual_seed(1)
    pattern, has_factors = SCATTERED, values_dtype is None
    values = torch.randn(pattern.nnz, generator=generator) * torch.rand(pattern.nnz) ** 8 * 1e-4
    values = values.to(values_dtype or dtype)
    dense = torch.randn(pattern.shape[1], 32, generator=generator).to(dtype)
    factors = torch.randn(pattern.nnz, generator=generator).to(dtype) if has_factors else None
    out, _ = run(KERNELS[kernel], pattern, Operands(values, dense, factors))
    truth = reference_product(pattern, values, dense, factors)
    weights = values.double() * (1 if factors is None else factors.double())
    sizes = reference_product(pattern, weights.abs(), dense.abs())
    lengths = pattern.row_lengths.longest
    slack = tolerance(torch.float32, lengths) * sizes
    assert not bool(mismatches(out, truth, rounded_bound(slack, truth, out.dtype)).any())
    less = torch.float16 if dtype == torch.float32 else dtype
    rounded = reference_product(pattern, weights.to(less), dense)
    assert bool(((rounded - truth).abs() > slack).any()), "fewer bits would do"


@pytest.mark.parametrize("subnormal", ["dense", "values"])
def test_subnormal_floats_keep_their_last_bits(subnormal: str) -> None:
    """The products are of floats, none of which is rounded or flushed to zero."""
    values, dense = torch.randn(SCATTERED.nnz), torch.randn(200, 64)
    tiny = torch.rand(SCATTERED.nnz if subnormal == "values" else (200, 64)) * 1e-39
    values, dense = (tiny, dense) if subnormal == "values" else (values, tiny)
    out, _ = run(KERNELS["spmm_tile_float_64"], SCATTERED, Operands(values, dense, None), alpha=1e6)
    truth = reference_product(SCATTERED, values, dense, alpha=1e6)
    bound = product_error_bound(SCATTERED, values, dense, truth, alpha=1e6)
    assert bool(((out - truth).abs() <= bound).all())


def test_subnormal_products_of_halves_keep_the_bits_of_floats() -> None:
    """Two TF32 numbers have no place for the last bits of a subnormal weight; a float rounds it by
    half of 2^-149 at most."""
    values, factors = (torch.rand(SCATTERED.nnz).mul(1e-20).bfloat16() for _ in range(2))
    dense = torch.randn(200, 64).bfloat16()
    out, _ = run(
        KERNELS["spmm_tile_exact_64"], SCATTERED, Operands(values, dense, factors), alpha=1e30
    )
    truth = reference_product(SCATTERED, values, dense, factors, alpha=1e30)
    ones = torch.ones(SCATTERED.nnz)
    rounding = reference_product(SCATTERED, ones, dense.abs(), alpha=1e30 * 2.0**-150)
    assert bool(((out - truth).abs() <= 1.01 * rounding).all())


def test_the_tiles_of_a_transpose_are_those_of_the_pattern() -> None:
    """Nothing is sorted, and nonzeros are read where they are stored."""
    with emulated_gpu() as launches:
        work, by_column = PatternLayouts(SCATTERED.T, H200).distinct_tiles((64, 64))
    assert by_column
    assert work.perm is None
    assert torch.equal(work.cols.long(), SCATTERED.col_indices.long())
    assert "tile_bounds" in launches


def test_facts_tell_how_a_transpose_is_stored() -> None:
    with emulated_gpu():
        by_row = PatternLayouts(BAND, H200, ((64, 64),)).facts()
        by_column = PatternLayouts(BAND.T, H200, ((64, 64),)).facts()
        unsorted = PatternLayouts(UNSORTED, H200, ((64, 64),)).facts()
    assert by_row.ascends
    assert by_row.distinct
    assert not by_row.ascends_by_column
    assert by_column.ascends_by_column
    assert by_column.distinct
    assert not by_column.ascends
    assert by_column.runs == by_row.runs == 210
    assert not unsorted.ascends
    assert not unsorted.ascends_by_column


def test_large_counts_of_tiles_are_not_kept() -> None:
    """Squares of 16 down the diagonal, of 8,000 rows: all other tiles are empty."""
    rows = torch.arange(8000).repeat_interleave(16)
    cols = rows // 16 * 16 + torch.arange(16).repeat(8000)
    pattern = SparsePattern.from_coo(rows, cols, (8000, 8000))
    dense, values = torch.ones(8000, 64).half(), torch.ones(pattern.nnz).half()
    problem = product_problem(pattern, values, dense, None, False, None)._replace(heads=64)
    counts = 4 * (8000 // 16) ** 2
    with emulated_gpu() as launches:
        layouts = PatternLayouts(pattern, H200, ((16, 16),))
        facts = layouts.facts()
        assert counts in memory_blocks(pattern).values()
        Planner(SPMM_KERNELS, ProductExecutor).prepare(pattern, problem, H200)
        assert "tile_lines" in launches
        assert counts not in memory_blocks(pattern).values()
        assert layouts.tiles_in_order((16, 16)).tiles.length == 500
    found = facts.tiles((16, 16))
    assert found is not None
    assert found.nonempty == found.full == 500


def test_refusals_say_what_does_not_fit() -> None:
    plain, exact = KERNELS["spmm_tile_64"], KERNELS["spmm_tile_exact_64"]
    values, dense = torch.ones(SCATTERED.nnz).half(), torch.ones(200, 8).half()
    halves = product_problem(SCATTERED, values, dense, None, False, None)
    scaled = halves._replace(has_factors=True)
    double = halves._replace(values_dtype=torch.float64)
    assert plain.refuses(halves, H200) is None
    assert exact.refuses(scaled, H200) is None
    assert "products of two halves" in str(plain.refuses(scaled, H200))
    assert "these are halves" in str(exact.refuses(halves, H200))
    floats = halves._replace(dtype=torch.float32)
    for kernel in (plain, exact):
        assert "sums in float32, and values are float64" in str(kernel.refuses(double, H200))
        assert "computes float16" in str(kernel.refuses(floats, H200))
    assert KERNELS["spmm_tile_float_64"].refuses(floats, H200) is None
