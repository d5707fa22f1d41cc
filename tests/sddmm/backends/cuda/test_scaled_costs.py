"""What multiplying by S's values adds to the predicted times, and which kernel is chosen then."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cuda.facts import UniformFacts
from sddmm.problem import SddmmProblem
from tests.sddmm.backends.cuda.test_cost_model import (
    MODEL,
    best,
    context,
    no_measurement,
    problem,
    tile_kernel,
)

__all__ = ["no_measurement"]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (problem(10_000, 100_000), "row_gather"),
        (problem(10_000, 1_000_000), "windows"),
        (problem(10_000, 5_000_000), "tile_wgmma_panel"),
        (problem(10_000, 20_000_000, k=64), "tile_wgmma_listed"),
        (problem(4_096, 10_000_000, k=128), "tile_wgmma_listed"),
        (problem(10_000, 20_000_000, k=128, dtype=torch.float32), "windows"),
        (problem(2_000_000, 1_000_000, k=64), "row_gather"),
    ],
)
def test_the_quickest_as_measured_is_chosen_for_scaled_samples(
    asked: SddmmProblem, name: str
) -> None:
    assert best(asked._replace(scaled=True)).startswith(name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_scaling_takes_time_in_every_kernel(dtype: torch.dtype) -> None:
    plain = problem(10_000, 20_000_000, 64, dtype)
    facts = UniformFacts((10_000, 10_000), plain.nnz)
    costs = {
        kernel.name: tuple(
            kernel.cost_us(asked, facts, MODEL) for asked in (plain, plain._replace(scaled=True))
        )
        for kernel in context(plain).serving
        if not kernel.parts
    }
    assert len(costs) > 3
    for name, (before, after) in costs.items():
        if before is not None and after is not None:
            assert after.run_us > 1.001 * before.run_us, name


def test_tiles_of_a_mask_multiply_in_less_time_than_those_of_scattered_nonzeros() -> None:
    """Values of a segment are loaded together; by another launch they take the same in both."""
    nnz = 2_621_440
    asked = problem(10_000, nnz, 64)
    extra = {}
    for name in ("tile_mma_64x64x32", "tile_wgmma_listed_128x256x64"):
        kernel = tile_kernel(name)
        tiles = nnz // (kernel.block[0] * kernel.block[1])
        for runs in (nnz, nnz // 64):
            us = [
                kernel.tiles_us(each, tiles, nnz - 64, runs, MODEL)
                for each in (asked, asked._replace(scaled=True))
            ]
            extra[name, runs] = us[1] - us[0]
    scattered, mask, *others = extra.values()
    assert mask < scattered / 3
    assert others[0] == pytest.approx(others[1])
