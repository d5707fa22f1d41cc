"""32-bit offsets reach a tile of 256 rows whose pitch is below 2^24 bytes."""

from __future__ import annotations

import pytest
import torch

from gemm_core.runtime.addressing import fits_32bit_offsets


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_256_rows_must_span_less_than_4_gib(dtype: torch.dtype) -> None:
    limit = 2**32 // 256 // dtype.itemsize
    x = torch.empty(1, dtype=dtype)
    assert fits_32bit_offsets(x, limit - 1)
    assert not fits_32bit_offsets(x, limit)
