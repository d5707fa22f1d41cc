"""A device's speed is measured once and kept, and the rates follow it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gemm_core.runtime.compile import CACHE_VARIABLE
from gemm_core.runtime.device import device
from sddmm.backends.cuda import device_model as rates
from sddmm.backends.cuda import measure_device as probe
from sddmm.backends.cuda.measure_device import Speed
from tests.conftest import H200

FOUND = Speed(gather_bytes=3e12, copy_bytes=1e12, mm_flops=2e14)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Every device is measured as FOUND; the calls so far."""
    calls: list[object] = []
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    monkeypatch.setattr(probe, "_measured", lambda asked: (calls.append(asked), FOUND)[1])
    return calls


def test_a_device_is_measured_once(measured: list[object], tmp_path: Path) -> None:
    assert probe.speed(H200) == probe.speed(H200) == FOUND
    assert len(measured) == 1
    (file,) = tmp_path.iterdir()
    file.write_text('{"gather_bytes": 1}')
    assert probe.speed(H200) == FOUND  # what it cannot read, it measures again
    assert len(measured) == 2


def test_nothing_is_measured_while_a_graph_is_captured_or_without_memory(
    measured: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert probe.speed(H200) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def full(asked: object) -> Speed:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(probe, "_measured", full)
    assert probe.speed(H200) is None
    assert not list(tmp_path.iterdir())


def test_rates_follow_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, slower = rates.guessed(H200), Speed(1.0, 1.0, 1.0)
    monkeypatch.setattr(rates, "_H200_SPEED", Speed(2.0, 4.0, 8.0))
    monkeypatch.setattr(rates, "speed", lambda asked: slower)
    found = rates.rates_of.__wrapped__(H200)
    assert found.l2_bytes == reference.l2_bytes / 2
    assert found.memory_bytes == reference.memory_bytes / 4
    for name, rate in reference.tiles.items():
        assert found.tiles[name].flops == rate.flops / 8
        assert found.tiles[name].fixed_us == rate.fixed_us * 8


def test_rates_are_guessed_where_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "speed", lambda asked: None)
    assert rates.rates_of.__wrapped__(H200) == rates.guessed(H200)


@pytest.mark.gpu
def test_what_is_measured_is_plausible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    found = probe.speed(device(0))
    assert found is not None
    assert found.gather_bytes > found.copy_bytes / 2 > 1e10
    assert found.mm_flops > 1e12
    assert probe.speed(device(0)) == found
