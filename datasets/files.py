"""Sparse matrices from files: Matrix Market, DLMC and scipy's .npz."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import scipy.sparse

from datasets import dlmc, matrix_market, npz
from datasets.limits import Size, default_max_bytes
from datasets.open_file import file_error, open_regular

_READERS: dict[str, ModuleType] = {
    ".mtx": matrix_market,
    ".mtx.gz": matrix_market,
    ".smtx": dlmc,
    ".npz": npz,
}
SUFFIXES = tuple(_READERS)


def read(path: str | Path, *, max_bytes: int | None = None) -> scipy.sparse.csr_array:
    """The matrix in a .mtx, .mtx.gz, .smtx or .npz file as CSR, duplicates summed, columns sorted.

    Matrix Market: coordinate files, general, symmetric or skew-symmetric (expanded), of real,
    integer or pattern entries (ones). Raises FileError, one line that names the file and, in a
    text, the line, for a file that is absent, broken, not a real sparse matrix, or that takes more
    than max_bytes of memory to read (None: half of the machine's memory).
    """
    path = Path(path)
    reader = _reader(path)
    limit = default_max_bytes() if max_bytes is None else max_bytes
    with open_regular(path) as file:
        try:
            return _summed(path, reader.read(path, file, limit))
        except MemoryError:
            raise file_error(path, "there is too little memory to read it") from None


def read_size(path: str | Path) -> Size:
    """The rows, columns and nonzeros that a file promises, read from its header alone.

    A promise that the file's length cannot hold is cut down to what it can hold. Raises FileError
    where the header is broken.
    """
    path = Path(path)
    reader = _reader(path)
    with open_regular(path) as file:
        return reader.size(path, file)


def _reader(path: Path) -> ModuleType:
    name = path.name.lower()
    for suffix, reader in _READERS.items():
        if name.endswith(suffix):
            return reader
    raise file_error(path, f"unknown kind of file; known are {', '.join(_READERS)}")


def _summed(path: Path, matrix: scipy.sparse.sparray) -> scipy.sparse.csr_array:
    """CSR with duplicates summed and columns sorted; FileError if an integer sum may overflow."""
    if matrix.format != "coo":  # a conversion that keeps duplicates; that from COO sums them
        matrix = scipy.sparse.csr_array(matrix)
    entries, largest = matrix.nnz, 0
    if matrix.dtype.kind in "iu" and entries:
        largest = max(int(matrix.data.max()), -int(matrix.data.min()))
    csr = scipy.sparse.csr_array(matrix)
    csr.sum_duplicates()
    duplicates = entries - csr.nnz
    if duplicates and largest and largest * (1 + duplicates) > np.iinfo(csr.dtype).max:
        raise file_error(path, f"duplicates of up to {largest} may exceed {csr.dtype} when summed")
    return csr
