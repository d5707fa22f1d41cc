"""Sparse matrices from files: Matrix Market, SuiteSparse, DLMC, scipy's .npz, ogb, and .pt."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import scipy.sparse

from datasets import dlmc, matrix_market, npz, ogb, pyg, suitesparse
from datasets.limits import Size, default_max_bytes
from datasets.open_file import digest_of_file, digest_of_text, file_error, open_regular

_READERS: dict[str, ModuleType] = {
    ".mtx": matrix_market,
    ".mtx.gz": matrix_market,
    ".tar.gz": suitesparse,
    ".smtx": dlmc,
    ".npz": npz,
    "edge.csv.gz": ogb,
    ".pt": pyg,
}
SUFFIXES = tuple(_READERS)


def read(path: str | Path, *, max_bytes: int | None = None) -> scipy.sparse.csr_array:
    """The matrix in a file of a kind in SUFFIXES as CSR, duplicates summed, columns sorted.

    Matrix Market: coordinate files, general, symmetric or skew-symmetric (expanded), of real,
    integer or pattern entries (ones); .tar.gz: one in an archive of SuiteSparse. .npz: a matrix
    that scipy saved, or a graph. edge.csv.gz: a graph of ogb. .pt: one of PyTorch Geometric, which
    needs torch. Graphs have a row for each source, a column for each target and ones as values.

    Raises FileError, one line that names the file and, in a text, the line, for a file that is
    absent, broken, not a real sparse matrix, or that takes more than max_bytes of memory to read
    (None: half of the machine's memory).
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


def file_digest(path: str | Path) -> str:
    """Identifies the content of a matrix file, and of the files beside it that it depends on.

    32 hexadecimal digits, as `open_file.digest_of_file`, which says what they cost.
    """
    path = Path(path)
    digests = [digest_of_file(file) for file in (path, *_companions(path))]
    return digests[0] if len(digests) == 1 else digest_of_text(" ".join(digests))


def _companions(path: Path) -> tuple[Path, ...]:
    return ogb.companions(path) if path.name.lower().endswith("edge.csv.gz") else ()


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
