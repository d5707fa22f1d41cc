from __future__ import annotations

from pathlib import Path

import pytest

from tests.sddmm import cpu_kernels


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> None:
    """What launches GPU kernels runs their sources on the CPU."""
    if cpu_kernels.COMPILER is None:
        pytest.skip("needs g++")
    cpu_kernels.use(monkeypatch, libraries)
