"""One pass over a pattern finds its order and its tiles. The kernel runs on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from sddmm.backends.cuda.analysis import Analysis, launch, reciprocal
from sddmm.backends.cuda.spec import AnalysisRequest
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import random_pattern
from tests.conftest import H200

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


def analyse(pattern: SparsePattern, *request: Any) -> Analysis:
    return launch(pattern, H200, AnalysisRequest(*request)).wait()


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_rows_order_and_tiles(layout: str, index_dtype: torch.dtype) -> None:
    pattern = random_pattern(90, 70, 1100, layout=layout, index_dtype=index_dtype)
    found = analyse(pattern, (32, 16), True)
    assert found.rows_ascend
    assert found.ascends
    segments = {(int(r), int(c) // 16) for r, c in zip(pattern.row_ids, found.cols, strict=True)}
    assert found.row_segments == len(segments)
    assert torch.equal(found.row_ids.long(), pattern.row_ids.long())
    assert torch.equal(found.cols.long(), pattern.col_indices.long())
    assert found.row_ids.dtype == found.cols.dtype == torch.int32
    dense = torch.zeros(3 * 32, 5 * 16, dtype=torch.int64)
    dense[pattern.row_ids.long(), pattern.col_indices.long()] = 1
    counts = dense.view(3, 32, 5, 16).sum((1, 3)).flatten()
    assert found.tile_nnz is not None
    assert torch.equal(found.tile_nnz.long(), counts)


def test_orders_that_fall_are_seen() -> None:
    rows, cols = torch.tensor([0, 2, 1]), torch.tensor([5, 1, 1])
    found = analyse(SparsePattern.from_coo(rows, cols, (3, 6)))
    assert (found.rows_ascend, found.tile_nnz) == (False, None)
    crow, cols = torch.tensor([0, 1, 1, 4]), torch.tensor([5, 1, 3, 2])
    found = analyse(SparsePattern.from_csr(crow, cols, (3, 6)))
    assert (found.rows_ascend, found.ascends) == (True, False)
    crow, cols = torch.tensor([0, 1, 1, 4]), torch.tensor([5, 1, 3, 3])
    assert analyse(SparsePattern.from_csr(crow, cols, (3, 6))).ascends


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_nonzeros_that_come_by_column_are_seen(index_dtype: torch.dtype) -> None:
    """But for one, before which a lane, a step of a warp, a warp or a block begins, or none."""
    cols, rows = (x.flatten().to(index_dtype) for x in torch.meshgrid(
        torch.arange(30), torch.arange(100), indexing="ij"
    ))  # fmt: skip
    twice = torch.tensor([0, 0, *range(1, 3000)])
    for order in (torch.arange(3000), twice):
        found = analyse(SparsePattern.from_coo(rows[order], cols[order], (100, 30)))
        assert found.ascends_by_column
        assert not found.rows_ascend
    for at in (1, 3, 4, 127, 128, 200, 256, 2048, 2998):
        order = torch.arange(3000)
        order[at], order[at + 1] = at + 1, at
        found = analyse(SparsePattern.from_coo(rows[order], cols[order], (100, 30)))
        assert not found.ascends_by_column
    assert not analyse(SparsePattern.from_coo(cols, rows, (30, 100))).ascends_by_column


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_columns_that_strictly_ascend_are_distinct(layout: str, index_dtype: torch.dtype) -> None:
    for cols, ascends, distinct in (
        ([5, 1, 2, 3], True, True),
        ([1, 1, 2, 3], True, True),  # equal columns of two rows
        ([5, 1, 3, 3], True, False),
        ([5, 1, 3, 2], False, False),
        ([5, 0, 0, 2], True, False),
    ):
        pattern = SparsePattern.from_coo(
            torch.tensor([0, 2, 2, 2], dtype=index_dtype),
            torch.tensor(cols, dtype=index_dtype),
            (3, 6),
        )
        found = analyse(pattern.to_csr() if layout == "csr" else pattern)
        assert (found.ascends, found.distinct) == (ascends, distinct)


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_runs_of_consecutive_columns_are_counted(layout: str, index_dtype: torch.dtype) -> None:
    """A run ends with its row; one that goes on in what the next warp reads is one run."""
    rows = torch.tensor([0, 0, 0, 2, 2, 3, 4, 4], dtype=index_dtype)
    cols = torch.tensor([1, 2, 4, 5, 6, 7, 2, 2], dtype=index_dtype)  # 1 2, 4, 5 6, 7, 2, 2
    long = torch.arange(5000, dtype=index_dtype)
    rows = torch.cat([rows, torch.full_like(long, 7), torch.full_like(long, 8)])
    cols = torch.cat([cols, long, 2 * long])
    pattern = SparsePattern.from_coo(rows, cols, (9, 10_000))
    found = analyse(pattern.to_csr() if layout == "csr" else pattern)
    assert found.runs == 6 + 1 + 5000
    assert not found.distinct


def test_all_nonzeros_in_one_tile_are_counted() -> None:
    """Lanes of a warp add up before they add to memory."""
    pattern = SparsePattern.from_coo(torch.full((999,), 7), torch.full((999,), 8), (20, 20))
    found = analyse(pattern, (4, 4), True)
    assert found.tile_nnz is not None
    assert int(found.tile_nnz[1 * 5 + 2]) == int(found.tile_nnz.sum()) == 999


@pytest.mark.parametrize(
    ("crow", "cols", "told"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "crow_indices"),
        ([1, 2, 2, 3], [0, 1, 2], "crow_indices must start with 0"),
        ([0, 2, 2, 9], [0, 1, 2], "crow_indices"),
        ([0, 1, 2, 2], [0, 1, 2], "crow_indices must end with nnz = 3"),
        ([0, 1, 2, 3], [0, 4, 2], r"col_indices\[1\] is 4"),
        ([0, 1, 2, 3], [0, -1, 2], r"col_indices\[1\] is -1"),
    ],
)
def test_invalid_patterns_raise_what_check_says(
    crow: list[int], cols: list[int], told: str
) -> None:
    pattern = SparsePattern.from_csr(torch.tensor(crow), torch.tensor(cols), (3, 4))
    for counted, starts in ((False, False), (True, False), (False, True)):
        with pytest.raises(ValueError, match=told):
            analyse(pattern, (2, 2), counted, starts)


def test_a_crow_of_more_entries_than_nonzeros_is_checked_to_its_end() -> None:
    crow = torch.zeros(5001, dtype=torch.int64)
    crow[4000:] = 3
    crow[4900:4950] = 2
    pattern = SparsePattern.from_csr(crow, torch.tensor([0, 1, 2]), (5000, 4))
    with pytest.raises(ValueError, match="positions 4899 and 4900"):
        analyse(pattern)


def test_what_was_found_stays_when_another_pattern_is_analysed() -> None:
    cols = torch.arange(40)
    of_many = analyse(SparsePattern.from_coo(cols, cols, (40, 40)))
    of_few = analyse(SparsePattern.from_coo(cols[:3], cols[:3], (40, 40)))
    assert of_many.done
    assert of_many.wait().row_segments == 40
    assert of_few.row_segments == 3


def test_starts_of_more_tiles_than_32_bits_count_are_not_asked_for() -> None:
    request = AnalysisRequest((128, 1024), tile_row_offsets=True)
    assert request.offset_count((2**20, 2**20)) < 2**31
    assert request.offset_count((2**20, 2**21)) >= 2**31


@pytest.mark.parametrize(("rows", "at"), [([0, 3], 1), ([-10_000_000, 2], 0)])
def test_rows_outside_the_shape_raise(rows: list[int], at: int) -> None:
    pattern = SparsePattern.from_coo(torch.tensor(rows), torch.tensor([0, 1]), (3, 4))
    for counted, starts in ((False, False), (True, False), (False, True)):
        with pytest.raises(ValueError, match=rf"row_indices\[{at}\] is {rows[at]}"):
            analyse(pattern, (2, 2), counted, starts)


def test_a_row_far_outside_many_tiles_raises() -> None:
    """The number of its tile would take more than 32 bits."""
    rows, cols = torch.tensor([0, 2**31 - 1]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"row_indices\[1\] is 2147483647"):
        analyse(SparsePattern.from_coo(rows, cols, (3, 300)), (100, 1), True)


def test_more_tiles_in_a_row_than_a_block_counts_by_itself() -> None:
    """A block of threads counts 1024 tiles in its own memory, those behind them at once."""
    cols = torch.arange(2000).repeat(2)
    pattern = SparsePattern.from_csr(torch.tensor([0, 2000, 4000]), cols, (2, 2000))
    found = analyse(pattern, (2, 1), True)
    assert found.tile_nnz is not None
    assert torch.equal(found.tile_nnz, torch.full((2000,), 2, dtype=torch.int32))


@pytest.mark.parametrize(
    "divisor", [1, 2, 3, 7, 56, 64, 100, 224, 255, 65_537, 2**30 + 1, 2**31 - 1]
)
def test_division_by_multiplying_is_exact(divisor: int) -> None:
    factor, shift = reciprocal(divisor)
    assert factor < 2**32
    largest = 2**31 - 1
    last = largest // divisor * divisor
    for x in (0, 1, divisor - 1, divisor, last - 1, last, largest):
        assert x < 0 or (2 * x * factor >> 32) >> shift == x // divisor


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_many_blocks_add_up(layout: str) -> None:
    """Nonzeros of a row, rows and empty rows across the ends of what a block takes; run twice, as a
    block that is done leaves everything as it found it."""
    rows = torch.cat([torch.full((3000,), 4), torch.arange(7, 5000, 3), torch.full((900,), 6000)])
    cols = torch.cat([torch.arange(3000), rows[3000:4665] % 77, torch.arange(900)])
    pattern = SparsePattern.from_coo(rows, cols, (9000, 3000))
    if layout == "csr":
        pattern = pattern.to_csr()
    for _ in range(2):
        found = analyse(pattern, (500, 1000), True)
        assert torch.equal(found.row_ids.long(), rows)
        assert (found.rows_ascend, found.ascends) == (True, True)
        counts = torch.bincount(rows // 500 * 3 + cols // 1000, minlength=54)
        assert found.tile_nnz is not None
        assert torch.equal(found.tile_nnz.long(), counts)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_columns_that_fall_from_one_block_to_the_next(layout: str) -> None:
    """A lane takes 4 nonzeros, a warp 256 of these and a block 2048; the last column of one and the
    first of the next are compared, if they are of one row."""
    for count, (row, ascend) in itertools.product((4, 128, 256, 2048), ((0, False), (1, True))):
        cols = torch.cat([torch.arange(count), torch.arange(2047)])
        rows = torch.cat([torch.zeros(count, dtype=torch.int64), torch.full((2047,), row)])
        pattern = SparsePattern.from_coo(rows, cols, (2, 2048))
        if layout == "csr":
            crow = torch.searchsorted(rows, torch.arange(3))
            pattern = SparsePattern.from_csr(crow, cols, (2, 2048))
        assert analyse(pattern).ascends == ascend


def test_tiles_before_those_of_a_block_s_first_nonzero_are_counted() -> None:
    rows = torch.arange(4999, -1, -1)
    found = analyse(SparsePattern.from_coo(rows, rows % 40, (5000, 40)), (16, 16), True)
    counts = torch.bincount(rows // 16 * 3 + rows % 40 // 16, minlength=3 * 313)
    assert found.tile_nnz is not None
    assert torch.equal(found.tile_nnz.long(), counts)


def test_rows_past_many_rows_without_nonzeros_are_found() -> None:
    """A warp that has looked at a thousand rows searches each nonzero's."""
    rows = torch.tensor([0, 0, 1, 2500, 2500, 2501, 4999, *range(5001, 5400, 2), 9999])
    crow = torch.searchsorted(rows, torch.arange(10_001))
    cols = torch.arange(rows.numel())
    found = analyse(SparsePattern.from_csr(crow, cols, (10_000, 300)))
    assert torch.equal(found.row_ids.long(), rows)
    assert (found.ascends, found.distinct, found.row_segments) == (
        True,
        True,
        len(set(rows.tolist())),
    )


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_indices_that_begin_at_any_address(layout: str, index_dtype: torch.dtype) -> None:
    """Four indices are loaded at once where they begin at a multiple of 16 bytes."""
    pattern = random_pattern(60, 70, 1500, layout=layout, index_dtype=index_dtype)
    shifted = [
        torch.cat([x.new_zeros(1), x])[1:] for x in (pattern.major_indices, pattern.col_indices)
    ]
    make = SparsePattern.from_csr if layout == "csr" else SparsePattern.from_coo
    found, expected = (analyse(p, (16, 16), True) for p in (make(*shifted, (60, 70)), pattern))
    assert torch.equal(found.row_ids, expected.row_ids)
    assert torch.equal(found.cols, expected.cols)
    assert torch.equal(found.tile_nnz, expected.tile_nnz)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_small_device_reads_a_large_share_at_once_after_the_other(layout: str) -> None:
    """A single multiprocessor reads 20,000 nonzeros in shares of 768 and the last of less."""
    pattern = random_pattern(400, 300, 20_000, layout=layout)
    request = AnalysisRequest((64, 32), True, True, True)
    found = launch(pattern, replace(H200, sm_count=1), request).wait()
    expected = launch(pattern, H200, request).wait()
    assert torch.equal(found.row_ids.long(), pattern.row_ids.long())
    for name in ("row_segments", "runs", "ascends", "distinct"):
        assert getattr(found, name) == getattr(expected, name)
    assert torch.equal(found.tile_nnz, expected.tile_nnz)
    assert torch.equal(found.offsets.offsets, expected.offsets.offsets)


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("nnz", [1, 2047, 2048, 5000])
def test_where_the_nonzeros_of_each_row_of_tiles_begin(
    layout: str, index_dtype: torch.dtype, nnz: int
) -> None:
    """A binary search for each says the same; rows are empty, before, between and behind."""
    pattern = random_pattern(90, 150, nnz, layout="coo", index_dtype=index_dtype)
    rows, cols = pattern.row_ids * 2 + 40, pattern.col_indices
    pattern = SparsePattern.from_coo(rows, cols, (400, 160))
    if layout == "csr":
        pattern = pattern.to_csr()
    found = analyse(pattern, (64, 12), False, True)
    assert found.tile_nnz is None
    per_row = torch.unique(rows * 14 + cols // 12)
    assert found.row_segments == len(per_row)
    assert found.offsets is not None
    assert (found.row_ids is None) == (layout == "csr" or index_dtype == torch.int64)
    assert found.offsets[1:] == (0, 64 * 15, 1, 15)
    flat = rows.long() * 160 + cols
    tile = torch.arange(15) * 12
    firsts = torch.arange(7 * 64)[:, None] * 160 + tile.clamp(max=160)
    assert torch.equal(found.offsets.offsets.view(-1, 15).long(), torch.searchsorted(flat, firsts))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_the_least_and_the_largest_index_are_refused(index_dtype: torch.dtype) -> None:
    """Nothing is added to an index before it is known to be valid: the sum may not exist."""
    crow = 20 * torch.arange(301, dtype=index_dtype)
    cols = torch.arange(50, dtype=index_dtype).repeat(120)
    for wrong in (torch.iinfo(index_dtype).min, torch.iinfo(index_dtype).max):
        for changed in (crow, cols):
            for at in (0, 150, 300):  # also behind the first block's nonzeros
                right = changed[at].clone()
                changed[at] = wrong
                with pytest.raises(ValueError, match="indices"):
                    analyse(SparsePattern.from_csr(crow, cols, (300, 50)))
                changed[at] = right


@pytest.mark.parametrize("name", ["row_indices", "col_indices"])
def test_an_index_that_is_valid_in_its_low_bits_alone_is_refused(name: str) -> None:
    rows, cols = torch.arange(300), torch.arange(300)
    (rows if name == "row_indices" else cols)[123] += 2**32
    with pytest.raises(ValueError, match=rf"{name}\[123\] is {2**32 + 123}"):
        analyse(SparsePattern.from_coo(rows, cols, (300, 300)))


def test_nonzeros_of_a_matrix_without_rows_are_refused() -> None:
    none = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"row_indices\[0\] is 0; none is valid"):
        analyse(SparsePattern.from_coo(none, none, (0, 5)))


def test_a_pattern_without_rows_or_nonzeros() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for shape in ((0, 5), (5, 0)):
        crow = torch.zeros(shape[0] + 1, dtype=torch.int64)
        for pattern in (
            SparsePattern.from_csr(crow, none, shape),
            SparsePattern.from_coo(none, none, shape),
        ):
            found = analyse(pattern, (2, 2), True)
            assert found.tile_nnz is not None
            assert (found.tile_nnz.numel(), found.row_segments, found.runs) == (0, 0, 0)
