"""Training steps on mini-batches are verified, ours and torch's, on edges in any order."""

from __future__ import annotations

import itertools

import pytest
import torch

from experiments.host_overhead import mini_batch_steps
from experiments.host_overhead.mini_batch_steps import ATTENTION, PRODUCTS, K, batches, verify


def test_a_batch_has_edges_in_any_order_and_sizes_of_its_own() -> None:
    sizes = set()
    for batch in itertools.islice(batches(2_000, 30_000, "cpu"), 3):
        nodes, edges = batch.q.shape[0], batch.weights.numel()
        assert 1_800 < nodes <= 2_000
        assert 27_000 < edges <= 30_000
        assert batch.edges.shape == (2, edges)
        assert 0 <= int(batch.edges.min()) <= int(batch.edges.max()) < nodes
        assert bool((batch.edges.diff() < 0).any(1).all())
        assert all(x.shape == (nodes, K) and x.requires_grad for x in (batch.q, batch.k, batch.v))
        sizes.add((nodes, edges))
    assert len(sizes) == 3


@pytest.mark.parametrize("name", [*ATTENTION, *PRODUCTS])
@pytest.mark.parametrize("part", ["output", "gradient"])
def test_a_step_that_is_wrong_is_not_timed(
    name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini_batch_steps, "SIZES", ((40, 300),))
    verify("cpu")
    methods = ATTENTION if name in ATTENTION else PRODUCTS
    right = methods[name]

    def wrong(batch: mini_batch_steps.Batch) -> torch.Tensor:
        out = right(batch)
        return out + 1 if part == "output" else 2 * out - out.detach()

    monkeypatch.setitem(methods, name, wrong)
    with pytest.raises(AssertionError):
        verify("cpu")
