"""`python -m sddmm` tells the environment, on any machine and with a broken installation."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gemm_core.runtime.compile import CACHE_VARIABLE
from sddmm.__main__ import lines
from sddmm.diagnostics import SERVES, collect
from sddmm.testing import emulated_gpu
from tests.conftest import ROOT

WITHOUT_LIBRARIES = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "cupy", "cuda", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ["-m", "--json"]  # as Python sets it while it looks for sddmm.__main__
import sddmm.__main__
sddmm.__main__.main(["--json"])
"""


def test_it_needs_no_optional_library_and_names_mistakes_in_variables() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES],
        cwd=ROOT,
        env={**os.environ, "SDDMM_CHEK_INDICES": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    (mistake,) = report["mistakes in variables"]
    assert "SDDMM_CHEK_INDICES is unknown; did you mean SDDMM_CHECK_INDICES?" in mistake
    assert report["variables"]["SDDMM_CHEK_INDICES"] == "1"
    assert report["nvrtc"]["error"].startswith("ModuleNotFoundError: No module named 'cuda")
    assert "cannot be imported" in report["libraries"]["numba"]
    assert report["backends"]["cpu"]["reference"]["sddmm"] == SERVES
    assert report["caches"]["GPU kernels"]["writable"] in (True, False)


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("without_a_gpu")
def test_a_broken_library_and_a_broken_cache_are_lines_that_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.import_module

    def broken(name: str, *rest: Any) -> Any:
        if name == "numba":
            raise OSError("libLLVM.so: cannot open shared object file\nand more")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", broken)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    report = collect()
    line = report["libraries"]["numba"]
    assert line.endswith("cannot be imported: OSError: libLLVM.so: cannot open shared object file")
    assert report["caches"]["GPU kernels"] == {
        "folder": str(tmp_path / "file" / "cache"), "entries": 0, "bytes": 0, "writable": False,
    }  # fmt: skip


@pytest.mark.usefixtures("without_a_gpu")
def test_the_cache_is_counted_and_refusals_differ_by_dtype(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, size in (("a.cubin", 5), ("a.log", 100), ("b.cubin", 7)):
        (tmp_path / name).write_bytes(b"x" * size)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    report = collect()
    assert report["caches"]["GPU kernels"] == {
        "folder": str(tmp_path), "entries": 2, "bytes": 12, "writable": True,
    }  # fmt: skip
    served = report["backends"]["cpu"]
    assert served["cuda"] == report["kernels"]["error"] == "torch sees no CUDA device"
    assert served["torch_csr"]["spmm"] == served["torch_csr"]["sddmm"]["float32"] == SERVES
    assert (
        "computes float32 and float64, not torch.float16" in served["torch_csr"]["sddmm"]["float16"]
    )
    text = "\n".join(lines(report))
    assert "\n  cpu:\n    cuda: torch sees no CUDA device\n    cpu: serves\n" in text


def test_every_kernel_gives_its_own_reason_for_each_kind_of_operands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with emulated_gpu():
        operators = collect()["kernels"]["cuda:0"]
    kernels = operators["sddmm"]
    assert kernels["row_gather"] == SERVES
    assert kernels["tile_mma_tf32_64x64x32"]["float32 tf32"] == SERVES
    assert kernels["tile_mma_tf32_64x64x32"]["float32"] == (
        "computes with precision tf32, less than ieee"
    )
    assert "not float64" in kernels["tile_simt_64x64x32"]["float64"]
    assert operators["sddmm of blocks"]["block_mma_64x64"]["float16"] == SERVES
    assert operators["spmm"]["spmm_gather"] == SERVES
    assert operators["sparse_attention"]["attention_gather"]["bfloat16"] == SERVES
