"""Work arrays hold every nonzero once, in the order that their kernels ask for."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cuda import layouts
from sddmm.backends.cuda.layouts import (
    Nonzeros,
    by_row,
    by_row_and_column,
    nonzeros_outside,
    tile_ids,
    tile_list,
    window_list,
)
from sddmm.backends.cuda.pattern_layouts import AheadLayouts, PatternLayouts
from sddmm.backends.cuda.spec import AnalysisRequest
from sddmm.sparse.pattern import SparsePattern
from tests.conftest import H200


def scattered(m: int, n: int, count: int) -> Nonzeros:
    generator = torch.Generator().manual_seed(count)
    rows = torch.randint(m, (count,), generator=generator, dtype=torch.int32)
    cols = torch.randint(n, (count,), generator=generator, dtype=torch.int32)
    return Nonzeros(rows, cols, None)


@pytest.mark.parametrize(("size", "few"), [(9, 0), (2**16, 1000), (2**16, 0)])
@pytest.mark.parametrize("columns_ascend", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_sorting_keeps_duplicates_in_order_and_tells_places(
    size: int, few: int, columns_ascend: bool, permuted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one key, of 32 bits or, as few nonzeros are, of 64, and by two."""
    monkeypatch.setattr(layouts, "FEW_NONZEROS", few)
    given = scattered(9, 7, 300)
    if size > 9:  # keys that are equal in their low 32 bits are not
        given = given._replace(rows=given.rows * (size // 9))
    if columns_ascend:
        given = given._replace(cols=given.cols.sort().values)
    if permuted:
        given = given._replace(perm=torch.arange(300, dtype=torch.int32).flip(0))
    shape = (size, size)
    sorts = [by_row_and_column(given, shape), *([by_row(given)] if columns_ascend else [])]
    for found in sorts:
        keys = found.rows.long() * size + found.cols
        assert bool((keys.diff() >= 0).all())
        assert found.perm is not None
        index = 299 - found.perm.long() if permuted else found.perm.long()
        assert torch.equal(given.rows[index], found.rows)
        assert torch.equal(given.cols[index], found.cols)
        same = keys.diff() == 0
        assert bool((index.diff()[same] > 0).all())


def test_tiles_and_the_nonzeros_outside_them_cover_the_pattern() -> None:
    given, shape, block = scattered(100, 90, 400), (100, 90), (16, 32)
    ids = tile_ids(given, 90, block)
    counts = torch.bincount(ids, minlength=7 * 3)
    chosen = int((counts >= 20).sum())
    tiles = tile_list(counts, shape, block, 20)
    assert tiles.length == chosen
    inside = {(int(row), int(column)) for row, column in tiles.coords}
    rest = nonzeros_outside(given, ids, counts, 20)
    left = {(int(row) // 16, int(col) // 32) for row, col in zip(*rest[:2], strict=True)}
    assert not inside & left
    held = sum(int(counts[row * 3 + column]) for row, column in inside)
    assert held + len(rest.rows) == 400
    assert rest.perm is not None
    assert torch.equal(given.cols[rest.perm.long()], rest.cols)


def test_every_tile_is_listed_once_in_bands() -> None:
    places = tile_list(torch.ones(9 * 5), (9 * 256, 5 * 256), (256, 256), 1).coords
    assert len({tuple(place) for place in places.tolist()}) == 45
    assert places[:9].tolist() == [[row, 0] for row in range(8)] + [[0, 1]]  # 2048 rows
    assert places[-1].tolist() == [8, 4]


def test_tiles_of_more_rows_than_columns_are_listed_by_pairs_side_by_side() -> None:
    places = tile_list(torch.ones(9 * 5), (9 * 256, 50), (256, 10), 1).coords
    assert len({tuple(place) for place in places.tolist()}) == 45
    pairs = [[row, column] for row in range(8) for column in (0, 1)]
    assert places[:17].tolist() == [*pairs, [0, 2]]
    assert places[-1].tolist() == [8, 4]


@pytest.mark.parametrize("window", [(30, 12), (11, 12), (1, 50)])
def test_windows_hold_every_nonzero_once_in_pairs_of_one_row(window: tuple[int, int]) -> None:
    """With 12 columns a row has 0 to 8 nonzeros in a window, some of them duplicates."""
    given = by_row_and_column(scattered(30, 50, 600), (30, 50))
    assert given.perm is not None
    found = window_list(given, (30, 50), window)
    assert all(x.dtype == torch.int32 for x in vars(found).values())
    assert found.window_pairs.tolist()[0] == 0
    assert found.window_pairs.tolist()[-1] == len(found.pairs)
    number = torch.arange(len(found.window_columns)).repeat_interleave(found.window_pairs.diff())
    assert bool((found.pairs[:, 0].diff()[number.diff() == 0] >= 0).all())
    band = torch.arange(-(-30 // window[0])).repeat_interleave(found.band_windows.diff())
    assert torch.equal(found.pairs[:, 0] // window[0], band[number].int())

    slots = torch.stack([found.pairs[:, 1] & 0xFFFF, found.pairs[:, 1] >> 16], dim=1)
    assert int(slots.max()) < window[1]
    computed = found.positions >= 0
    assert bool(computed[:, 0].all())
    assert torch.equal(slots[~computed[:, 1], 0], slots[~computed[:, 1], 1])
    back = given.perm.argsort()[found.positions[computed].long()]
    assert sorted(back.tolist()) == list(range(600))
    assert torch.equal(given.rows[back], found.pairs[:, :1].expand(-1, 2)[computed])
    assert torch.equal(given.cols[back], (slots + found.window_columns[number, None])[computed])


def test_each_row_has_at_most_one_nonzero_without_a_mate_in_a_window() -> None:
    given = by_row_and_column(scattered(30, 50, 600), (30, 50))
    found = window_list(given, (30, 50), (30, 12))
    counts = torch.bincount(given.rows.long() * 5 + given.cols // 12)
    assert len(found.pairs) == int(((counts + 1) // 2).sum())


def test_windows_without_nonzeros_are_not_listed() -> None:
    rows, cols = torch.tensor([0, 0, 5], dtype=torch.int32), torch.tensor([9, 90_001, 90_000])
    found = window_list(Nonzeros(rows, cols.int(), None), (7, 99_000), (2, 30_000))
    assert found.window_columns.tolist() == [0, 90_000, 90_000]
    assert found.band_windows.tolist() == [0, 2, 2, 3, 3]


def test_windows_of_a_pattern_without_nonzeros_are_empty() -> None:
    found = window_list(scattered(3, 50, 0), (3, 50), (2, 12))
    assert found.pairs.shape == found.positions.shape == (0, 2)
    assert found.window_pairs.tolist() == [0]
    assert found.band_windows.tolist() == [0, 0, 0]


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize(
    ("cols", "distinct", "runs"),
    [([0, 1, 2, 5, 3, 4], True, 3), ([0, 1, 1, 5, 3, 4], False, 4), ([2, 1, 0, 5, 3, 4], False, 0)],
)
def test_tiles_tell_whether_columns_strictly_ascend(
    cols: list[int], distinct: bool, runs: int
) -> None:
    """Nonzeros that had to be sorted are no segments of the output, whatever their columns."""
    pattern = SparsePattern.from_csr(torch.tensor([0, 4, 6]), torch.tensor(cols), (2, 6))
    work = PatternLayouts(pattern, H200).tiles((2, 4))
    assert (work.distinct, work.runs) == (distinct, runs)


@pytest.mark.usefixtures("kernels_on_cpu")
def test_tiles_prepared_ahead_tell_it_when_the_analysis_is_done() -> None:
    cols = torch.tensor([0, 1, 2, 5, 3, 4])
    pattern = SparsePattern.from_csr(torch.tensor([0, 4, 6]), cols, (2, 6))
    layouts = AheadLayouts(pattern, H200, AnalysisRequest((2, 4), tile_row_offsets=True))
    work = layouts.tiles((2, 4))
    assert (work.distinct, work.runs) == (False, 0)
    layouts.wait()
    assert (work.distinct, work.runs) == (True, 3)
    again = AheadLayouts(pattern, H200, layouts.wait().request)
    work = again.tiles((2, 4))
    again.wait()
    assert (work.distinct, work.runs) == (True, 3)


@pytest.mark.usefixtures("kernels_on_cpu")
def test_each_request_gets_an_analysis_that_holds_it() -> None:
    pattern = SparsePattern.from_csr(torch.tensor([0, 2, 3]), torch.tensor([0, 4, 3]), (2, 6))
    layouts = PatternLayouts(pattern, H200)
    offsets = AnalysisRequest((2, 4), tile_row_offsets=True)
    assert layouts.analysis(offsets).offsets is not None
    assert layouts.by_row().rows.tolist() == [0, 0, 1]
    with_counts = AnalysisRequest((2, 4), count_tiles=True)
    assert layouts.analysis(with_counts).request == with_counts
    assert layouts.analysis(offsets) is layouts.analysis(offsets)
