"""One kernel compares the indices of two patterns. It runs on the CPU."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cuda import comparison
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import random_pattern
from tests.conftest import H200

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_one_index_that_differs_is_seen_wherever_it_is(
    layout: str, index_dtype: torch.dtype
) -> None:
    S = random_pattern(90, 120, 5000, layout=layout, index_dtype=index_dtype)
    assert comparison.same_by_kernel(S.clone(), S, H200)
    for name in ("major_indices", "col_indices"):
        length = getattr(S, name).numel()
        for at in (0, 1, length // 2, length - 1):
            other = S.clone()
            getattr(other, name)[at] += 1
            assert not comparison.same_by_kernel(other, S, H200)
            assert comparison.same_by_kernel(S.clone(), S, H200)  # no result is left over


def test_nothing_is_the_same_as_nothing() -> None:
    S = SparsePattern.from_coo(torch.tensor([]).long(), torch.tensor([]).long(), (0, 0))
    assert comparison.same_by_kernel(S.clone(), S, H200)
