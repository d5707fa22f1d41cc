"""What one pass over a pattern finds, on the CPU through the shim."""

from __future__ import annotations

import pytest
import torch

from sddmm.analysis import analyse, crow_of
from sddmm.choose import TileProfile
from sddmm.pattern import SparsePattern
from sddmm.testing import random_pattern
from tests.conftest import H200

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_rows_order_and_tiles(layout: str, index_dtype: torch.dtype) -> None:
    pattern = random_pattern(90, 70, 1100, layout=layout, index_dtype=index_dtype)
    found = analyse(pattern, H200, (32, 16), 75)
    assert found.rows_ascend
    assert found.columns_ascend
    assert torch.equal(found.rows.long(), pattern.row_ids.long())
    assert torch.equal(found.cols.long(), pattern.col_indices.long())
    assert found.rows.dtype == found.cols.dtype == torch.int32
    dense = torch.zeros(3 * 32, 5 * 16, dtype=torch.int64)
    dense[pattern.row_ids.long(), pattern.col_indices.long()] = 1
    counts = dense.view(3, 32, 5, 16).sum((1, 3)).flatten()
    assert found.counts is not None
    assert torch.equal(found.counts.long(), counts)
    worth = counts[counts >= 75]
    assert found.profile == TileProfile(int((counts > 0).sum()), len(worth), int(worth.sum()))
    crow = torch.searchsorted(pattern.row_ids.long(), torch.arange(91))
    assert torch.equal(crow_of(pattern, found.rows).long(), crow)


def test_orders_that_fall_are_seen() -> None:
    rows, cols = torch.tensor([0, 2, 1]), torch.tensor([5, 1, 1])
    found = analyse(SparsePattern.from_coo(rows, cols, (3, 6)), H200, None, 1)
    assert (found.rows_ascend, found.counts) == (False, None)
    crow, cols = torch.tensor([0, 1, 1, 4]), torch.tensor([5, 1, 3, 2])
    found = analyse(SparsePattern.from_csr(crow, cols, (3, 6)), H200, None, 1)
    assert (found.rows_ascend, found.columns_ascend) == (True, False)
    crow, cols = torch.tensor([0, 1, 1, 4]), torch.tensor([5, 1, 3, 3])
    assert analyse(SparsePattern.from_csr(crow, cols, (3, 6)), H200, None, 1).columns_ascend


def test_all_nonzeros_in_one_tile_are_counted() -> None:
    """Lanes of a warp add up before they add to memory."""
    pattern = SparsePattern.from_coo(torch.full((999,), 7), torch.full((999,), 8), (20, 20))
    counts = analyse(pattern, H200, (4, 4), 1).counts
    assert counts is not None
    assert int(counts[1 * 5 + 2]) == int(counts.sum()) == 999


@pytest.mark.parametrize(
    ("crow", "cols", "told"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "crow_indices"),
        ([1, 2, 2, 3], [0, 1, 2], "crow_indices must start with 0"),
        ([0, 2, 2, 9], [0, 1, 2], "crow_indices"),
        ([0, 1, 2, 3], [0, 4, 2], r"col_indices\[1\] is 4"),
        ([0, 1, 2, 3], [0, -1, 2], r"col_indices\[1\] is -1"),
    ],
)
def test_invalid_patterns_raise_what_check_says(
    crow: list[int], cols: list[int], told: str
) -> None:
    pattern = SparsePattern.from_csr(torch.tensor(crow), torch.tensor(cols), (3, 4))
    with pytest.raises(ValueError, match=told):
        analyse(pattern, H200, (2, 2), 1)


def test_rows_outside_the_shape_raise() -> None:
    pattern = SparsePattern.from_coo(torch.tensor([0, 3]), torch.tensor([0, 1]), (3, 4))
    with pytest.raises(ValueError, match=r"row_indices\[1\] is 3"):
        analyse(pattern, H200, (2, 2), 1)
