"""The costs of dense patterns, of small ones above all, as measured on an H200."""

from __future__ import annotations

import math

import pytest
import torch

from sddmm.backends.cuda.cost_model import further_rounds
from sddmm.backends.cuda.facts import UniformFacts
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.tile import TileKernel
from tests.sddmm.backends.cuda.test_cost_model import MODEL, best, no_measurement, problem

__all__ = ["no_measurement"]


@pytest.mark.parametrize(
    ("size", "nnz", "k", "name"),
    [
        (1024, 209_715, 64, "gather_lines"),  # 7.1 us; row_gather 7.7, tile_simt 7.4
        (1024, 209_715, 300, "tile_simt_sliced_64x64x16"),  # 20.6 us; tile_simt_64x64x32 23.8
        (1024, 104_857, 300, "gather_lines"),  # 13.3 us; tile_simt 23.4
        (3000, 450_000, 200, "windows"),  # 37.4 us; gather_lines 38.6
        (2048, 838_860, 300, "tile_simt_128x128x8"),  # 61.1 us; the sliced tile 68.4
        (800, 190_000, 250, "tile_simt_sliced_64x64x16"),  # as 18.0 us of 700 x 900; windows 21.7
    ],
)
def test_a_dense_pattern_finds_few_rows_in_l1_that_begin_within_lines(
    size: int, nnz: int, k: int, name: str
) -> None:
    """In float32 on an H200."""
    assert best(problem(size, nnz, k=k, dtype=torch.float32)) == name


@pytest.mark.parametrize(
    ("name", "nnz", "k", "us"),
    [
        ("row_gather", 209_715, 256, 19.9),
        ("row_gather", 209_715, 300, 28.4),
        ("gather_lines", 104_857, 300, 13.3),
        ("windows", 104_857, 300, 21.8),
        ("tile_simt_64x64x32", 209_715, 128, 11.3),
        ("tile_simt_64x64x32", 209_715, 200, 16.9),
        ("tile_simt_64x64x32", 209_715, 300, 23.0),
        ("tile_simt_sliced_64x64x16", 209_715, 300, 20.6),
        ("tile_simt_sliced_64x64x16", 524_288, 1024, 59.9),
        ("tile_simt_128x128x8", 209_715, 128, 19.7),
    ],
)
def test_small_dense_patterns_take_what_was_measured(
    name: str, nnz: int, k: int, us: float
) -> None:
    """Patterns of 1,024 x 1,024 in float32 on an H200."""
    facts = UniformFacts((1024, 1024), nnz)
    cost = SPECS[name].cost_us(problem(1024, nnz, k=k, dtype=torch.float32), facts, MODEL)
    assert cost is not None
    assert cost.run_us == pytest.approx(us, rel=0.1)


@pytest.mark.parametrize(
    ("size", "nnz", "k", "us"),
    [
        (2048, 838_860, 128, 30.4),
        (2048, 838_860, 1024, 184.8),
        (4096, 5_033_164, 512, 389.6),
        (2000, 1_000_000, 128, 30.6),  # the last tiles reach beyond the matrix
    ],
)
def test_tiles_of_128_take_what_pairs_of_them_do(size: int, nnz: int, k: int, us: float) -> None:
    """In float32 on an H200."""
    facts = UniformFacts((size, size), nnz)
    spec = SPECS["tile_simt_128x128x8"]
    cost = spec.cost_us(problem(size, nnz, k=k, dtype=torch.float32), facts, MODEL)
    assert cost is not None
    assert cost.run_us == pytest.approx(us, rel=0.1)


@pytest.mark.parametrize("mean", [15, 16, 100, 1000.5, 40_000])
def test_rows_are_stored_in_rounds_of_32_as_chance_spreads_them(mean: float) -> None:
    """The same as a sum over all rounds."""
    rounds = range(1, int(mean / 32) + 3)
    expected = sum(math.erfc((32 * i - mean) / math.sqrt(2 * mean)) / 2 for i in rounds)
    assert further_rounds(mean) == pytest.approx(expected, abs=1e-4)
    assert further_rounds(2.0**40) == pytest.approx(2**35, rel=1e-4)  # and that ends soon


def test_past_the_last_whole_stage_of_rows_an_element_of_k_takes_twice() -> None:
    rows, stages = (SPECS[f"tile_simt_64x64x{k}"] for k in (32, 16))
    assert isinstance(rows, TileKernel)
    assert isinstance(stages, TileKernel)
    assert [rows.timed_k(k) for k in (64, 68, 80, 95, 96)] == [64, 72, 96, 96, 96]
    assert [stages.timed_k(k) for k in (64, 68, 80, 95, 96)] == [64, 80, 80, 96, 96]
