"""Nonzeros by row on the CPU: found and checked in parts, as the pattern's own view and check."""

from __future__ import annotations

import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.backends.cpu import rows
from sddmm.testing import random_pattern
from tests.sddmm.patterns import of_lengths

PATTERNS = {
    "csr": random_pattern(20, 30, 200),
    "coo by row": random_pattern(20, 30, 200, layout="coo"),
    "coo shuffled": random_pattern(20, 30, 200, layout="coo", shuffled=True),
    "empty rows": of_lengths([0, 0, 7, 0, 3, 0]).to_coo(),
    "no nonzeros": SparsePattern.from_coo(*torch.zeros(2, 0, dtype=torch.int64), (3, 4)),
    "no rows": SparsePattern.from_coo(*torch.zeros(2, 0, dtype=torch.int64), (0, 4)),
    "blocks": SparsePattern.from_bsr(
        torch.tensor([0, 2, 2, 3]), torch.tensor([1, 0, 2]), (2, 3), (6, 9)
    ),
}


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK", 16)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", PATTERNS)
def test_the_view_is_the_patterns(kind: str, index_dtype: torch.dtype) -> None:
    pattern = PATTERNS[kind].map_indices(lambda x: x.to(index_dtype, copy=True))
    view, expected = rows.by_row(pattern), pattern.by_row
    for own, other in zip(view, expected, strict=True):
        assert (own is None) == (other is None)
        if own is not None:
            assert own.dtype == other.dtype
            assert torch.equal(own, other)


@pytest.mark.parametrize("at", [0, 15, 16, 199])
@pytest.mark.parametrize("value", [-1, 30])
@pytest.mark.parametrize("kind", ["csr", "coo by row", "coo shuffled"])
def test_an_index_outside_is_named_wherever_it_is(kind: str, value: int, at: int) -> None:
    pattern = PATTERNS[kind].clone()
    pattern.col_indices[at] = value
    a, b = torch.randn(20, 3), torch.randn(3, 30)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"col_indices\[{at}\] is {value}; valid are 0..29"):
            sddmm.sddmm(pattern, a, b)
    pattern.col_indices[at] = 29
    sddmm.sddmm(pattern, a, b)
    if not pattern.is_csr:
        pattern.major_indices[at] = 20
        with pytest.raises(ValueError, match=rf"row_indices\[{at}\] is 20; valid are 0..19"):
            sddmm.sddmm(pattern, a, b)


@pytest.mark.parametrize(("at", "value"), [(0, 1), (7, 201), (19, 201), (20, 199), (20, 201)])
def test_wrong_crow_indices_are_refused_by_products_and_samples(at: int, value: int) -> None:
    pattern = PATTERNS["csr"].clone()
    pattern.major_indices[at] = value
    a, b = torch.randn(20, 3), torch.randn(3, 30)
    for _ in range(2):
        with pytest.raises(ValueError, match="crow_indices must"):
            sddmm.sddmm(pattern, a, b)
        with pytest.raises(ValueError, match="crow_indices must"):
            sddmm.spmm(pattern, b.mT, values=torch.ones(200))
        with pytest.raises(ValueError, match="crow_indices must"):
            sddmm.plan(pattern, k=3, dtype=a.dtype)
