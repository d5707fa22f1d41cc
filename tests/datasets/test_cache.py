"""Generated matrices are found again by what defines them, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import datasets
from datasets import cache


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each generation that really happened."""
    calls: list[dict[str, Any]] = []
    save = cache._save  # what is generated is saved, and nothing else is
    monkeypatch.setattr(  # counts the calls
        cache, "_save", lambda path, m: (calls.append({"path": path}), save(path, m))
    )
    return calls


def test_the_same_arguments_are_generated_once(made: list[Any]) -> None:
    first = datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50)
    again = datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50, values="ones", seed=0)
    np.testing.assert_array_equal(first.toarray(), again.toarray())
    assert first.dtype == again.dtype
    assert len(made) == 1


def test_any_other_argument_or_generator_is_another_matrix(made: list[Any]) -> None:
    datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50)
    datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50, seed=1)
    datasets.cached(datasets.uniform, rows=30, cols=20, nnz=50)
    datasets.cached(datasets.rmat, rows=20, cols=30, nnz=50)
    assert len(made) == 4


def test_a_changed_generator_never_meets_an_old_matrix(
    monkeypatch: pytest.MonkeyPatch, made: list[Any]
) -> None:
    datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50)
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read_bytes(self) + b"# edited")
    datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50)
    assert len(made) == 2


def test_a_broken_file_is_made_anew(made: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    first = datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50)
    (file,) = cache.folder().glob("*.npz")
    for junk in (b"", b"junk", file.read_bytes()[:200]):
        file.write_bytes(junk)
        again = datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50)
        np.testing.assert_array_equal(first.toarray(), again.toarray())
        assert "generating it anew" in caplog.text
    assert len(made) == 4
    assert not list(cache.folder().glob("*.tmp"))


def test_no_flipped_bit_in_a_cached_file_changes_a_matrix() -> None:
    def make() -> scipy.sparse.csr_array:
        return datasets.cached(datasets.uniform, rows=9, cols=8, nnz=7, values="uniform")

    first = make()
    (file,) = cache.folder().glob("*.npz")
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        file.write_bytes(flipped)
        again = make()
        assert again.dtype == first.dtype
        np.testing.assert_array_equal(again.toarray(), first.toarray())


def test_a_folder_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "file" / "cache"))
    assert datasets.cached(datasets.uniform, rows=20, cols=30, nnz=50).nnz == 50
    assert "cannot cache the matrix" in caplog.text
