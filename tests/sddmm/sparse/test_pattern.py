"""SparsePattern: conversions, orders, statistics, and what happens when it changes in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sddmm import SparsePattern
from sddmm.sparse.views import group
from sddmm.testing import random_pattern


def test_row_ids_of_csr_name_the_row_of_every_nonzero() -> None:
    S = SparsePattern.from_csr(torch.tensor([0, 2, 2, 3]), torch.tensor([4, 1, 0]), (3, 5))
    assert S.row_ids.tolist() == [0, 0, 2]
    assert (S.nnz, S.is_csr, S.device.type) == (3, True, "cpu")


def test_views_by_row_and_by_column_of_unsorted_coo_with_duplicates() -> None:
    rows, cols = torch.tensor([2, 0, 2, 0, 2]), torch.tensor([1, 3, 0, 3, 1])
    S = SparsePattern.from_coo(rows, cols, (4, 5))
    by_row = S.by_row
    assert by_row.indptr.tolist() == [0, 2, 2, 5, 5]
    assert by_row.indices.tolist() == [3, 3, 0, 1, 1]
    assert by_row.perm is not None
    assert by_row.perm.tolist() == [1, 3, 2, 0, 4]
    by_column = S.by_column
    assert by_column.indptr.tolist() == [0, 1, 3, 3, 5, 5]
    assert by_column.indices.tolist() == [2, 2, 2, 0, 0]
    assert by_column.perm is not None
    assert by_column.perm.tolist() == [2, 0, 4, 1, 3]


def test_coo_with_ascending_rows_keeps_its_order_whatever_its_columns() -> None:
    S = SparsePattern.from_coo(torch.tensor([0, 0, 1]), torch.tensor([2, 0, 1]), (2, 3))
    assert S.by_row.perm is None
    assert S.to_csr().col_indices.tolist() == [2, 0, 1]


def test_views_of_strided_indices_are_contiguous() -> None:
    S = random_pattern(9, 7, 30)
    crow, rows, cols = (
        x.repeat_interleave(2)[::2] for x in (S.major_indices, S.row_ids, S.col_indices)
    )
    for strided in (
        SparsePattern.from_csr(crow, cols, (9, 7)),
        SparsePattern.from_coo(rows, cols, (9, 7)),
    ):
        for view in (strided.by_row, strided.by_column):
            assert view.indptr.is_contiguous()
            assert view.indices.is_contiguous()
        assert torch.equal(strided.by_row.indices, S.col_indices)


def test_a_view_survives_shapes_whose_product_overflows() -> None:
    big = 2**40
    rows, cols = torch.tensor([big - 1, 0, big - 1]), torch.tensor([5, big - 1, 2])
    ids = torch.tensor([2, 0, 2])
    view = group(ids, cols, (3, 2**62))
    assert view.indices.tolist() == [big - 1, 2, 5]
    SparsePattern.from_coo(rows, cols, (big, big)).check()


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_conversions_keep_the_matrix_and_the_dtype(index_dtype: torch.dtype) -> None:
    S = random_pattern(9, 7, 30, layout="coo", shuffled=True, index_dtype=index_dtype)
    dense = torch.zeros(9, 7)
    dense[S.row_ids, S.col_indices] = 1
    for other in (S.to_csr(), S.to_csr().to_coo()):
        back = torch.zeros(9, 7)
        back[other.row_ids, other.col_indices] = 1
        assert torch.equal(back, dense)
        assert other.index_dtype == index_dtype == other.major_indices.dtype
    assert S.to_csr().to_csr().is_csr


def test_row_lengths() -> None:
    S = SparsePattern.from_csr(torch.tensor([0, 3, 3, 4]), torch.tensor([0, 1, 2, 0]), (3, 3))
    assert S.row_lengths == (0, 4 / 3, 3, 1)
    assert random_pattern(0, 3, 0).row_lengths == (0, 0.0, 0, 0)


def test_fingerprints_tell_patterns_apart() -> None:
    S = random_pattern(9, 7, 30)
    assert S.fingerprint == random_pattern(9, 7, 30).fingerprint
    different = [
        random_pattern(9, 7, 30, seed=1),
        random_pattern(9, 7, 30, index_dtype=torch.int32),
        S.to_coo(),
        SparsePattern.from_csr(S.major_indices, S.col_indices, (9, 8)),
    ]
    assert len({S.fingerprint, *(other.fingerprint for other in different)}) == 5


def test_numpy_indices_are_taken() -> None:
    S = SparsePattern.from_coo(np.array([1, 0]), np.array([0, 1]), (2, 2))
    assert S.row_indices is not None
    assert S.row_indices.tolist() == [1, 0]


def test_a_change_in_place_is_seen_by_everything_derived() -> None:
    S = SparsePattern.from_coo(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2]), (3, 3))
    before = S.fingerprint
    assert S.by_row.indptr.tolist() == [0, 1, 3, 3]
    S.major_indices[0] = 2
    assert S.by_row.indptr.tolist() == [0, 0, 2, 3]
    assert S.fingerprint != before
    S.col_indices[1] = 7
    with pytest.raises(ValueError, match=r"col_indices\[1\] is 7"):
        S.check()


def test_a_change_is_seen_beside_a_tensor_whose_changes_torch_does_not_count() -> None:
    with torch.inference_mode():
        rows = torch.tensor([0, 1, 1])
    S = SparsePattern.from_coo(rows, torch.tensor([0, 1, 2]), (3, 3))
    before = S.fingerprint
    S.col_indices[1] = 0
    assert S.fingerprint != before


def test_a_pattern_is_either_csr_or_coo() -> None:
    with pytest.raises(ValueError, match="either crow_indices"):
        SparsePattern((1, 1), torch.tensor([0]))
