"""32-bit offsets reach 256 rows whose pitch is below 2^24 bytes; rows that share memory meet."""

from __future__ import annotations

import itertools

import pytest
import torch

from gemm_core.runtime.addressing import Rows, fits_32bit_offsets


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_256_rows_must_span_less_than_4_gib(dtype: torch.dtype) -> None:
    limit = 2**32 // 256 // dtype.itemsize
    x = torch.empty(1, dtype=dtype)
    assert fits_32bit_offsets(x, limit - 1)
    assert not fits_32bit_offsets(x, limit)


def bytes_of(x: torch.Tensor) -> set[int]:
    starts = (x.data_ptr() + (i * x.stride(0) + j * x.stride(1)) * x.element_size()
              for i in range(x.shape[0]) for j in range(x.shape[1]))  # fmt: skip
    return {start + byte for start in starts for byte in range(x.element_size())}


PARTS = [
    (offset, shape, strides)
    for offset in (0, 1, 3, 9, 20)
    for shape in ((1, 1), (3, 2), (4, 3), (0, 2), (5, 1))
    for strides in ((5, 1), (1, 5), (7, 1), (2, 1))
]


def test_rows_meet_where_they_have_a_byte_in_common() -> None:
    """And in doubt: where their pitches differ, or a column stands for many rows."""
    memory = torch.empty(64)
    parts = [memory.as_strided(shape, strides, offset) for offset, shape, strides in PARTS]
    for x, y in itertools.product(parts, parts):
        rows, others = Rows.of(x), Rows.of(y)
        met = rows.meet(x.data_ptr(), others, y.data_ptr())
        assert met or not bytes_of(x) & bytes_of(y)
        assert met == others.meet(y.data_ptr(), rows, x.data_ptr())
        if x.stride() == y.stride() and 5 in x.stride():
            assert met == bool(bytes_of(x) & bytes_of(y))
