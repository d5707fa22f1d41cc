"""Lists of the nonzeros of tiles, by which tile_wgmma_listed stores; its source runs on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.kernels.tile_wgmma_listed.host import list_batches
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, random_pattern
from tests.sddmm.backends.cuda.test_kernels_on_cpu import ONE_LISTED, check

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


@pytest.mark.parametrize(
    ("mean", "depth"), [(0, 1), (80, 2), (410, 5), (580, 7), (680, 4), (819, 5), (8192, 7)]
)
def test_slots_are_sampled_in_few_batches_of_equal_size(mean: int, depth: int) -> None:
    assert list_batches(100 * mean, slots=100) == {"DEPTH": depth, "AHEAD": 3}


@pytest.mark.parametrize(("nnz", "scaled"), [(90_000, False), (60_000, True), (700, True)])
def test_listed_nonzeros_of_one_and_of_several_batches_a_slot(nnz: int, scaled: bool) -> None:
    """Also duplicates, and nonzeros in any order; slots that are full, and some without any."""
    dense = random_pattern(200, 500, nnz, layout="coo", shuffled=True)
    rows = torch.cat([dense.row_ids.long(), torch.tensor([5, 5, 199])])
    cols = torch.cat([dense.col_indices.long(), torch.tensor([7, 7, 499])])
    pattern = SparsePattern.from_coo(rows, cols, (333, 500))
    device = replace(H200, sm_count=2)
    check(ONE_LISTED, pattern, 40, torch.float16, heads=2, scaled=scaled, device=device)
