"""`windows` run on the CPU: windows that blocks share, bands of rows, slices of k, tails."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.windows.host import WINDOWS
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.exact_samples import check

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


@pytest.mark.parametrize(("dtype", "heads"), [(torch.float16, 3), (torch.float64, None)])
def test_windows_and_heads_that_blocks_share(dtype: torch.dtype, heads: int | None) -> None:
    """Five windows of 400 rows of 512 bytes; five blocks begin and end within windows and heads."""
    pattern = random_pattern(20, 2000, 3_000, layout="coo", shuffled=True)
    k = 512 // dtype.itemsize
    check("windows", pattern, k, dtype, heads=heads, device=replace(H200, sm_count=5))


@pytest.mark.parametrize(
    ("dtype", "extra_bytes"),
    cases(
        itertools.product(SPECS["windows"].dtypes, [0, 1, 16]),
        here=[(torch.float16, 1), (torch.bfloat16, 16), (torch.float32, 0), (torch.float64, 1)],
    ),
)
def test_windows_by_slices_of_k(dtype: torch.dtype, extra_bytes: int) -> None:
    """Slices that end where rows do, and last ones that do not, by whole chunks and by one element.
    Partial sums of windows and heads that blocks share; alpha and values count once."""
    pattern = random_pattern(20, 1000, 1_500, layout="csr")
    extra = max(1, extra_bytes // dtype.itemsize) if extra_bytes else 0
    k = 1536 // dtype.itemsize + extra
    few = replace(H200, sm_count=3)
    check("windows", pattern, k, dtype, heads=2, scaled=True, aligned=extra_bytes != 1, device=few)


def test_windows_of_one_long_row_and_of_one_long_column() -> None:
    """Warps whose pairs are all of one row, and rows that all have one nonzero."""
    long = torch.arange(3000)
    for rows, cols in ((torch.full_like(long, 7), long), (long, torch.full_like(long, 7))):
        pattern = SparsePattern.from_coo(rows, cols, (3000, 3000))
        check("windows", pattern, 64, torch.float16, device=replace(H200, sm_count=2))


@pytest.mark.parametrize("nnz", [1, 7, 8, 9, 65])
def test_windows_with_fewer_pairs_than_a_block_computes_at_once(nnz: int) -> None:
    check("windows", random_pattern(5, 3000, nnz, layout="csr"), 96, torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "row_bytes", "heads"),
    [(torch.float16, 500, None), (torch.float32, 512, 2), (torch.bfloat16, 1040, 2)],
)
def test_windows_of_bands_of_rows(dtype: torch.dtype, row_bytes: int, heads: int | None) -> None:
    """Five blocks share one band of one head after the other; windows without nonzeros are not
    listed. 1040 bytes are three slices, whose partial sums belong to one band of one head."""
    rows, cols = torch.meshgrid(torch.arange(31), torch.arange(0, 5200, 52), indexing="ij")
    is_there = (rows >= 11) | (cols < 2600)
    pattern = SparsePattern.from_coo(rows[is_there], cols[is_there] + 9, (31, 5300))
    few = replace(H200, sm_count=5, l2_bytes=24_000)
    k = row_bytes // dtype.itemsize
    problem = make_problem(pattern, k=k, dtype=dtype, heads=heads)
    assert WINDOWS.geometry(problem, few).window[0] in (11, 16)  # three bands of 31 rows, or two
    check("windows", pattern, k, dtype, heads=heads, scaled=True, device=few)
