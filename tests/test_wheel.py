"""The wheel holds the two libraries, whole, and nothing else."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tarfile
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
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
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
    for extra in ("cpu", "cuda12", "cuda13", "laboratory", "plots", "exports", "dev"):
        assert f"Provides-Extra: {extra}" in metadata


def test_the_page_of_an_index_is_the_readme_and_links_to_public_addresses_alone(
    wheel: zipfile.ZipFile,
) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("METADATA"))
    head, _, page = wheel.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    targets = re.findall(r"\]\(([^)]*)\)", page)
    assert len(targets) > 5
    for target in (*targets, *re.findall(r"^Project-URL: .*, (.*)$", head, re.MULTILINE)):
        assert target.startswith("https://"), target
    assert "<!--" not in page
    for code in re.findall(r"```.*?```", (ROOT / "README.md").read_text(), re.DOTALL):
        assert code in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](docs/a.md) and [b](https://b.org)", "a and [b](https://b.org)"),
        ("[a](#limits)<!-- results: x -->\nz", "az"),
        ("![plot](docs/a.svg)\n\nz ![c](https://c.org/c.svg)", "z ![c](https://c.org/c.svg)"),
        ('<img alt="x" src="docs/a.svg">\nz', "z"),
        ("```\nf[0](x)\n```\n[a](b.md)", "```\nf[0](x)\n```\na"),
    ],
)
def test_relative_links_images_and_comments_are_left_out_of_that_page(
    text: str, shown: str
) -> None:
    assert runpy.run_path(str(ROOT / "setup.py"))["index_page"](text) == shown


def test_the_source_distribution_builds_the_two_libraries_and_holds_nothing_else(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns("__pycache__")
    for folder in ("sddmm/sparse", "gemm_core/runtime", "tests/gemm_core", "datasets"):
        shutil.copytree(ROOT / folder, source / folder, ignore=skipped)
    for package in ("sddmm", "gemm_core"):
        shutil.copy(ROOT / package / "__init__.py", source / package)
    (source / "tests" / "test_probe.py").write_text("")
    files = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
    for file in (*files, "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / file, source)
    build = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (path,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*files, "CHANGELOG.md", "CITATION.cff", "sddmm/sparse/pattern.py"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {
        "sddmm", "gemm_core", "sddmm.egg-info",
    }  # fmt: skip


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version is not None
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version[1]}\nlicense: MIT\n" in citation
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version[1]
