"""Reads sparse matrices that scipy.sparse.save_npz wrote, and trusts nothing of them.

Memory is bounded by the file's own length before any is taken, objects (pickles) are never loaded,
and all indices are checked before scipy converts the matrix: its conversions write where the
indices say.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse

from datasets.limits import Size, refuse_too_large
from datasets.npy_archive import ArchiveError, NpyArchive
from datasets.open_file import file_error

# The members of each format beside format and shape.
_MEMBERS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}
# Read for nothing: scipy notes here whether an array or a matrix was saved.
_IGNORED = "_is_array"
_MAX_SMALL = 1024


def size(path: Path, file: BinaryIO) -> Size:
    """The rows, columns and stored values that the members' headers promise."""
    try:
        with NpyArchive(file) as archive:
            return _promised(archive)[1]
    except ArchiveError as error:
        raise file_error(path, f"not a sparse matrix saved by scipy: {error}") from None


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.sparray:
    """The matrix in the format in which it was saved; its indices are sound."""
    try:
        with NpyArchive(file) as archive:
            kind, promised = _promised(archive)
            refuse_too_large(path, promised, max_bytes)
            arrays = [archive.read(name) for name in _MEMBERS[kind]]
        if arrays[0].dtype == np.float16:  # scipy computes with none
            arrays[0] = arrays[0].astype(np.float32)
        return _MATRICES[kind](kind, (promised.rows, promised.cols), *arrays)
    except ArchiveError as error:
        raise file_error(path, f"not a sparse matrix saved by scipy: {error}") from None


def _promised(archive: NpyArchive) -> tuple[str, Size]:
    """The format and the size, after a look at everything but the large arrays."""
    kind = archive.read("format", _MAX_SMALL)
    if kind.dtype.kind not in "SU" or kind.size != 1:
        raise ArchiveError("its member 'format' is no text")
    name = kind.item().decode("latin-1") if kind.dtype.kind == "S" else kind.item()
    if name not in _MEMBERS:
        raise ArchiveError(f"format {name!r} is unknown; known are {', '.join(_MEMBERS)}")
    unknown = archive.names - {"format", "shape", _IGNORED, *_MEMBERS[name]}
    if unknown:
        raise ArchiveError(f"members that a {name} matrix does not have: {sorted(unknown)}")
    shape = archive.read("shape", _MAX_SMALL)
    if shape.dtype.kind not in "iu" or shape.shape != (2,) or min(shape.tolist()) < 0:
        raise ArchiveError(f"shape must be two integers >= 0, got {shape.tolist()}")
    rows, cols = shape.tolist()
    if max(rows, cols) >= 2**63:
        raise ArchiveError(f"shape {rows}x{cols} exceeds what an index can hold")
    return name, Size(rows, cols, _checked_values(archive))


def _checked_values(archive: NpyArchive) -> int:
    """The number of values, which must be real."""
    dtype, shape = archive.header("data")
    if dtype.kind == "c":
        raise ArchiveError("its values are complex, only real ones are read")
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ArchiveError(f"values of type {dtype} are not read")
    count = 1
    for length in shape:
        count *= length
    return count


def _compressed(
    kind: str, shape: tuple[int, int], data: np.ndarray, indices: np.ndarray, indptr: np.ndarray
) -> scipy.sparse.sparray:
    block = (1, 1)
    if data.ndim != (3 if kind == "bsr" else 1):
        raise ArchiveError(f"data of a {kind} matrix has shape {data.shape}")
    if kind == "bsr":
        block = data.shape[1:]
        if min(block) < 1 or shape[0] % block[0] or shape[1] % block[1]:
            raise ArchiveError(f"blocks of {block} do not divide its shape {shape}")
    rows, cols = shape[0] // block[0], shape[1] // block[1]
    major, minor = (cols, rows) if kind == "csc" else (rows, cols)
    indices, indptr = _indices("indices", indices), _indices("indptr", indptr)
    if len(data) != indices.size:
        raise ArchiveError(f"{len(data)} values with {indices.size} indices")
    if indptr.size != major + 1:
        raise ArchiveError(f"indptr has {indptr.size} entries, {major + 1} expected")
    if indptr[0] != 0 or indptr[-1] != indices.size or (indptr[1:] < indptr[:-1]).any():
        raise ArchiveError(f"indptr does not rise from 0 to {indices.size}")
    _check_range("indices", indices, 0, minor)
    make = {
        "csr": scipy.sparse.csr_array,
        "csc": scipy.sparse.csc_array,
        "bsr": scipy.sparse.bsr_array,
    }
    return make[kind]((data, indices, indptr), shape=shape)


def _coordinates(
    kind: str, shape: tuple[int, int], data: np.ndarray, row: np.ndarray, col: np.ndarray
) -> scipy.sparse.sparray:
    row, col = _indices("row", row), _indices("col", col)
    if data.ndim != 1 or not data.size == row.size == col.size:
        raise ArchiveError(f"{data.shape} values with {row.size} rows and {col.size} columns")
    _check_range("row", row, 0, shape[0])
    _check_range("col", col, 0, shape[1])
    return scipy.sparse.coo_array((data, (row, col)), shape=shape)


def _diagonals(
    kind: str, shape: tuple[int, int], data: np.ndarray, offsets: np.ndarray
) -> scipy.sparse.sparray:
    offsets = _indices("offsets", offsets)
    if data.ndim != 2 or len(data) != offsets.size:
        raise ArchiveError(f"values of shape {data.shape} with {offsets.size} offsets")
    if np.unique(offsets).size != offsets.size:
        raise ArchiveError("offsets holds a diagonal twice")
    _check_range("offsets", offsets, 1 - shape[0], shape[1])
    return scipy.sparse.dia_array((data, offsets), shape=shape)


_MATRICES = {
    "csr": _compressed,
    "csc": _compressed,
    "bsr": _compressed,
    "coo": _coordinates,
    "dia": _diagonals,
}


def _indices(name: str, array: np.ndarray) -> np.ndarray:
    """The array as scipy has its indices: one dimension, int32 or int64."""
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ArchiveError(f"{name} must be integers, got {array.dtype} of shape {array.shape}")
    if array.dtype in (np.int32, np.int64):
        return array
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise ArchiveError(f"{name} holds {array.max()}, which exceeds int64")
    return array.astype(np.int64)


def _check_range(name: str, array: np.ndarray, begin: int, end: int) -> None:
    if array.size and not begin <= array.min() <= array.max() < end:
        raise ArchiveError(
            f"{name} holds {array.min()}..{array.max()}, which lies outside its shape: "
            f"{begin}..{end - 1} expected"
        )
