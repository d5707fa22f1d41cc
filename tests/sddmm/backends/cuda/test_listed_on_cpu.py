"""Lists of the nonzeros of tiles, by which kernels store; their sources run on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import sddmm
from sddmm.backends.cuda.kernels.tile_wgmma_listed.host import list_batches
from sddmm.backends.cuda.kernels.tile_wgmma_panel.host import panel_macros
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.slot_lists import slot_lists
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, random_pattern
from tests.sddmm.backends.cuda.exact_samples import check
from tests.sddmm.backends.cuda.test_kernels_on_cpu import ONE_LISTED, ONE_PANEL

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

BLOCK = (128, 256)


@pytest.mark.parametrize(
    ("mean", "depth"), [(0, 1), (80, 2), (410, 5), (580, 7), (680, 4), (819, 5), (8192, 7)]
)
def test_slots_are_sampled_in_few_batches_of_equal_size(mean: int, depth: int) -> None:
    assert list_batches(100 * mean, slots=100) == {"DEPTH": depth, "AHEAD": 3}


@pytest.mark.parametrize(
    ("name", "nnz", "scaled"),
    [
        (ONE_LISTED, 90_000, False),
        (ONE_PANEL, 90_000, True),
        (ONE_LISTED, 60_000, True),
        (ONE_LISTED, 700, True),
        (ONE_PANEL, 700, False),
    ],
)
def test_listed_nonzeros_of_one_and_of_several_batches_a_slot(
    name: str, nnz: int, scaled: bool
) -> None:
    """Also duplicates, and nonzeros in any order; slots that are full, and some without any."""
    dense = random_pattern(200, 500, nnz, layout="coo", shuffled=True)
    rows = torch.cat([dense.row_ids.long(), torch.tensor([5, 5, 199])])
    cols = torch.cat([dense.col_indices.long(), torch.tensor([7, 7, 499])])
    pattern = SparsePattern.from_coo(rows, cols, (333, 500))
    device = replace(H200, sm_count=2)
    check(name, pattern, 40, torch.float16, heads=2, scaled=scaled, device=device)


@pytest.mark.parametrize("k", [1, 100, 130, 256])
def test_a_block_goes_from_some_rows_of_b_to_the_next(k: int) -> None:
    """Two blocks and three columns of tiles, so that one block changes within its tiles; more tiles
    than are known at once; every number of parts of k, of which the last is not whole."""
    pattern = random_pattern(1100, 700, 4_000, layout="csr")
    device = replace(H200, sm_count=2)
    check(ONE_PANEL, pattern, k, torch.bfloat16, out_dtype=torch.float32, device=device)


def test_heads_that_blocks_share_change_the_rows_of_b_too() -> None:
    pattern = random_pattern(300, 256, 2_000, layout="csr")
    device = replace(H200, sm_count=2)
    check(ONE_PANEL, pattern, 192, torch.float16, heads=5, scaled=True, device=device)


def test_longer_rows_than_a_block_can_keep_are_refused() -> None:
    pattern = random_pattern(300, 256, 2_000, layout="csr")
    with pytest.raises(ValueError, match="computes k of at most 256, got 257"):
        sddmm.plan(pattern, k=257, dtype=torch.float16, kernel=ONE_PANEL)


@pytest.mark.parametrize("k", [16, 64, 65, 128, 192, 256])
def test_the_kept_rows_leave_room_for_stages_and_for_one_slot_at_least(k: int) -> None:
    macros = panel_macros(BLOCK[1], k)
    kept_bytes = macros["K_BLOCKS"] * 64 * BLOCK[1] * 2
    assert macros["K_BLOCKS"] * 64 >= k
    assert macros["STAGES"] >= 5
    assert macros["FLOAT_SLOTS"] >= 1
    assert kept_bytes + macros["STAGES"] * 64 * 64 * 2 < H200.shared_bytes


@pytest.mark.parametrize("blocks", [1, 3, 5, 40])
def test_blocks_stay_in_columns_of_tiles_and_go_down_together(blocks: int) -> None:
    """Each computes every tile once, in as many columns as its share spans, and rows ascend in time
    over all blocks of a column."""
    pattern = random_pattern(128 * 9, 256 * 4, 30_000, layout="csr")
    work = PatternLayouts(pattern, H200).tiles(BLOCK)
    coords = slot_lists(work, 264, blocks).coords.tolist()
    assert sorted(coords) == [[row, column] for row in range(9) for column in range(4)]
    assert [column for _, column in coords] == sorted(column for _, column in coords)
    first = [len(coords) * block // blocks for block in range(blocks + 1)]
    times = {}
    for begin, end in itertools.pairwise(first):
        times.update({tuple(coords[i]): i - begin for i in range(begin, end)})
    for column in range(4):
        ascending = [times[row, column] for row in range(9)]
        assert ascending == sorted(ascending)
