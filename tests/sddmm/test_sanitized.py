"""One small case per SDDMM kernel: what `make sanitize` runs."""

from __future__ import annotations

import pytest
import torch

import sddmm
from sddmm.registry import KERNELS
from sddmm.spec import KernelSpec
from sddmm.testing import assert_close, random_pattern

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in KERNELS.items()])
def test_a_small_ragged_case(spec: KernelSpec) -> None:
    """Unsorted COO, so that sorting and places are part of it."""
    pattern = random_pattern(150, 290, 900, layout="coo", shuffled=True, device="cuda")
    dtype = spec.dtypes[0]
    a = torch.randn(150, 104, device="cuda").to(dtype)
    b = torch.randn(290, 104, device="cuda").to(dtype).mT
    for out_dtype in {dtype, torch.float32}:
        plan = sddmm.plan(
            pattern, k=104, dtype=dtype, out_dtype=out_dtype, precision=spec.precision,
            kernel=spec.name,
        )  # fmt: skip
        assert_close(plan.run(a, b), pattern, a, b, precision=spec.precision)
