"""Sparse matrices from files: Matrix Market, DLMC and scipy's .npz."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse

from datasets.open_file import FileError


def read(path: str | Path) -> scipy.sparse.csr_array:
    """The matrix in a .mtx, .mtx.gz, .smtx or .npz file as CSR, duplicates summed, columns sorted.

    Matrix Market: coordinate files, general, symmetric or skew-symmetric (expanded), of real,
    integer or pattern entries (ones). Raises FileError for a file that is absent, broken, or not a
    real sparse matrix.
    """
    path = Path(path)
    name = path.name.lower()
    reader = next((known for suffix, known in _READERS.items() if name.endswith(suffix)), None)
    if reader is None:
        raise FileError(f"{path}: unknown kind of file; known are {', '.join(_READERS)}")
    if path.is_dir():
        raise FileError(f"{path}: is a folder")
    try:
        matrix = reader(path)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise FileError(f"{path}: cannot be read: {error}") from None
    matrix.sum_duplicates()
    return matrix


def _matrix_market(path: Path) -> scipy.sparse.csr_array:
    if path.stat().st_size == 0:
        raise FileError(f"{path}: line 1: the file is empty")
    try:
        *_, form, field, _ = scipy.io.mminfo(path)
        if form != "coordinate" or field not in ("real", "integer", "pattern", "unsigned-integer"):
            raise FileError(
                f"{path}: line 1: must hold a coordinate matrix of real, integer or pattern "
                f"entries, got {form} {field}"
            )
        return scipy.sparse.csr_array(scipy.io.mmread(path))
    except FileError:
        raise
    except (ValueError, OverflowError) as error:
        text = str(error)
        if text.startswith("Truncated"):
            text = f"line {_count_lines(path)}: {text}"
        raise FileError(f"{path}: {text[0].lower()}{text[1:]}") from None


def _count_lines(path: Path) -> int:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        return sum(1 for _ in file)


def _dlmc(path: Path) -> scipy.sparse.csr_array:
    """Three lines: "rows, cols, nnz", the row offsets, the column indices; values are ones.

    Source: the Deep Learning Matrix Collection (Gale et al., SC 2020).
    """
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    if len(lines) < 3:
        raise FileError(f"{path}: line {len(lines)}: three lines expected, the file ends here")
    head = _integers(lines[0].replace(",", " "), path, 1)
    if head.size != 3 or (head < 0).any():
        raise FileError(f"{path}: line 1: 'rows, cols, nnz' expected, got {lines[0]!r}")
    rows, cols, nnz = (int(x) for x in head)
    crow, columns = _integers(lines[1], path, 2), _integers(lines[2], path, 3)
    if crow.size != rows + 1 or crow[0] != 0 or crow[-1] != nnz or (np.diff(crow) < 0).any():
        raise FileError(
            f"{path}: line 2: {rows + 1} row offsets rising from 0 to {nnz} expected, "
            f"got {crow.size} from {crow[:1]} to {crow[-1:]}"
        )
    if columns.size != nnz or (nnz and not 0 <= columns.min() <= columns.max() < cols):
        raise FileError(
            f"{path}: line 3: {nnz} column indices in 0..{cols - 1} expected, got {columns.size}"
            + (f" in {columns.min()}..{columns.max()}" if columns.size else "")
        )
    ones = np.ones(nnz, np.float32)
    return scipy.sparse.csr_array((ones, columns, crow), shape=(rows, cols))


def _integers(line: str, path: Path, number: int) -> np.ndarray:
    try:
        return np.array(line.split(), np.int64)
    except ValueError as error:
        raise FileError(f"{path}: line {number}: {error}") from None


def _npz(path: Path) -> scipy.sparse.csr_array:
    try:
        matrix = scipy.sparse.csr_array(scipy.sparse.load_npz(path))
    except (ValueError, KeyError) as error:
        raise FileError(f"{path}: not a sparse matrix saved by scipy: {error}") from None
    columns, crow = matrix.indices, matrix.indptr
    sound = crow[0] == 0 and crow[-1] == columns.size and (np.diff(crow) >= 0).all()
    if not sound or (columns.size and not 0 <= columns.min() <= columns.max() < matrix.shape[1]):
        raise FileError(f"{path}: its indices lie outside its shape {matrix.shape}")
    return matrix


_READERS: dict[str, Callable[[Path], scipy.sparse.csr_array]] = {
    ".mtx": _matrix_market,
    ".mtx.gz": _matrix_market,
    ".smtx": _dlmc,
    ".npz": _npz,
}
SUFFIXES = tuple(_READERS)
