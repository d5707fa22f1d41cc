"""The kernels that stand for all in `make test`, and what each kernel serves."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.testing import H200
from tests.sddmm.backends.cuda.test_cost_model import problem

__all__ = ["ONE_OF_EACH_SOURCE", "every_case_of_k", "is_served"]


def _names() -> dict[object, str]:
    found: dict[object, str] = {}
    for spec in sorted(SPECS.values(), key=lambda spec: spec.tile[0] * spec.tile[1]):
        found.setdefault((spec.path, spec.precision), spec.name)
    return found


# The smallest of each source and precision, by name. The smallest tile compiles and runs fastest.
ONE_OF_EACH_SOURCE: dict[str, KernelSpec] = {name: SPECS[name] for name in _names().values()}


def is_served(spec: KernelSpec, dtype: torch.dtype, k: int) -> bool:
    """Whether a kernel computes rows of k such elements."""
    asked = problem(300, 5000, k, dtype)._replace(precision=spec.precision)
    return spec.refuses(asked, H200) is None


def every_case_of_k(*sizes: int) -> pytest.MarkDecorator:
    """Every kernel and dtype, with each of these k that the kernel does not refuse."""
    served = [
        pytest.param(spec, dtype, k, id=f"{k}-{name}-{str(dtype)[6:]}")
        for k in sizes
        for name, spec in SPECS.items()
        for dtype in spec.dtypes
        if is_served(spec, dtype, k)
    ]
    return pytest.mark.parametrize(("spec", "dtype", "k"), served)
