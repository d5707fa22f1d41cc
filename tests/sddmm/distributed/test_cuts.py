"""Cuts give every rank consecutive rows, and as many rows or nonzeros as they can."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from sddmm.distributed import cuts


@pytest.mark.parametrize("rows", [0, 1, 7, 10, 64])
@pytest.mark.parametrize("parts", [1, 2, 4, 9])
def test_rows_are_cut_as_torch_chunks_them(rows: int, parts: int) -> None:
    chunks = [x.numel() for x in torch.arange(rows).chunk(parts)] if rows else []
    assert [size for size in cuts.sizes(cuts.by_rows(rows, parts)) if size] == chunks[
        : rows or None
    ]


def test_with_replicas_parts_are_chunks_of_chunks() -> None:
    assert cuts.by_rows(10, 4, replicas=2) == (0, 3, 5, 8, 10)
    assert cuts.by_rows(3, 4, replicas=2) == (0, 1, 2, 3, 3)


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("seed", range(4))
def test_no_part_has_more_than_its_share_and_a_row(parts: int, seed: int) -> None:
    lengths = torch.randint(0, 9, (40,), generator=torch.Generator().manual_seed(seed)) ** 2
    cut = cuts.by_nonzeros(lengths, parts)
    assert (cut[0], cut[-1], len(cut)) == (0, 40, parts + 1)
    for begin, end in pairwise(cut):
        assert begin <= end
        assert int(lengths[begin:end].sum()) <= int(lengths.sum()) / parts + int(lengths.max())


def test_rows_without_nonzeros_are_cut_evenly() -> None:
    assert cuts.by_nonzeros(torch.zeros(6, dtype=torch.int64), 3) == (0, 2, 4, 6)


def test_equal_rows_are_cut_into_equal_parts() -> None:
    assert cuts.by_nonzeros(torch.full((8,), 3), 4) == (0, 2, 4, 6, 8)
    assert cuts.by_nonzeros(torch.tensor([9, 1, 1, 1, 6]), 2) == (0, 1, 5)
