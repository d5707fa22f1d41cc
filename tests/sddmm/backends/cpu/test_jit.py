"""The CPU kernels on disk: compiled anew when any of their sources changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numba.core import config

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


def four_sums(x, y, out):  # type: ignore[no-untyped-def]
    """Sums of products, side by side."""
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for i in range(x.shape[0]):
        v = y[i]
        s0 += v * x[i, 0]
        s1 += v * x[i, 1]
        s2 += v * x[i, 2]
        s3 += v * x[i, 3]
    out[0], out[1], out[2], out[3] = s0, s1, s2, s3


def test_a_setting_of_numba_holds_only_while_sums_side_by_side_are_compiled() -> None:
    before = config.SLP_VECTORIZE  # type: ignore[attr-defined]
    original = jit.jit(four_sums)
    beside = jit.side_by_side(original)
    assert beside.py_func.__qualname__ != original.py_func.__qualname__
    x, y = np.ones((50, 4), dtype=np.float32), np.arange(50, dtype=np.float32)
    results = []
    for function in (original, beside):
        out = np.empty(4, dtype=np.float32)
        function(x, y, out)
        results.append(out)
        assert before == config.SLP_VECTORIZE  # type: ignore[attr-defined]
    assert (results[0] == results[1]).all()
    assert (results[1] == 1225).all()
