"""The CPU kernels on disk: compiled anew when any of their sources changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sddmm.backends.cpu import jit, rows_kernel


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the sources of which `sources_digest` is then one."""
    folder = Path(jit.__file__).parent
    shutil.copytree(folder, tmp_path / "backends/cpu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(folder.parents[1] / "dropout.py", tmp_path)
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "backends/cpu/jit.py"))
    jit.sources_digest.cache_clear()
    yield tmp_path
    jit.sources_digest.cache_clear()


@pytest.mark.parametrize("name", ["backends/cpu/rows_kernel.py", "dropout.py"])
def test_the_digest_is_that_of_all_files_of_which_kernels_are_compiled(
    copied: Path, name: str
) -> None:
    before = jit.sources_digest()
    assert jit.jit(lambda x: x).py_func.__qualname__.endswith(before)
    with (copied / name).open("a") as file:
        file.write("# another line\n")
    jit.sources_digest.cache_clear()
    assert jit.sources_digest() != before


def test_kernels_are_kept_under_the_digest() -> None:
    assert rows_kernel.are_below.py_func.__qualname__ == f"are_below_{jit.sources_digest()}"
