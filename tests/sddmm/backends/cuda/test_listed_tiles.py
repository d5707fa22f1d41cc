"""First calls that look whether a pattern is a mask, and launch only tiles that are not empty."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from sddmm.backends.cuda.kernels.column_runs.host import looks_like_mask
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.kernels.tile_list.host import TileLister
from sddmm.backends.cuda.layouts import TileList
from sddmm.backends.cuda.tile_costs import MostTiles
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, assert_close, emulated_gpu
from tests.sddmm.backends.cuda.tiled_runs import (
    BLOCK,
    PERSISTENT,
    K,
    M,
    N,
    choose_tiles,
    mask,
    new_tensor,
    operands,
    scattered,
)
from tests.sddmm.memory import at_a_cliff

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")


def lists_of_tiles(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """The tiles that calls list from now on: tile row and tile column of each."""
    listed: list[list[tuple[int, ...]]] = []
    wait = TileLister.wait

    def noted(lister: TileLister, tiles: TileList) -> TileList:
        found = wait(lister, tiles)
        listed.append([tuple(tile) for tile in found.coords.tolist()])
        return found

    monkeypatch.setattr(TileLister, "wait", noted)
    return listed


def runs_of(pattern: SparsePattern) -> int:
    """The maximal sequences of nonzeros of a row in consecutive columns."""
    rows, cols = pattern.to_coo().row_indices, pattern.col_indices
    return 1 + int(((cols.diff() != 1) | (rows.diff() != 0)).sum())


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("columns", "is_mask"),
    [
        (range(1000), True),
        (range(0, 2000, 2), False),
        (range(3), True),
        ([3, 2, 1], False),
        ([7], True),  # which no pair tells
        ([], True),
        ([x + x // 4 for x in range(4000)], True),  # runs of four
        ([x + x // 3 for x in range(4000)], False),  # of three
        ([*range(0, 900, 3), *range(3000), *range(0, 900, 3)], True),  # in six of eight places
        ([*range(0, 900, 3), *range(900), *range(0, 900, 3)], False),  # in four
        ([*range(900), *range(0, 2700, 3)], False),
    ],
)
def test_a_pattern_looks_like_a_mask_by_its_runs_of_columns(
    columns: Sequence[int], is_mask: bool, index_dtype: torch.dtype
) -> None:
    cols = at_a_cliff(torch.tensor(columns, dtype=index_dtype))
    with emulated_gpu():
        assert looks_like_mask(H200, cols) == is_mask


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("kind", ["int32", "int64", "coo"])
@pytest.mark.parametrize("name", [BLOCK, PERSISTENT])
def test_tiles_without_nonzeros_are_not_launched(
    name: str, kind: str, heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_tiles(monkeypatch, name, lists_tiles=True)
    listed = lists_of_tiles(monkeypatch)
    pattern, (a, b) = mask(reach=5), operands(heads=heads)
    index_dtype = torch.int64 if kind == "int64" else torch.int32
    S = new_tensor(pattern, index_dtype, "coo" if kind == "coo" else "csr")
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b, scale=False)
    assert launches == ["analyse", "tile_list", name]
    block_m, block_n = KERNELS[name].tile_sizes[0]
    rows, cols = pattern.to_coo().row_indices, pattern.col_indices
    expected = set(zip((rows // block_m).tolist(), (cols // block_n).tolist(), strict=True))
    assert [set(tiles) for tiles in listed] == [expected]
    assert len(listed[0]) == len(expected)
    assert_close(product if heads else product.values(), S, a, b, scale=False)


@pytest.mark.parametrize("columns", [1, 64, 65, 33 * 64, 33 * 64 + 1])
@pytest.mark.parametrize("rows", [1, 64, 65, 129])
def test_tiles_are_listed_up_to_the_last_row_and_column(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block lists two rows of 32 tiles: there are 1 to 3 rows, and 1, 2, 33 and 34 columns."""
    choose_tiles(monkeypatch, BLOCK, lists_tiles=True)
    corner = SparsePattern.from_csr(
        torch.tensor([0] * rows + [1]), torch.tensor([columns - 1]), (rows, columns)
    )
    a, b = torch.randn(rows, K).half(), torch.randn(columns, K).half().mT
    S = new_tensor(corner)
    for _ in range(2):  # the second list begins at none, too
        with emulated_gpu() as launches:
            product = sddmm.sddmm(new_tensor(corner), a, b, scale=False)
        assert launches == ["analyse", "tile_list", BLOCK]
        assert_close(product.values(), S, a, b, scale=False)


def test_a_list_of_tiles_that_nobody_took_leaves_nothing_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of a wrong pattern, of one whose columns fall, and of a call that was interrupted."""
    choose_tiles(monkeypatch, BLOCK, lists_tiles=True)
    near, (a, b) = mask(), operands()
    wrong = new_tensor(near)
    wrong.col_indices()[-1] = N
    falling = SparsePattern.from_csr(near.crow_indices, N - 1 - near.col_indices, (M, N))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with emulated_gpu() as launches:
        with pytest.raises(ValueError, match=f"is {N}"):
            sddmm.sddmm(wrong, a, b)
        with monkeypatch.context() as interrupted:
            interrupted.setattr(TileLister, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                sddmm.sddmm(new_tensor(near), a, b)
        assert launches == ["analyse", "tile_list"] * 2
        for pattern in (near, falling, scattered()):
            S = new_tensor(pattern)
            assert_close(sddmm.sddmm(S, a, b).values(), S, a, b)


@pytest.mark.parametrize(
    ("pattern", "gathered"),
    [(mask(), "gather_rows"), (scattered(), "row_gather")],
    ids=["runs", "scattered"],
)
def test_the_number_of_listed_tiles_decides(
    pattern: SparsePattern, gathered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks and others have limits of their own: that of the other kind allows nothing here."""
    block_m, block_n = KERNELS[BLOCK].tile_sizes[0]
    rows, cols = pattern.to_coo().row_indices, pattern.col_indices
    count = len(torch.stack([rows // block_m, cols // block_n]).unique(dim=1)[0])
    a, b = operands()
    for most, name in ((count, BLOCK), (count - 1, gathered)):
        limits = MostTiles(most, 0) if pattern.nnz >= 4 * runs_of(pattern) else MostTiles(0, most)
        choose_tiles(monkeypatch, BLOCK, is_late=True, lists_tiles=True, most_tiles=limits)
        S = new_tensor(pattern)
        with emulated_gpu() as launches:
            product = sddmm.sddmm(S, a, b)
        assert launches == ["analyse", "tile_list", name]
        assert_close(product.values(), S, a, b)


def test_tiles_one_upon_the_other_are_listed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a cluster compute neighbours of the list, and load the rows of B of both once."""
    choose_tiles(monkeypatch, BLOCK, lists_tiles=True)
    listed = lists_of_tiles(monkeypatch)
    full = SparsePattern.from_torch(torch.ones(M, N) > 0).to_csr()
    with emulated_gpu():
        sddmm.sddmm(new_tensor(full), *operands(), scale=False)
    (tiles,) = listed
    assert len(tiles) == 4 * 6
    for (upper, left), (lower, right) in zip(tiles[::2], tiles[1::2], strict=True):
        assert (upper % 2, lower, right) == (0, upper + 1, left)
