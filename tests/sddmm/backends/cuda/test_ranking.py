"""Which kernel the planner ranks first for classes of patterns, from facts made without a GPU.

Each choice was the fastest, or nearly, when all kernels were measured on an H200.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.facts import Block, CountedFacts, PatternFacts, TileCounts, UniformFacts
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.layouts import count_larger_tiles
from sddmm.backends.cuda.planning_context import PlanningContext
from sddmm.problem import SddmmProblem
from tests.conftest import H200

HALF, FLOAT = torch.float16, torch.float32
BASE = 16
SIZES = {size for kernel in KERNELS.values() for size in kernel.tile_sizes}


@pytest.fixture(autouse=True)
def _no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200's figures, whatever was measured here."""
    monkeypatch.setattr("sddmm.backends.cuda.planning_context.device_model", scaled_by_sm_count)


def classify(nnz: Tensor, block: Block) -> TileCounts:
    """The counts of tiles with so many nonzeros."""
    nnz = nnz[nnz > 0].long()
    classes = nnz.double().log2().floor().long()
    tiles = torch.bincount(classes, minlength=31).tolist()
    held = torch.bincount(classes, weights=nnz.double(), minlength=31).long().tolist()
    full = int((nnz == block[0] * block[1]).sum())
    return TileCounts(nnz.numel(), full, tuple(zip(tiles, held, strict=True)))


def facts_of_grid(grid: Tensor, runs: int) -> tuple[CountedFacts, Block, int]:
    """The facts of a pattern with so many nonzeros in each tile of 16 x 16; its shape, and them."""
    shape, nnz = (grid.shape[0] * BASE, grid.shape[1] * BASE), int(grid.sum())
    counts = {
        size: classify(count_larger_tiles(grid.flatten().int(), shape, (BASE, BASE), size), size)
        for size in SIZES
        if all(side % BASE == 0 and side & (side - 1) == 0 for side in size)
    }
    parts = BASE * int((grid > 0).sum())  # most of the rows of a tile have nonzeros, if one has
    return CountedFacts(nnz, runs, True, counts, ((BASE, min(nnz, parts)),)), shape, nnz


def of_rows(n: int, first: Tensor, last: Tensor) -> tuple[CountedFacts, Block, int]:
    """Each row is full from its first column to its last."""
    left = torch.arange(0, n, BASE)
    inside = torch.minimum(last[:, None] + 1, left + BASE) - torch.maximum(first[:, None], left)
    grid = inside.clamp(min=0).view(n // BASE, BASE, -1).sum(1)
    return facts_of_grid(grid, n)


@functools.cache
def causal(n: int = 8192) -> tuple[CountedFacts, Block, int]:
    rows = torch.arange(n)
    return of_rows(n, torch.zeros_like(rows), rows)


@functools.cache
def window(n: int = 16_384, reach: int = 256) -> tuple[CountedFacts, Block, int]:
    rows = torch.arange(n)
    return of_rows(n, (rows - reach).clamp(min=0), (rows + reach).clamp(max=n - 1))


@functools.cache
def packed(n: int = 16_384, documents: int = 16) -> tuple[CountedFacts, Block, int]:
    rows = torch.arange(n)
    return of_rows(n, rows // (n // documents) * (n // documents), rows)


@functools.cache
def blocks(side: int, n: int = 16_384, density: float = 0.05) -> tuple[CountedFacts, Block, int]:
    filled = torch.rand(n // side, n // side, generator=torch.Generator().manual_seed(1)) < density
    each = side // BASE
    grid = filled.repeat_interleave(each, 0).repeat_interleave(each, 1) * BASE * BASE
    return facts_of_grid(grid, int(filled.sum()) * side)


@functools.cache
def power_law(n: int = 32_768, nnz: int = 900_000) -> tuple[CountedFacts, Block, int]:
    generator = torch.Generator().manual_seed(1)
    at = (torch.rand(2, nnz, generator=generator, dtype=torch.float64) ** 3 * n).long()
    shuffled = torch.stack([torch.randperm(n, generator=generator)[i] for i in at])
    flat = shuffled[0] // BASE * (n // BASE) + shuffled[1] // BASE
    grid = torch.bincount(flat, minlength=(n // BASE) ** 2).view(n // BASE, -1)
    return facts_of_grid(grid, nnz)


def uniform(m: int, n: int, density: float) -> tuple[UniformFacts, Block, int]:
    nnz = max(1, round(m * n * density))
    return UniformFacts((m, n), nnz), (m, n), nnz


Facts = tuple[PatternFacts, Block, int]


def ranking(facts: Facts, k: int, dtype: torch.dtype = HALF, heads: int | None = None) -> list[str]:
    pattern_facts, (m, n), nnz = facts
    problem = SddmmProblem(
        m=m, n=n, k=k, nnz=nnz, dtype=dtype, out_dtype=dtype, precision="ieee",
        index_dtype=torch.int32, heads=heads, device=torch.device("cuda", 0),
    )  # fmt: skip
    predictions = PlanningContext(KERNELS, problem, H200).rank(pattern_facts)
    assert all(math.isfinite(p.cost.run_us) and p.cost.run_us > 0 for p in predictions)
    return [prediction.kernel.name for prediction in predictions]


@pytest.mark.parametrize("mask", [causal, window, packed], ids=["causal", "window", "packed"])
@pytest.mark.parametrize("heads", [None, 4, 8])
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_masks_are_computed_by_tiles(
    mask: Callable[[], Facts], heads: int | None, dtype: torch.dtype
) -> None:
    for k in (64, 128):
        assert ranking(mask(), k, dtype, heads)[0].startswith("tile_")


@pytest.mark.parametrize("mask", [causal, packed], ids=["causal", "packed"])
def test_masks_in_exact_float32_are_computed_by_cuda_cores(mask: Callable[[], Facts]) -> None:
    for k in (64, 128, 256):
        assert ranking(mask(), k, FLOAT)[0].startswith("tile_simt")


def test_blocks_are_computed_by_tiles_that_are_not_much_larger() -> None:
    assert ranking(blocks(16), 64)[0] == "tile_warp_16x16"
    assert "x16" in ranking(blocks(32), 64)[0] or "x32" in ranking(blocks(32), 64)[0]
    for side in (64, 128):
        tile = KERNELS[ranking(blocks(side), 64)[0]].tile_sizes[0]
        assert tile <= (side, side)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("k", [16, 64, 256])
def test_scattered_nonzeros_are_no_work_for_tiles(dtype: torch.dtype, k: int) -> None:
    for facts in (
        power_law(),
        uniform(549_000, 549_000, 3e-6),
        uniform(20_000, 20_000, 1e-4),
        uniform(300, 300, 0.02),
    ):
        assert ranking(facts, k, dtype)[0] in ("row_gather", "gather_lines", "windows")


@pytest.mark.parametrize("k", [64, 256, 1024])
def test_dense_uniform_patterns_are_computed_by_tiles(k: int) -> None:
    for density in (0.1, 0.3, 0.6):
        assert ranking(uniform(8192, 8192, density), k)[0].startswith("tile_")
    assert ranking(uniform(512, 2048, 0.3), k)[0].startswith("tile_")
    assert ranking(uniform(4096, 4096, 0.3), k, FLOAT)[0].startswith("tile_simt")


def test_one_long_row_or_column_is_gathered() -> None:
    """One row of 128 holds nonzeros: most of a tile would be computed for nothing."""
    grid = torch.zeros(8, 65_536)
    grid[0] = BASE - 3
    facts, shape, nnz = facts_of_grid(grid, int(grid.sum()) * 3 // BASE)
    row = facts, (shape[0], shape[1]), nnz
    assert not ranking(row, 64, FLOAT)[0].startswith("tile_")
    facts, shape, nnz = facts_of_grid(grid.mT.contiguous(), int(grid.sum()))
    assert not ranking((facts, shape, nnz), 64, FLOAT)[0].startswith("tile_")


def test_tall_and_wide_patterns_are_ranked() -> None:
    for shape in ((500_000, 100), (100, 500_000)):
        for dtype in (HALF, FLOAT):
            names = ranking(uniform(*shape, 0.1), 64, dtype)
            assert "row_gather" in names
            assert any(name.startswith("tile_") for name in names)
