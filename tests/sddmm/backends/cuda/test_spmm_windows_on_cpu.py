"""Products by windows of rows of X: the kernel's source, run on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.kernels.spmm_windows.entries import entries_of, segments_of
from sddmm.backends.cuda.kernels.spmm_windows.host import SPMM_WINDOWS
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.reference import reference_product
from sddmm.products import product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.exact_products import Operands, check, run

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

# Windows of 48 columns at most, as shared memory holds no more of their rows.
NARROW = replace(SPMM_WINDOWS, name="narrow", shared_bytes=48 * 128)
F32 = torch.float32

SCATTERED = random_pattern(130, 200, 3000, layout="csr")
# Rows 0, 64 and the last have no nonzeros, and row 7 has each column twice.
UNEVEN = SparsePattern.from_coo(
    torch.tensor([1, 5, 63, 65, 65] + [7] * 400 + [9] * 60 + [127] * 100),
    torch.tensor([0, 199, 47, 48, 48] + [*range(200)] * 2 + [*range(60)] + [*range(0, 200, 2)]),
    (129, 200),
)
PATTERNS = {
    "rows": SCATTERED, "columns": SCATTERED.T, "uneven": UNEVEN, "uneven columns": UNEVEN.T,
    "unsorted": random_pattern(130, 200, 3000, layout="coo", shuffled=True),
}  # fmt: skip


@pytest.mark.parametrize("stored", PATTERNS)
def test_each_pattern(stored: str) -> None:
    launches = check(NARROW, PATTERNS[stored], 40, F32)
    assert launches[-3:] == ["spmm_weights", "narrow", "spmm_tile_sums"]


@pytest.mark.parametrize("k", cases([1, 16, 31, 32, 33, 72], here=[1, 32, 33]))
def test_each_k(k: int) -> None:
    check(NARROW, SCATTERED, k, F32)


@pytest.mark.parametrize("pad", [1, 2, 4])
def test_rows_that_start_anywhere(pad: int) -> None:
    check(NARROW, SCATTERED, 36, F32, pad=pad)


@pytest.mark.parametrize("pitch_and_first", [(37, 0), (36, 1), (40, 0)])
def test_rows_aligned_in_one_way_but_not_in_others(pitch_and_first: tuple[int, int]) -> None:
    """By few blocks, each of which computes several windows and two heads one after the other."""
    pitch, first = pitch_and_first
    storage = torch.arange(2 * 200 * pitch + 2 + first).remainder(5).float() - 2
    head = 200 * pitch + (1 if pitch == 40 else 0)  # elements from head to head
    dense = storage.as_strided((2, 200, 36), (head, pitch, 1), first)
    values = torch.randint(-2, 3, (2, SCATTERED.nnz)).float()
    few = replace(H200, sm_count=2)
    out, _ = run(NARROW, SCATTERED, Operands(values, dense), device=few)
    assert torch.equal(out.double(), reference_product(SCATTERED, values, dense, None, alpha=1.0))


def test_groups_without_entries() -> None:
    """A long row is added by one group, so that others of the block have none."""
    rows = torch.tensor([0] * 190 + [3] * 150 + [*range(129)])
    columns = torch.cat([torch.arange(count) for count in (190, 150, 129)])
    check(SPMM_WINDOWS, SparsePattern.from_coo(rows, columns, (129, 200)), 40, F32)


def test_one_window() -> None:
    check(SPMM_WINDOWS, SCATTERED, 40, F32)


def test_windows_of_more_than_a_thousand_columns() -> None:
    """As many as shared memory holds rows of; of the second window all but a few."""
    check(SPMM_WINDOWS, random_pattern(40, 3600, 5000, layout="csr"), 32, F32)


def test_more_windows_than_two_bytes_count() -> None:
    """Nonzeros come by window, then by row, in either number of bytes of a window's number."""
    shape = 3, 40_000
    rows = torch.arange(3, dtype=torch.int32).repeat_interleave(500)
    cols = torch.cat([torch.randperm(40_000)[:500].sort().values for _ in range(3)]).int()
    entries = entries_of(Nonzeros(rows, cols, None), shape, width=1)
    firsts = entries.starts[cols.long() * 3 + rows]
    assert torch.equal(entries.positions[firsts].long(), torch.arange(1500))


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_heads_with_weights_of_their_own_or_the_same(out_dtype: torch.dtype) -> None:
    check(NARROW, SCATTERED, 24, F32, heads=3, out_dtype=out_dtype)
    check(NARROW, SCATTERED, 24, F32, heads=3, shared_values=True)


@pytest.mark.parametrize("values_dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_types(values_dtype: torch.dtype) -> None:
    check(NARROW, SCATTERED, 24, F32, values_dtype=values_dtype)
    check(NARROW, SCATTERED, 24, F32, values_dtype=values_dtype, has_factors=True)


def test_weights_multiplied_by_factors() -> None:
    check(NARROW, SCATTERED, 24, F32, has_factors=True)


def test_an_infinite_row_of_x_reaches_no_other_row() -> None:
    """Rows without nonzeros in a window multiply nothing, not even by zero."""
    dense = torch.ones(200, 32)
    dense[0] = torch.inf
    values = torch.ones(UNEVEN.nnz)
    out, _ = run(NARROW, UNEVEN, Operands(values, dense))
    assert set(out.isinf().any(1).nonzero().flatten().tolist()) == {1, 7, 9, 127}
    assert not out.isnan().any()


@pytest.mark.parametrize(("parts", "blocks"), [(1, 1), (1, 7), (3, 132), (5, 2)])
def test_segments_cover_every_row_of_every_part_once(parts: int, blocks: int) -> None:
    rows, cols = UNEVEN.row_ids, UNEVEN.col_indices
    entries = entries_of(Nonzeros(rows.int(), cols.int(), None), UNEVEN.shape, 48)
    segments = segments_of(entries, parts, blocks, groups=4, window_entries=100)
    assert segments.first_of_blocks[0] == 0
    assert segments.first_of_blocks[-1] == len(segments.windows_and_parts)
    covered = torch.zeros(parts, 5, 129, dtype=torch.int64)
    for (window, part), bounds in zip(
        segments.windows_and_parts.tolist(), segments.bounds.tolist(), strict=True
    ):
        for (first, _), (last, _) in itertools.pairwise(bounds):
            covered[part, window, first:last] += 1
    assert (covered == 1).all()


def test_why_it_does_not_serve() -> None:
    def reason(
        pattern: SparsePattern, dtype: torch.dtype, values_dtype: torch.dtype | None = None
    ) -> str | None:
        values, dense = torch.ones(pattern.nnz, dtype=dtype), torch.ones(200, 8, dtype=dtype)
        problem = product_problem(pattern, values, dense, None, False, None)
        return SPMM_WINDOWS.refuses(
            problem._replace(values_dtype=values_dtype or dtype), H200
        )  # fmt: skip

    sparse = random_pattern(130, 200, 30)
    assert reason(sparse, torch.float32) == "has 130 sums of rows of windows, for 30 nonzeros"
    assert reason(SCATTERED, torch.float64) == "computes float32, not float64"
    assert reason(SCATTERED, torch.float32) is None
    assert "float64" in str(reason(SCATTERED, torch.float32, torch.float64))
    values, dense = torch.ones(3000), torch.ones(200, 8)
    problem = product_problem(SCATTERED, values, dense, None, False, None)
    many = problem._replace(nnz=2**31 - 2**12)
    counted = f"counts at most {2**31 - 2**12} nonzeros and rows, got {2**31 - 2**12 + 130}"
    assert SPMM_WINDOWS.refuses(many, H200) == counted
