"""Attention on the CPU: rows and columns cut into chunks anywhere, without an array of nonzeros."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.backends.cpu import attention
from sddmm.testing import (
    assert_attention_close,
    assert_attention_gradients_close,
    random_pattern,
)
from tests.sddmm.patterns import of_lengths

# In chunks of 256 units: rows that end with a chunk, begin with one, span several; and columns,
# of which the last pattern has one that everything is in.
PATTERNS = {
    "one row with everything": of_lengths([900]),
    "rows that end with chunks": of_lengths([255, 255, 254, 1, 300]),
    "empty rows": of_lengths([0, 0, 255, 0, 0, 600, 0, 1, 0]),
    "short rows": of_lengths([3, 1, 0, 2] * 100),
    "one column with everything": of_lengths([1] * 700, n=1),
    "shuffled": random_pattern(30, 40, 700, layout="coo", shuffled=True),
}


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of the least number of units."""
    monkeypatch.setattr(attention, "CHUNK_WORK", 1)


def operands(pattern: SparsePattern, dtype: torch.dtype = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(0)
    m, n = pattern.shape
    sizes = ((2, m, 5), (2, n, 5), (2, n, 3), (2, pattern.nnz))
    return [torch.randn(*x, generator=generator).to(dtype).requires_grad_() for x in sizes]


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_and_columns_are_right_wherever_chunks_cut_them(kind: str, dtype: torch.dtype) -> None:
    pattern = PATTERNS[kind]
    q, k, v, bias = operands(pattern, dtype)
    torch.manual_seed(3)
    out, lse = sddmm.sparse_attention(pattern, q, k, v, bias=bias, dropout_p=0.4, return_lse=True)
    torch.manual_seed(3)
    options = {"bias": bias, "dropout_p": 0.4, "seed": torch.randint(2**63 - 1, (1,))}
    assert_attention_close(out, pattern, q, k, v, lse=lse, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = torch.autograd.grad(out, (q, k, v, bias), grad)
    assert_attention_gradients_close(found, pattern, q, k, v, grad, **options)


def test_a_cut_row_of_infinities_is_what_it_is_uncut() -> None:
    """-inf alone gives zeros, of a part or of all; NaN and +inf spread over their row only."""
    pattern = of_lengths([600, 600, 600, 600])
    q, k, v, bias = (x.detach() for x in operands(pattern))
    bias[0, :500] = -torch.inf
    bias[1, :600] = -torch.inf
    bias[0, 700] = torch.nan
    bias[1, 1300] = torch.inf
    out, lse = sddmm.sparse_attention(pattern, q, k, v, bias=bias, return_lse=True)
    assert_attention_close(out, pattern, q, k, v, lse=lse, bias=bias)
    assert out.isnan().all(2).tolist() == [[False, True, False, False], [False, False, True, False]]
    assert (out[1, 0] == 0).all()


def test_any_number_of_threads_and_a_hundred_repeats_give_the_same_bits() -> None:
    pattern = random_pattern(30, 40, 700, layout="coo", shuffled=True)
    inputs = operands(pattern)
    threads, first = torch.get_num_threads(), None
    try:
        for count in (1, 5, *[2] * 98):
            torch.set_num_threads(count)
            out, lse = sddmm.sparse_attention(pattern, *inputs[:3], bias=inputs[3], return_lse=True)
            found = torch.autograd.grad(out.float().square().sum(), inputs)
            results = [out.detach(), lse.detach(), *found]
            first = results if first is None else first
            assert all(torch.equal(x, y) for x, y in zip(results, first, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_heads_side_by_side_are_read_where_they_are() -> None:
    pattern = PATTERNS["shuffled"]
    x = torch.randn(40, 2, 8)
    heads = attention.rows_of_heads(x.transpose(0, 1), torch.float32)
    assert [head.ctypes.data for head in heads] == [x[0, i].data_ptr() for i in range(2)]
    q = torch.randn(30, 2, 8).transpose(0, 1).requires_grad_()
    k = x.transpose(0, 1).requires_grad_()
    v = torch.randn(40, 2, 16)[..., 3:7].transpose(0, 1).requires_grad_()
    out = sddmm.sparse_attention(pattern, q, k, v)
    assert_attention_close(out, pattern, q, k, v)
    grad = torch.randn(30, 2, 4).transpose(0, 1)
    found = torch.autograd.grad(out, (q, k, v), grad)
    assert_attention_gradients_close(found, pattern, q, k, v, grad)


def test_no_array_has_an_entry_for_every_nonzero(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's arrays of a step; what the pattern keeps is made before."""
    monkeypatch.setattr(attention, "CHUNK_WORK", 2**15)
    pattern = random_pattern(500, 500, 100_000)
    q, k, v = (torch.randn(4, 500, 4, requires_grad=True) for _ in range(3))

    def step() -> None:
        sddmm.sparse_attention(pattern, q, k, v, dropout_p=0.1).sum().backward()

    step()
    tracemalloc.start()
    try:
        step()
        assert tracemalloc.get_traced_memory()[1] < 4 * pattern.nnz * 4 / 2
    finally:
        tracemalloc.stop()


def test_what_is_prepared_goes_with_its_pattern() -> None:
    pattern = random_pattern(9, 7, 20)
    q, k, v, _ = operands(pattern)
    sddmm.sparse_attention(pattern, q, k, v).sum().backward()
    dead = weakref.ref(pattern)
    gc.disable()
    try:
        del pattern
        sddmm.clear_cache()
        assert dead() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("d", "dv"), [(0, 3), (3, 0)])
def test_operands_may_have_no_columns(d: int, dv: int) -> None:
    pattern = PATTERNS["short rows"]
    m, n = pattern.shape
    q, k, v = (torch.randn(2, *x, requires_grad=True) for x in ((m, d), (n, d), (n, dv)))
    out = sddmm.sparse_attention(pattern, q, k, v)
    assert_attention_close(out, pattern, q, k, v)
    grad = torch.randn(out.shape)
    found = torch.autograd.grad(out, (q, k, v), grad)
    assert_attention_gradients_close(found, pattern, q, k, v, grad)
