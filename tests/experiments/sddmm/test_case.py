"""A case is refused before it is made if it cannot be; its device is where our kernels run."""

from __future__ import annotations

import pytest

from experiments.bench.errors import ExperimentError
from experiments.bench.run import run
from experiments.bench.sources import Fem, Uniform
from experiments.sddmm.case import device_of
from experiments.sddmm.config import Config
from experiments.sddmm.objective import SDDMM
from sddmm.backends.cuda.backend import CudaBackend


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    records = tmp_path_factory.mktemp("case") / "records.jsonl"
    return Config(matrix=Uniform(rows=60, cols=50), k=20, records=str(records))


def test_a_matrix_larger_than_memory_is_refused_with_the_bytes_wanted(config: Config) -> None:
    config.matrix = Uniform(rows=10**7, cols=10**7)
    with pytest.raises(ExperimentError, match=r"matrix big .* needs 3200\d{11} bytes"):
        run(SDDMM, "big", config)
    config.matrix = Uniform(rows=10**12, cols=1, nnz=1)
    with pytest.raises(ExperimentError, match=r"needs \d+ bytes"):
        run(SDDMM, "tall", config)


def test_auto_takes_the_gpu_where_our_kernels_run(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_of(config) == ("cpu" if CudaBackend().available() else "cuda")
    monkeypatch.setattr(CudaBackend, "available", lambda self: None)
    assert device_of(config) == "cuda"
    config.device = "cpu"
    assert device_of(config) == "cpu"


def test_sparsity_of_a_matrix_that_has_its_own_is_refused(config: Config) -> None:
    config.matrix, config.sparsity = Fem(nx=2, ny=2, nz=2), 0.5
    with pytest.raises(ExperimentError, match=r"sparsity=0.5 applies to uniform matrices"):
        run(SDDMM, "fem", config)
