from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sddmm import cpu_kernels


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this session; all processes of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "libraries"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> None:
    """What launches GPU kernels runs their sources on the CPU."""
    if cpu_kernels.COMPILER is None:
        pytest.skip("needs g++")
    cpu_kernels.use(monkeypatch, libraries)
