"""Host overhead is measured on a GPU and kept with its environment."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
import torch

from experiments.bench.errors import ExperimentError
from experiments.host_overhead.config import LaunchConfig
from experiments.host_overhead.run import as_html, run
from tests.conftest import ROOT

KEYS = {
    "samples_us": "launch.md",
    "mini_batches_us": "mini_batches.md",
    "mini_batch_steps_us": "mini_batch_steps.md",
}


def test_without_a_gpu_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match="launch measures calls of GPU kernels"):
        run(LaunchConfig(output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batches": 0}, "batches must be >= 1"), ({"calls": 501}, "calls must be in 1..500")],
)
def test_a_batch_that_no_queue_holds_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaunchConfig(**change)


def test_its_page_has_every_call_and_the_machine() -> None:
    record = json.loads((ROOT / "docs/results/h100/launch/launch.json").read_text())
    record["environment"] |= {"commit": "c8ecb51" + "0" * 33, "dirty": False}
    html = unescape(as_html(record, LaunchConfig(output="here")))
    for name in [name for key in KEYS for name in record[key]]:
        assert f">{name}<" in html
    for fact in ("NVIDIA H100 80GB HBM3", "580.159.04", "torch 2.11.0", "git checkout c8ecb51"):
        assert fact in html
    assert "python -m experiments launch batches=50 calls=200 output=here" in html


@pytest.mark.gpu
def test_every_call_has_its_samples_and_a_row(tmp_path: Path) -> None:
    run(LaunchConfig(output=str(tmp_path), batches=2, calls=3))
    record = json.loads((tmp_path / "launch.json").read_text())
    calls = {"prepared launch", "gemm(a, b)", "torch.mm(a, b)", "sddmm(pattern, a, b)"}
    assert calls <= set(record["samples_us"])
    assert "spmm(S, b), new sizes" in record["mini_batches_us"]
    assert "sparse_attention(S, q, k, v), 30,000 edges" in record["mini_batch_steps_us"]
    for key, file in KEYS.items():
        text = (tmp_path / file).read_text()
        for name, samples in record[key].items():
            assert len(samples) == 2
            assert f"| {name} " in text
    assert record["environment"]["gpu"]
