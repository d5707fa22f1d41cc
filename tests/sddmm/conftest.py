from __future__ import annotations

import pytest

from gemm_core.emulation.kernel import missing_compiler
from tests.sddmm import cpu_kernels


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What launches GPU kernels runs their sources on the CPU."""
    if missing_compiler() is not None:
        pytest.skip("needs g++")
    cpu_kernels.use(monkeypatch)
