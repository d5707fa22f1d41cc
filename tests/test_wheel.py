"""The wheel holds the two libraries, whole, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

KERNELS = (
    "sddmm/backends/cuda/kernels/probe/kernel.cu",
    "gemm_core/include/gemm_core/ptx/probe.cuh",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, with kernel files put where kernels live."""
    source = tmp_path_factory.mktemp("source")
    skipped = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    for folder in ("sddmm", "gemm_core", "datasets", "experiments", "conf"):
        shutil.copytree(ROOT / folder, source / folder, ignore=skipped)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    for kernel in KERNELS:
        (source / kernel).parent.mkdir(parents=True, exist_ok=True)
        (source / kernel).write_text("// probe\n")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", source / "dist", source], check=True, capture_output=True)
    (path,) = (source / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def test_only_the_two_libraries_are_in_it(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sddmm", "gemm_core"}


def test_every_module_kernel_and_type_marker_is_in_it(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    expected = set(KERNELS)
    for package in ("sddmm", "gemm_core"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".cu", ".cuh", ".h", ".cpp") or path.name == "py.typed":
                expected.add(str(path.relative_to(ROOT)))
    assert {"sddmm/py.typed", "gemm_core/py.typed"} <= expected
    assert expected <= names
    code = {n for n in names if not Path(n).parts[0].endswith(".dist-info")}
    assert code == expected


def test_the_licence_and_the_requirements_are_in_its_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("METADATA"))
    metadata = wheel.read(name).decode()
    assert "License-Expression: MIT" in metadata
    required = {
        re.split(r"[<>=]", line.removeprefix("Requires-Dist: "))[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    assert required == {"numpy", "scipy", "torch"}
    for extra in ("cpu", "cuda12", "cuda13", "laboratory", "plots", "dev"):
        assert f"Provides-Extra: {extra}" in metadata
