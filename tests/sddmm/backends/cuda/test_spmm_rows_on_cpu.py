"""spmm_rows's sources, run on the CPU: short rows, each of which a group of lanes sums.

Integers small enough to be exact, whatever the order of summation.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER
from sddmm.backends.cuda.kernels.spmm_rows.host import is_worth_it
from sddmm.problem import SpmmProblem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, assert_spmm_close, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.test_spmm_gather_on_cpu import check, run

check_by_rows = functools.partial(check, kernel=SPMM_GATHER, launched="spmm_rows")
run_by_rows = functools.partial(run, kernel=SPMM_GATHER, launched="spmm_rows")


@pytest.mark.parametrize(
    ("dtype", "k"),
    cases(
        [
            (torch.float16, 1), (torch.float16, 100), (torch.float16, 300), (torch.bfloat16, 16),
            (torch.float32, 33), (torch.float32, 256), (torch.float64, 7), (torch.float64, 64),
        ],
        here=[
            (torch.float16, 1), (torch.float16, 300), (torch.bfloat16, 16), (torch.float32, 33),
            (torch.float64, 7),
        ],
    ),
)  # fmt: skip
def test_rows_of_any_length(dtype: torch.dtype, k: int) -> None:
    """Rows of X in one slice and in many, with tails; rows of up to 14 nonzeros, some empty."""
    pattern = random_pattern(150, 131, 900)
    check_by_rows(pattern, k, dtype, out_dtype=torch.float64, device=H200)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("values_have_heads", [False, True])
def test_heads_factors_and_unsorted_nonzeros(transpose: bool, values_have_heads: bool) -> None:
    check_by_rows(
        random_pattern(90, 80, 700, layout="coo", shuffled=True), 64, torch.float16, torch.float32,
        heads=3, values_have_heads=values_have_heads, has_factors=True, transpose=transpose,
        interleaved=True, pitch=72, device=H200,
    )  # fmt: skip


@pytest.mark.parametrize(("k", "sm_count"), [(8, 10), (64, 10), (200, 132)])
def test_groups_go_on_to_further_rows(k: int, sm_count: int) -> None:
    """Far more rows than so many multiprocessors hold, at both ends of which are empty ones; and
    read through a permutation."""
    pattern = random_pattern(5000, 60, 12_000)
    rows, cols, order = pattern.row_ids + 37, pattern.col_indices, torch.randperm(12_000)
    shifted = SparsePattern.from_coo(rows, cols, (5090, 60))
    shuffled = SparsePattern.from_coo(rows[order], cols[order], (5090, 60))
    device = replace(H200, sm_count=sm_count)
    for own in (pattern, shifted, shuffled):
        check_by_rows(own, k, torch.float16, device=device)


@pytest.mark.parametrize("length", [63, 64, 65, 300])
def test_a_long_row_is_shared(length: int) -> None:
    rows = torch.cat([torch.arange(400), torch.full((length - 1,), 217)])
    pattern = SparsePattern.from_coo(rows, torch.arange(len(rows)) % 350, (400, 350))
    launched = "spmm_rows" if length <= 64 else "spmm_gather"
    check(pattern, 64, torch.float16, kernel=SPMM_GATHER, launched=launched)


@pytest.mark.parametrize("nnz", [1, 31, 1000])
def test_few_nonzeros_among_many_rows(nnz: int) -> None:
    check_by_rows(random_pattern(5000, 30, nnz, seed=nnz), 64, torch.float16, device=H200)


def test_nan_and_infinities_stay_in_their_own_rows() -> None:
    """Column 0, which stands for nonzeros that a group does not have, is not read for them."""
    pattern = random_pattern(90, 110, 800, layout="coo", shuffled=True)
    dense, values = torch.randn(110, 64).half(), torch.randn(800).half()
    dense[0], dense[50, 63], dense[70, 0] = torch.nan, torch.inf, -torch.inf
    values[17], values[400] = torch.inf, torch.nan
    got = run_by_rows(pattern, values, dense, device=H200)
    assert_spmm_close(got, pattern, dense, values=values)
    assert got.isfinite().sum() > got.numel() // 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sums_round_once(dtype: torch.dtype) -> None:
    pattern = random_pattern(400, 500, 6000)
    dense, values = torch.randn(500, 64).to(dtype), torch.randn(6000).to(dtype)
    got = run_by_rows(pattern, values, dense, out_dtype=dtype, device=H200)
    assert_spmm_close(got, pattern, dense, values=values)


@pytest.mark.parametrize(
    ("m", "nnz", "k", "heads", "has_perm", "expected"),
    [
        (10_000, 100_000, 256, None, False, True),  # two turns of all groups
        (10_000, 100_000, 64, None, True, True),
        (10_000, 160_000, 64, None, False, True),
        (10_000, 160_001, 64, None, False, False),  # rows are long
        (100_000, 250_000, 64, None, False, True),  # few lanes, many turns
        (100_000, 250_000, 64, None, True, True),
        (100_000, 250_000, 64, 4, False, True),
        (100_000, 250_000, 64, 4, True, False),  # weights of many heads through a permutation
        (100_000, 150_000, 64, None, False, False),  # hardly a nonzero in a row
        (100_000, 250_000, 128, None, False, False),  # many turns
        (10_000, 100_000, 128, 4, False, False),
    ],
)
def test_where_a_group_for_each_row_is_worth_it(
    m: int, nnz: int, k: int, heads: int | None, has_perm: bool, expected: bool
) -> None:
    problem = SpmmProblem(
        m, m, k, nnz, torch.float16, torch.float16, torch.float16, torch.int32, heads,
        heads is not None, False, torch.device("cuda", 0),
    )  # fmt: skip
    assert is_worth_it(problem, has_perm, H200) == expected
