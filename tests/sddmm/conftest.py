from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemm_core.emulation.kernel import missing_compiler
from sddmm.testing import emulated_gpu


@pytest.fixture
def kernels_on_cpu() -> Iterator[None]:
    """Patterns on the CPU are planned and computed by the GPU backend."""
    if missing_compiler() is not None:
        pytest.skip("needs g++")
    with emulated_gpu():
        yield
