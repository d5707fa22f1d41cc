"""Mini-batches are right torch tensors, of one size or of ever new ones."""

from __future__ import annotations

import itertools

import pytest
import torch

import sddmm
from experiments.host_overhead.mini_batches import EDGES, NODES, SMALLER, K, batches, verify
from sddmm import SparsePattern


@pytest.mark.parametrize("new_sizes", [False, True])
def test_a_batch_is_a_sorted_matrix_with_the_features_of_both_ends(new_sizes: bool) -> None:
    sizes = set()
    for S, a, b in itertools.islice(batches(new_sizes, "cpu"), 4):
        m, n = S.shape
        edges = S.values().numel()
        assert (1 - SMALLER) * NODES < min(m, n) <= max(m, n) <= NODES
        assert (1 - SMALLER) * EDGES < edges <= EDGES
        assert a.shape == (m, K)
        assert b.shape == (n, K)
        SparsePattern.from_torch(S).check()
        rows = SparsePattern.from_torch(S).row_ids
        assert bool((torch.diff(rows * n + S.col_indices()) >= 0).all())
        sizes.add((m, n, edges))
    assert len(sizes) == (4 if new_sizes else 1)


def test_a_method_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    verify("cpu")
    right = sddmm.spmm
    monkeypatch.setattr(sddmm, "spmm", lambda S, dense: right(S, dense) + 1)
    with pytest.raises(AssertionError):
        verify("cpu")
