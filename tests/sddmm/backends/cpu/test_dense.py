"""Operands whose rows are not contiguous are copied whole, in parts that threads share."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cpu.dense import contiguous_array


@pytest.mark.parametrize("shape", [(2, 300, 1700), (700, 900), (5, 7), (0, 4), (4, 0), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_transposed_operand_is_copied_to_its_last_row(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape).to(dtype).mT
    copy = torch.from_numpy(contiguous_array(x, torch.float32))
    assert copy.is_contiguous()
    assert torch.equal(copy, x.float())


def test_every_second_value_and_a_repeated_row_are_copied() -> None:
    values, row = torch.randn(9)[::2], torch.randn(1, 6).expand(4, 6)
    for x in (values, row):
        copy = torch.from_numpy(contiguous_array(x, torch.float32))
        assert copy.is_contiguous()
        assert torch.equal(copy, x)


def test_what_is_contiguous_is_not_copied() -> None:
    x = torch.randn(3, 4)
    assert contiguous_array(x, torch.float32).ctypes.data == x.data_ptr()
