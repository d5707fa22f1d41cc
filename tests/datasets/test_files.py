"""Files are read right, quickly, and a broken one is named with its line."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import datasets
from datasets import FileError

HEAD = "%%MatrixMarket matrix coordinate"


def written(folder: Path, text: str, name: str = "m.mtx") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD} real general\n% note\n2 3 2\n1 3 -2.5\n2 1 1e3\n", [[0, 0, -2.5], [1000, 0, 0]]),
        (f"{HEAD} integer symmetric\n2 2 2\n1 1 3\n2 1 4\n", [[3, 4], [4, 0]]),
        (f"{HEAD} real skew-symmetric\n2 2 1\n2 1 4\n", [[0, -4], [4, 0]]),
        (f"{HEAD} pattern general\n2 2 2\n1 2\n2 1\n", [[0, 1], [1, 0]]),
        (f"{HEAD} pattern symmetric\n3 3 2\n2 1\n3 3\n", [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
        (f"{HEAD} real general\n2 2 3\n1 1 1\n1 1 2\n2 2 5\n", [[3, 0], [0, 5]]),
        (f"{HEAD} real general\n2 2 0\n", [[0, 0], [0, 0]]),
    ],
)
def test_matrix_market_of_every_symmetry_and_field(
    text: str, expected: list[list[float]], tmp_path: Path
) -> None:
    for path in (written(tmp_path, text), tmp_path / "m.mtx.gz"):
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        matrix = datasets.read(path)
        assert isinstance(matrix, scipy.sparse.csr_array)
        np.testing.assert_array_equal(matrix.toarray(), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: the file is empty"),
        ("2 2 1\n1 1 1\n", r"line 1: not a Matrix Market file"),
        (
            f"{HEAD} real general\n2 2 2\n1 1 3.5\n2 x 1\n",
            r"line 4: a column index in 1..2 expected, got 'x'",
        ),
        (
            f"{HEAD} real general\n2 2 2\n1 1 3.5\n3 1 1\n",
            r"line 4: a row index in 1..2 expected, got '3'",
        ),
        (f"{HEAD} real general\n2 2 2\n1 1\n2 1 1\n", r"line 3: 3 fields expected, got '1 1'"),
        (
            f"{HEAD} real general\n2 2 1\n1 1 3.5\n2 1 1\n",
            r"line 4: too many lines: 1 entries expected",
        ),
        (
            f"{HEAD} real general\n2 2 3\n1 1 3.5\n",
            r"line 3: truncated file: it ends after 1 of 3 entries",
        ),
        (
            f"{HEAD} complex general\n1 1 1\n1 1 1 0\n",
            r"line 1: .* got 'coordinate complex'",
        ),
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", r"line 1: .* got 'array real'"),
    ],
)
def test_a_broken_matrix_market_file_is_named_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FileError, match=f"{path}: {message}"):
        datasets.read(path)


def test_broken_compression_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(f"{HEAD} real general\n2 2 1\n1 1 1\n".encode())
    for name, content in {"junk.mtx.gz": b"junk", "short.mtx.gz": whole[:-12]}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FileError, match=f"{path}: cannot be read"):
            datasets.read(path)


def test_five_million_nonzeros_are_read_in_seconds(tmp_path: Path) -> None:
    """The bound is the issue of a line-by-line parser, which takes ten times as long; other
    processes do not count."""
    matrix = datasets.uniform(100_000, 100_000, 5_000_000, values="uniform")
    scipy.io.mmwrite(tmp_path / "big.mtx", matrix, precision=4)
    begin = time.process_time()
    assert datasets.read(tmp_path / "big.mtx").nnz == 5_000_000
    assert time.process_time() - begin < 5


def test_dlmc(tmp_path: Path) -> None:
    path = written(tmp_path, "3, 4, 4\n0 2 2 4\n1 3 0 2\n", "m.smtx")
    expected = [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]]
    np.testing.assert_array_equal(datasets.read(path).toarray(), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3, 4, 4\n0 2 2 4\n", r"line 3: 4 column indices in 0\.\.3 expected, got 0"),
        ("3, 4\n0 2 2 4\n1 3 0 2\n", r"line 1: 'rows, cols, nnz' expected"),
        ("3, 4, 4\n0 2 1 4\n1 3 0 2\n", r"line 2: 4 row offsets rising from 0 to 4"),
        ("3, 4, 4\n0 2 2 5\n1 3 0 2\n", r"line 2: "),
        ("3, 4, 4\n0 2 2 4\n1 3 0\n", r"line 3: 4 column indices in 0\.\.3 expected, got 3"),
        ("3, 4, 4\n0 2 2 4\n1 3 0 4\n", r"line 3: "),
        ("3, 4, 4\n0 2 2 4\n1 x 0 2\n", r"line 3: integers >= 0 expected, got 'x'"),
    ],
)
def test_a_broken_dlmc_file_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text, "m.smtx")
    with pytest.raises(FileError, match=f"{path}: {message}"):
        datasets.read(path)


def test_npz(tmp_path: Path) -> None:
    matrix = datasets.uniform(20, 30, 100)
    path = tmp_path / "m.npz"
    scipy.sparse.save_npz(path, matrix.tocsc())
    np.testing.assert_array_equal(datasets.read(path).toarray(), matrix.toarray())
    matrix.indices[5] = 99
    scipy.sparse.save_npz(path, matrix)
    with pytest.raises(FileError, match="outside its shape"):
        datasets.read(path)
    np.savez(path, x=np.ones(3))
    with pytest.raises(FileError, match="not a sparse matrix saved by scipy"):
        datasets.read(path)
    path.write_bytes(b"PK junk")
    with pytest.raises(FileError, match=str(path)):
        datasets.read(path)


def test_no_file_and_no_known_kind(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.mtx: no such file"):
        datasets.read(tmp_path / "none.mtx")
    with pytest.raises(FileError, match=r"known are \.mtx, \.mtx\.gz, \.tar\.gz, \.smtx, \.npz"):
        datasets.read(tmp_path / "m.csv")
    (tmp_path / "dir.mtx").mkdir()
    with pytest.raises(FileError, match=r"dir\.mtx: is a folder"):
        datasets.read(tmp_path / "dir.mtx")
