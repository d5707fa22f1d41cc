from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import shared_folder
from tests.sddmm import cpu_kernels


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "libraries")


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> None:
    """What launches GPU kernels runs their sources on the CPU."""
    if cpu_kernels.COMPILER is None:
        pytest.skip("needs g++")
    cpu_kernels.use(monkeypatch, libraries)
