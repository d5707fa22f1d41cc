"""spmm_gather on a GPU: right on every kind of pattern, with the same bits every time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_spmm_close, random_pattern
from tests.sddmm.patterns import one_row, skewed, uniform, unsorted

pytestmark = pytest.mark.gpu

PATTERNS = [uniform, unsorted, one_row, skewed]


def operands(
    pattern: SparsePattern, d: int, dtype: torch.dtype, heads: int | None
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(d)
    lead = () if heads is None else (heads,)
    dense = torch.randn(*lead, max(pattern.shape), d, device="cuda").to(dtype)
    return torch.randn(*lead, pattern.nnz, device="cuda").to(dtype), dense


@pytest.mark.parametrize("make", PATTERNS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("d", "dtype", "heads"),
    [(64, torch.float16, None), (300, torch.bfloat16, None), (33, torch.float32, 2),
     (128, torch.float64, None)],
)  # fmt: skip
def test_products_are_right(
    make: Callable[[], SparsePattern], transpose: bool, d: int, dtype: torch.dtype, heads: int
) -> None:
    pattern = make()
    values, dense = operands(pattern, d, dtype, heads)
    dense = dense[..., : pattern.shape[0 if transpose else 1], :]
    got = sddmm.spmm(pattern, dense, values=values, transpose=transpose)
    assert_spmm_close(got, pattern, dense, values=values, transpose=transpose)


@pytest.mark.parametrize(
    ("nnz", "d", "dtype", "heads"),
    [(400_000, 128, torch.float64, None), (600_000, 256, torch.float32, 2)],
)
def test_products_of_many_weights_in_another_order_are_right(
    nnz: int, d: int, dtype: torch.dtype, heads: int
) -> None:
    pattern = random_pattern(9000, 7000, nnz, layout="coo", shuffled=True, device="cuda")
    values, dense = operands(pattern, d, dtype, heads)
    for transpose in (False, True):
        x = dense[..., : pattern.shape[0 if transpose else 1], :]
        got = sddmm.spmm(pattern, x, values=values, transpose=transpose)
        assert_spmm_close(got, pattern, x, values=values, transpose=transpose)


@pytest.mark.parametrize("make", PATTERNS)
def test_a_hundred_runs_have_the_same_bits(make: Callable[[], SparsePattern]) -> None:
    pattern = make()
    values, dense = operands(pattern, 64, torch.float16, None)
    for transpose in (False, True):
        x = dense[: pattern.shape[0 if transpose else 1]]
        first = sddmm.spmm(pattern, x, values=values, transpose=transpose)
        for _ in range(100):
            again = sddmm.spmm(pattern, x, values=values, transpose=transpose)
            assert torch.equal(first.view(torch.int16), again.view(torch.int16))
