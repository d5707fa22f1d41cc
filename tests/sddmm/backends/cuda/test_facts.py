"""The facts of a pattern: its runs, its tiles of every size, the parts of its rows."""

from __future__ import annotations

import pytest
import torch

import sddmm
from sddmm.backends.cuda.facts import (
    Block,
    CountedFacts,
    TileCounts,
    UniformFacts,
    fewest_tiles,
)
from sddmm.backends.cuda.pattern_layouts import PatternLayouts, base_tile
from sddmm.backends.cuda.transposed_layouts import TransposedLayouts
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import emulated_gpu, random_pattern
from tests.conftest import H200

SIZES = ((64, 64), (64, 128), (128, 64), (128, 256), (256, 128), (16, 16))


def count(mask: torch.Tensor, block: Block) -> TileCounts:
    """By slicing the dense mask."""
    tiles = [tile for band in mask.split(block[0]) for tile in band.split(block[1], dim=1)]
    nnz = [int(tile.sum()) for tile in tiles]
    by_class = [[0, 0] for _ in range(31)]
    for entries in nnz:
        if entries:
            by_class[entries.bit_length() - 1][0] += 1
            by_class[entries.bit_length() - 1][1] += entries
    full = sum(entries == tile.numel() for entries, tile in zip(nnz, tiles, strict=True))
    return TileCounts(sum(n > 0 for n in nnz), full, tuple((t, n) for t, n in by_class))


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("shape", [(300, 470), (70, 1030), (16, 16)])
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:-1]])
def test_tiles_of_every_size_are_counted(shape: Block, sizes: tuple[Block, ...]) -> None:
    """A causal mask with scattered nonzeros above: full tiles, at the edges too, and empty ones."""
    mask = torch.ones(shape, dtype=torch.bool).tril()
    mask |= torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.001
    rows, cols = mask.nonzero(as_tuple=True)
    pattern = SparsePattern.from_coo(rows, cols, shape)
    facts = PatternLayouts(pattern, H200, sizes).facts()
    for block in sizes:
        assert facts.tiles(block) == count(mask, block)
    assert facts.tiles((32, 48)) is None
    assert facts.ascends
    begins = mask.clone()
    begins[:, 1:] &= ~mask[:, :-1]
    assert facts.runs == int(begins.sum())


@pytest.mark.parametrize("block", [*SIZES, (64, 152)])
@pytest.mark.parametrize("width", [16, 64, 256])
@pytest.mark.parametrize("scattered", [0.001, 0.02, 0.3])
def test_no_pattern_has_fewer_or_denser_tiles_than_its_parts_of_rows_allow(
    block: Block, width: int, scattered: float
) -> None:
    """Dense blocks, some as large as tiles, among scattered nonzeros; one of 152 columns lies in
    two parts of each row. width: of the parts."""
    mask = torch.rand(600, 700, generator=torch.Generator().manual_seed(1)) < scattered
    mask[256:384, 256:512] = True
    mask[:9, :256] = True
    mask[448:512, 152:304] = True
    nnz, found = int(mask.sum()), count(mask, block)
    parts = sum(int(columns.any(1).sum()) for columns in mask.split(width, dim=1))
    bound = fewest_tiles(nnz, parts, width, block)
    assert 0 < bound.nonempty <= found.nonempty
    for least in range(20):
        assert found.from_class(least)[1] <= bound.from_class(least)[1] <= nnz
        assert bound.from_class(least)[0] * block[0] * block[1] <= bound.from_class(least)[1]
    alone = fewest_tiles(nnz, nnz, 2 * block[1], block)  # each nonzero has a part of its own
    assert alone.from_class(block[0].bit_length())[1] == 0


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("by_column", [False, True])
def test_tiles_of_nonzeros_in_any_order_are_not_counted_if_they_cannot_pay(
    by_column: bool,
) -> None:
    """A scattered pattern needs no count; a full one of the same order does."""
    for size, is_counted in ((20_000, False), (400, True)):
        pattern = random_pattern(size, size, 100_000, layout="coo")
        order = pattern.col_indices.sort(stable=True).indices
        order = order if by_column else order.flip(0)
        pattern = SparsePattern.from_coo(
            pattern.row_ids[order], pattern.col_ids[order], pattern.shape
        )
        with emulated_gpu() as launches:
            sddmm.plan(pattern, k=256, dtype=torch.float16)
        assert ("tile_stats" in launches) == is_counted


@pytest.mark.usefixtures("kernels_on_cpu")
def test_a_pattern_that_is_not_sorted_has_the_same_tiles() -> None:
    pattern = random_pattern(200, 300, 2000, layout="coo")
    mixed = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    shuffled = SparsePattern.from_coo(
        pattern.row_indices[mixed], pattern.col_indices[mixed], pattern.shape
    )
    facts, other = (PatternLayouts(p, H200, SIZES).facts() for p in (pattern, shuffled))
    assert [facts.tiles(size) for size in SIZES] == [other.tiles(size) for size in SIZES]
    assert (facts.ascends, other.ascends) == (True, False)


def test_a_pattern_is_counted_once() -> None:
    pattern = random_pattern(200, 300, 2000)
    with emulated_gpu() as launches:
        first = PatternLayouts(pattern, H200, SIZES).facts()
        assert PatternLayouts(pattern, H200, SIZES).facts() is first
    assert launches == ["analyse", *["tile_stats"] * len(SIZES)]


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("is_sorted", [True, False])
def test_the_facts_of_a_transpose_follow_from_the_pattern(is_sorted: bool) -> None:
    """They are those of an analysis of the transpose itself. is_sorted: columns ascend in rows."""
    mask = torch.ones(150, 230, dtype=torch.bool).tril()
    mask |= torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.01
    rows, cols = mask.nonzero(as_tuple=True)
    pattern = SparsePattern.from_coo(rows, cols if is_sorted else 229 - cols, mask.shape)
    facts = TransposedLayouts(pattern, H200, SIZES).facts()
    analysed = PatternLayouts(pattern.T, H200, SIZES).facts()
    assert {size: facts.tiles(size) for size in SIZES} == dict(analysed.counts)
    assert not facts.ascends
    assert facts.ascends_by_column == analysed.ascends_by_column == is_sorted
    assert facts.nnz == analysed.nnz
    # No analysis counts the parts of its rows: they are estimated by the smallest tiles.
    ((width, parts),) = facts.parts
    dense = torch.zeros(240, 240).index_put_((pattern.row_ids, pattern.col_indices), torch.ones(()))
    exact = int(dense.view(-1, width, 240).any(1).sum())
    assert 0.95 * exact < parts < 1.15 * exact
    if is_sorted:
        assert (facts.runs, facts.distinct) == (analysed.runs, analysed.distinct)


def test_the_tiles_that_are_counted_are_as_large_as_memory_demands() -> None:
    masks = SIZES[:-1]
    assert base_tile((16_384, 16_384), 10, masks) == ((64, 64), masks)
    assert base_tile((16_384, 16_384), 10, SIZES) == ((16, 16), SIZES)
    assert base_tile((16_384, 16_384), 10, ((128, 224), (64, 64))) == ((64, 64), ((64, 64),))
    # Two million rows and columns: 977 million tiles of 64 x 64 are too many for a few nonzeros.
    vast = (2_000_000, 2_000_000)
    assert base_tile(vast, 15_000_000, masks) == (None, ())
    assert base_tile(vast, 15_000_000, (*masks, (256, 256))) == ((256, 256), ((256, 256),))
    assert base_tile(vast, 260_000_000, masks) == ((64, 64), masks)
    assert base_tile(vast, 65_000_000, masks) == ((128, 128), ((128, 256), (256, 128)))
    assert base_tile((100, 100), 10, ()) == (None, ())


def test_dense_tiles_are_those_from_a_class_on() -> None:
    counts = TileCounts(6, 0, ((1, 1), (2, 5), (0, 0), (3, 30)))
    assert counts.from_class(0) == (6, 36)
    assert counts.from_class(2) == (3, 30)
    assert counts.from_class(9) == (0, 0)


def test_tiles_of_several_classes_are_uneven() -> None:
    """Half of the tiles hold one nonzero, half of them three: 2 on average, and 1 off."""
    assert TileCounts(20, 0, ((10, 10), (10, 30))).unevenness == pytest.approx(0.5)
    assert TileCounts(20, 0, ((0, 0), (20, 50))).unevenness == pytest.approx(0)
    assert TileCounts(20, 20, ((10, 10), (10, 30))).unevenness == 0  # as the fewest are counted
    assert TileCounts(0, 0, ()).unevenness == TileCounts(20, 0, ()).unevenness == 0


def test_a_uniform_pattern_fills_the_tiles_that_chance_would() -> None:
    facts = UniformFacts((1000, 1000), 500_000)
    assert facts.tiles((100, 250)) == TileCounts(40, 0, (*((0, 0),) * 13, (40, 500_000)))
    assert facts.runs == 250_000
    few = UniformFacts((1000, 1000), 30)
    assert few.tiles((100, 250)).nonempty == 30
    assert UniformFacts((1000, 1000), 30, every_tile=True).tiles((100, 250)).nonempty == 40
    assert UniformFacts((0, 1000), 0).tiles((100, 250)) == TileCounts(0, 0, ())
    assert UniformFacts((10, 10), 100).tiles((5, 5)).full == 4
    assert facts.row_parts(250) == pytest.approx(4000)


def test_parts_of_rows_are_estimated_between_the_widths_that_were_counted() -> None:
    facts = CountedFacts(8000, 8000, True, {}, ((16, 4000), (256, 1000)))
    assert facts.row_parts(1) == 8000
    assert facts.row_parts(16) == pytest.approx(4000)
    assert facts.row_parts(64) == pytest.approx(2000)
    assert facts.row_parts(1024) == pytest.approx(500)
    assert CountedFacts(8000, 8000, True, {}, ()).row_parts(99) == 8000
    assert CountedFacts(0, 0, True, {}, ((16, 0),)).row_parts(99) == 0
