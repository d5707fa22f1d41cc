"""A device is measured once, the result is kept, and the device model follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gemm_core.runtime.compile import CACHE_VARIABLE
from gemm_core.runtime.device import device
from sddmm.backends.cuda import device_model as model
from sddmm.backends.cuda import measure_device as probe
from sddmm.backends.cuda.measure_device import Measurement
from tests.conftest import H200

FOUND = Measurement(gather_bytes=3e12, copy_bytes=1e12, mm_flops=2e14)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Every device is measured as FOUND; the calls so far."""
    calls: list[object] = []
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    # There is no GPU to time.
    monkeypatch.setattr(probe, "_measure", lambda asked: (calls.append(asked), FOUND)[1])
    return calls


def test_a_device_is_measured_once(measured: list[object], tmp_path: Path) -> None:
    assert probe.measure_device(H200) == probe.measure_device(H200) == FOUND
    assert len(measured) == 1
    (file,) = tmp_path.iterdir()
    file.write_text('{"gather_bytes": 1}')
    assert probe.measure_device(H200) == FOUND  # what it cannot read, it measures again
    assert len(measured) == 2


def test_nothing_is_measured_while_a_graph_is_captured_or_without_memory(
    measured: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert probe.measure_device(H200) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def full(asked: object) -> Measurement:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(probe, "_measure", full)  # as a GPU whose memory others hold
    assert probe.measure_device(H200) is None
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_raises_its_clocks_late_is_measured_at_its_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs go on for 30 ms: an idle H200 took a fifth longer for its first products."""

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.us = sum(runs_us)

        def record(self) -> None:
            self.us = sum(runs_us)

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return (end.us - self.us) / 1e3

    runs_us: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    measure = probe._seconds  # there is no GPU to run the three works on that it measures
    seconds = measure(lambda: runs_us.append(200 if len(runs_us) < 100 else 160))
    assert seconds == pytest.approx(160e-6)
    assert 30_000 <= sum(runs_us) < 31_000
    runs_us.clear()
    assert measure(lambda: runs_us.append(20_000)) == pytest.approx(0.02)
    assert len(runs_us) == 11


def test_the_model_follows_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, slower = model.scaled_by_sm_count(H200), Measurement(1.0, 1.0, 1.0)
    monkeypatch.setattr(model, "H200_MEASUREMENT", Measurement(2.0, 4.0, 8.0))
    monkeypatch.setattr(model, "measure_device", lambda asked: slower)
    found = model.device_model.__wrapped__(H200)
    assert found.l2_bytes == reference.l2_bytes / 2
    assert found.memory_bytes == reference.memory_bytes / 4
    assert found.tensor_cores == reference.tensor_cores / 8


def test_a_device_that_cannot_be_measured_is_scaled_by_its_multiprocessors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "measure_device", lambda asked: None)
    assert vars(model.device_model.__wrapped__(H200)) == vars(model.scaled_by_sm_count(H200))


@pytest.mark.gpu
def test_what_is_measured_is_plausible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    found = probe.measure_device(device(0))
    assert found is not None
    assert found.gather_bytes > found.copy_bytes / 2 > 1e10
    assert found.mm_flops > 1e12
    assert probe.measure_device(device(0)) == found
