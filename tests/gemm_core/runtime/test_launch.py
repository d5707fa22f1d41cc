"""Kernel parameters are packed as C lays them out."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import pytest
import torch

import sddmm
from gemm_core.runtime.launch import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    POINTER,
    UINT,
    Parameters,
    percent_of_shared_memory,
)
from gemm_core.runtime.tensor_map import TensorMap
from sddmm.testing import random_pattern


class Mixed(ctypes.Structure):
    _fields_ = [
        ("map", TensorMap),
        ("small", INT),
        ("pointer", POINTER),
        ("factor", UINT),
        ("alpha", DOUBLE),
        ("last", INT),
    ]


def fields_of(arguments: Parameters) -> Any:
    """The struct that the one parameter points to."""
    (address,) = arguments.pointers
    return ctypes.cast(address, ctypes.POINTER(Mixed)).contents


def test_a_struct_holds_its_values_and_open_ones_can_be_set() -> None:
    values = (bytes(range(128)), -3, 2**63 + 5, 2**32 - 1, 0.5, 7)
    arguments = Parameters(Mixed, values, slot_indices=(1, 4))
    fields = fields_of(arguments)
    assert bytes(fields.map.opaque) == values[0]
    assert [getattr(fields, name) for name, *_ in Mixed._fields_[1:]] == list(values[1:])
    arguments.slots[0].value, arguments.slots[1].value = 11, 2.5
    assert (fields.small, fields.pointer, fields.alpha, fields.last) == (11, values[2], 2.5, 7)


def test_each_parameter_of_several_has_its_own_address() -> None:
    types = (POINTER, INT, FLOAT, LONG)
    arguments = Parameters(types)
    arguments.pack(2**40, -1, 0.25, -(2**40))
    pairs = zip(arguments.pointers, types, strict=True)
    assert [ctypes.cast(p, ctypes.POINTER(kind)).contents.value for p, kind in pairs] == [
        2**40, -1, 0.25, -(2**40)
    ]  # fmt: skip


def test_blocks_get_the_shared_memory_that_they_need_and_no_more() -> None:
    h200 = 228 * 1024
    assert percent_of_shared_memory(3, 17 * 1024, h200) == 23  # of 51 KB: 52 KB
    assert percent_of_shared_memory(1, h200, h200) == 100
    assert percent_of_shared_memory(3, h200, h200) == 100


def test_a_value_that_does_not_fit_its_type_is_not_cut_off() -> None:
    with pytest.raises(struct.error):
        Parameters((INT,)).pack(2**31)
    with pytest.raises(struct.error):
        Parameters((INT, INT)).pack(1)


def test_each_thread_has_its_own_copy() -> None:
    arguments = Parameters((INT,), (5,))
    arguments.pack(6)
    values: list[int] = []

    def look() -> None:
        (address,) = arguments.pointers
        values.append(ctypes.cast(address, ctypes.POINTER(INT)).contents.value)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    assert values == [5, 6]


@pytest.mark.gpu
def test_a_kernel_is_launched_in_a_thread_that_has_not_used_cuda() -> None:
    """As in torch's thread for gradients, where no torch kernel may have run before ours."""
    pattern = random_pattern(30, 30, 90, device="cuda")
    values = torch.randn(90, device="cuda")
    expected = sddmm.softmax(pattern, values)
    torch.cuda.synchronize()
    results: list[torch.Tensor] = []

    def launch() -> None:
        results.append(sddmm.softmax(pattern, values))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert torch.equal(results[0], expected)
