"""A product that is added to other sums writes the chosen rows, rounded once, and no other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sddmm.backends.base import Addend
from sddmm.dtypes import DTYPES
from sddmm.products import add_product, product
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import random_pattern
from tests.sddmm.backends.cuda.on_either import DEVICES, kernels_of
from tests.sddmm.memory import at_a_cliff


def random(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype)
    return at_a_cliff(x) if device == "cpu" else x.to(device)


def skewed(nnz: int, device: str) -> SparsePattern:
    """Most rows are empty; one has nearly all nonzeros, so that many blocks sum it."""
    rows = torch.tensor([3] + [40] * (nnz - 2) + [79])
    cols = torch.arange(nnz) * 37 % 95
    return SparsePattern.from_coo(rows.to(device), cols.to(device), (80, 95))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "k", "nnz", "has_beyond"),
    [
        (torch.float16, 64, 2000, False),
        (torch.float16, 64, 700, False),
        (torch.bfloat16, 100, 700, True),
        (torch.float16, 64, 6000, True),
        (torch.bfloat16, 300, 6000, False),
        (torch.float32, 33, 6000, False),
        (torch.float32, 33, 2000, True),
        (torch.float64, 8, 6000, True),
    ],
)
def test_sums_are_added(
    device: str, dtype: torch.dtype, k: int, nnz: int, has_beyond: bool
) -> None:
    """Short rows, long ones, and rows that several blocks share."""
    is_skewed = nnz == 6000
    pattern = skewed(nnz, device) if is_skewed else random_pattern(80, 95, nnz, device=device)
    wide = DTYPES[dtype].accumulator
    values, dense = (random(*x, dtype=dtype, device=device) for x in ((nnz,), (95, k)))
    sums = random(80, k, dtype=wide, device=device)
    rows = torch.randperm(120, generator=torch.Generator().manual_seed(k))[:80].to(device)
    out = torch.full((120, k), 7.0, dtype=dtype)
    out = at_a_cliff(out) if device == "cpu" else out.to(device)
    first, beyond = (dense[:60], dense[60:].clone()) if has_beyond else (dense, None)
    with kernels_of(device) as launches:
        addend = Addend(sums, rows)
        assert add_product(pattern, values, first, addend, out, alpha=0.5, beyond=beyond)
        whole = product(pattern, values, dense, alpha=0.5, out_dtype=wide)
    assert device == "cuda" or ("spmm_rows" if nnz == 700 else "spmm_gather") in launches
    # A block sums all nonzeros where 300 columns are two slices.
    assert device == "cuda" or not is_skewed or k == 300 or "spmm_merge" in launches
    expected = (sums.double() + whole.double()).to(dtype)
    torch.testing.assert_close(out[rows], expected)
    others = torch.ones(120, dtype=torch.bool, device=device)
    others[rows] = False
    assert bool((out[others] == 7).all())


def test_where_no_kernel_adds_nothing_is_done() -> None:
    pattern, out = random_pattern(8, 9, 20), torch.full((8, 4), 7.0)
    addend = Addend(torch.ones(8, 4), torch.arange(8))
    assert not add_product(pattern, torch.ones(20), torch.ones(9, 4), addend, out)
    assert bool((out == 7).all())
