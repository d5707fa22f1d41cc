"""Products on the CPU: rows cut into chunks anywhere; torch's product where numba is missing."""

from __future__ import annotations

import functools
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from numba.core.errors import TypingError

import sddmm
from sddmm import SparsePattern
from sddmm.backends.cpu import backend, product, product_kernel
from sddmm.backends.selection import forget_choices
from sddmm.testing import assert_spmm_close, random_pattern
from tests.sddmm.memory import at_a_cliff
from tests.sddmm.patterns import of_lengths

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

# With d = 5 and chunks of 256 units: rows that end with a chunk, begin with one, span several.
LENGTHS = {
    "one row with everything": [3000],
    "rows that end with chunks": [255, 255, 254, 1, 300],
    "empty rows": [0, 0, 255, 0, 0, 600, 0, 1, 0],
    "short rows": [3, 1, 0, 2] * 300,
    "rows of all lengths": list(range(60)),
}


def operands(pattern: SparsePattern, dtype: torch.dtype, heads: int | None) -> Any:
    generator = torch.Generator().manual_seed(0)
    lead = () if heads is None else (heads,)
    values = torch.randn(*lead, pattern.nnz, generator=generator).to(dtype)
    dense = torch.randn(*lead, pattern.shape[1], 5, generator=generator).to(dtype)
    return values, dense


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of the least number of units."""
    monkeypatch.setattr(product, "CHUNK_WORK", 1)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [None, 3])
def test_rows_are_right_wherever_chunks_cut_them(
    kind: str, dtype: torch.dtype, heads: int | None
) -> None:
    pattern = of_lengths(LENGTHS[kind])
    values, dense = operands(pattern, dtype, heads)
    result = sddmm.spmm(pattern, dense, values=values, alpha=-1.5)
    assert_spmm_close(result, pattern, dense, values=values, alpha=-1.5)
    across = torch.randn(*dense.shape[:-2], pattern.shape[0], 5).to(dtype)
    result = sddmm.spmm(pattern, across, values=values, transpose=True)
    assert_spmm_close(result, pattern, across, values=values, transpose=True)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 8, 9, 16, 17, 40, 49, 96, 97, 200])
def test_rows_of_any_number_of_columns(d: int, dtype: torch.dtype) -> None:
    """Short ones are summed by 1, 4, 8, 16 or 32 columns at a time, which may overlap."""
    pattern = of_lengths([0, 600, 1, 8, 2, 0, 255, *range(20)])
    values = torch.randn(pattern.nnz, dtype=dtype)
    dense = at_a_cliff(torch.randn(pattern.shape[1], d, dtype=dtype))
    result = sddmm.spmm(pattern, dense, values=values, alpha=0.5)
    assert_spmm_close(result, pattern, dense, values=values, alpha=0.5)


@pytest.mark.usefixtures("short_chunks")
def test_infinities_and_nan_stay_in_their_rows_and_columns() -> None:
    pattern = of_lengths([300, 2, 0, 700, 9])
    values, dense = operands(pattern, torch.float32, None)
    values[1000:1002] = torch.inf  # in row 3, which chunks cut
    dense[3, 2] = torch.nan
    result = sddmm.spmm(pattern, dense, values=values)
    assert_spmm_close(result, pattern, dense, values=values)
    assert result[4, [0, 1, 3, 4]].isfinite().all()
    assert result[:2, [0, 1, 3, 4]].isfinite().all()


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_any_number_of_threads_gives_the_same_bits(dtype: torch.dtype) -> None:
    """The product and both gradients, which are products with the transpose too."""
    pattern = random_pattern(60, 500, 9000, layout="coo", shuffled=True)
    values, dense = (x.requires_grad_() for x in operands(pattern, dtype, 2))
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 7, 2):
            torch.set_num_threads(count)
            result = sddmm.spmm(pattern, dense, values=values)
            gradients = torch.autograd.grad(result.float().square().sum(), (values, dense))
            results.append((result.detach(), *gradients))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(other, results[0], strict=True))


def test_strides_of_heads_and_lazy_views_are_read_as_they_are() -> None:
    pattern = random_pattern(9, 7, 30)
    dense = torch.randn(7, 3, 5).transpose(0, 1)
    values = torch.randn(30, 3).mT
    assert_spmm_close(sddmm.spmm(pattern, dense, values=values), pattern, dense, values=values)
    negated = torch._neg_view(dense)
    result = sddmm.spmm(pattern, negated, values=values)
    assert_spmm_close(result, pattern, -dense, values=values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose", [False, True])
def test_torchs_product_serves_without_numba(
    dtype: torch.dtype, transpose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    crowded = SparsePattern.from_coo([1] * 64, [2] * 64, (9, 7))
    patterns = [crowded, random_pattern(9, 7, 30, layout="coo", shuffled=True)]
    forget_choices()
    try:
        with mock.patch.object(product.CpuProduct, "__call__", side_effect=AssertionError):
            for pattern in patterns:
                values = torch.randn(2, pattern.nnz).to(dtype)
                dense = torch.randn(2, pattern.shape[0 if transpose else 1], 5).to(dtype)
                options = {"values": values, "transpose": transpose}
                result = sddmm.spmm(pattern, dense, **options)
                assert_spmm_close(result, pattern, dense, **options)
    finally:
        forget_choices()


def test_a_pattern_with_an_index_out_of_range_is_refused() -> None:
    for rows, cols in ([0, 9, 1], [0, 1, 2]), ([2, 1, 0], [0, 7, 2]):
        pattern = SparsePattern.from_coo(rows, cols, (9, 7))
        with pytest.raises(ValueError, match="indices"):
            sddmm.spmm(pattern, torch.randn(7, 3), values=torch.randn(3))


def test_rows_that_are_not_contiguous_are_not_compiled() -> None:
    """They would be read as if they were."""
    starts, ones, out = np.array([0, 2]), np.ones((4, 6), np.float32), np.ones((1, 3), np.float32)
    add = functools.partial(product_kernel.add_rows, starts, 0, 1, np.array([1, 3]), ones[0, :2], 0)
    add(ones, np.float32(2), out, 0)
    assert (out == 4).all()
    with pytest.raises(TypingError, match="C-contiguous"):
        add(ones[:, ::2], np.float32(2), out, 0)


def test_a_row_of_no_columns_stores_nothing() -> None:
    starts, ones = np.array([0, 2]), np.ones((2, 0), np.float32)
    memory = np.full(8, 7, np.float32)
    out = np.ndarray((1, 0), np.float32, memory, offset=16)
    weights = np.ones(2, np.float32)
    product_kernel.add_rows(starts, 0, 1, np.array([0, 1]), weights, 0, ones, weights[0], out, 0)
    assert (memory == 7).all()


def test_a_scale_beyond_the_dtype_is_infinite() -> None:
    pattern = SparsePattern.from_coo([0], [0], (1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sddmm.spmm(pattern, torch.ones(1, 1), values=torch.ones(1), alpha=1e300)
    assert result.item() == torch.inf
