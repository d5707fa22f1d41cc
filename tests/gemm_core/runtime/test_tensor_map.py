"""Tensor maps as the CUDA driver encodes them."""

from __future__ import annotations

import pytest
import torch

from gemm_core.runtime.tensor_map import map_at, tensor_map

pytestmark = pytest.mark.gpu


def test_a_map_at_another_address_is_that_of_the_tensor_there() -> None:
    there, here = (torch.zeros(70, 72, dtype=torch.float16, device="cuda") for _ in range(2))
    assert map_at(tensor_map(there, 64, 64), here.data_ptr()) == tensor_map(here, 64, 64)
