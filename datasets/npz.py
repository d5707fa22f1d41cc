"""Reads sparse matrices in .npz files and checks everything in them before it is used.

They are files of scipy.sparse.save_npz (as PyTorch Geometric's Reddit), graphs in CSR whose members
begin with adj_ (as its Amazon, Coauthor and CitationFull), and ogb's data.npz.

Memory is bounded by the file's own length before any is taken, objects (pickles) are never loaded,
and all indices are checked before scipy converts the matrix: its conversions write where the
indices say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse

from datasets import ogb
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
# Not used: scipy notes here whether an array or a matrix was saved.
_IGNORED = "_is_array"
_MAX_SMALL = 1024
# The member that only ogb's files have, and what the names of a graph's matrix begin with.
_OGB, _ADJACENCY = "edge_index", "adj_"


def size(path: Path, file: BinaryIO) -> Size:
    """The rows, columns and stored values that the members' headers promise."""
    try:
        with NpyArchive(file) as archive:
            if _OGB in archive.names:
                return ogb.promised_by_archive(archive)
            return _promised(_of_graph(archive))[1]
    except ArchiveError as error:
        raise file_error(path, f"not a sparse matrix saved by scipy: {error}") from None


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.sparray:
    """The matrix in the format in which it was saved; its indices are sound."""
    try:
        with NpyArchive(file) as archive:
            if _OGB in archive.names:
                refuse_too_large(path, ogb.promised_by_archive(archive), max_bytes)
                return ogb.read_archive(archive)
            archive = _of_graph(archive)
            kind, promised = _promised(archive)
            refuse_too_large(path, promised, max_bytes)
            shape = (promised.rows, promised.cols)
            bounds = _check_lengths(kind, shape, archive)  # before any of them takes memory
            data = archive.read("data")
            arrays = {name: _indices(name, archive.read(name)) for name in _MEMBERS[kind][1:]}
        if data.dtype == np.float16:  # scipy computes with none
            data = data.astype(np.float32)
        return _matrix(kind, shape, data, arrays, bounds)
    except ArchiveError as error:
        raise file_error(path, f"not a sparse matrix saved by scipy: {error}") from None


class _Graph(NpyArchive):
    """The members of a graph's adjacency matrix under their names in scipy's files."""

    def __init__(self, archive: NpyArchive) -> None:
        self._archive = archive

    @property
    def names(self) -> set[str]:
        return {"shape", *_MEMBERS["csr"]}

    def header(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return self._archive.header(_ADJACENCY + name)

    def read(self, name: str, max_bytes: int | None = None) -> np.ndarray:
        if name == "format":
            return np.array("csr")
        return self._archive.read(_ADJACENCY + name, max_bytes)


def _of_graph(archive: NpyArchive) -> NpyArchive:
    return _Graph(archive) if f"{_ADJACENCY}indptr" in archive.names else archive


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


def _check_lengths(
    kind: str, shape: tuple[int, int], archive: NpyArchive
) -> dict[str, tuple[int, int]]:
    """The begin and the end of what each index array may hold, once all lengths fit together."""
    rows, cols = shape
    data = archive.header("data")[1]
    if len(data) != {"bsr": 3, "dia": 2}.get(kind, 1):
        raise ArchiveError(f"data of a {kind} matrix has shape {data}")
    if kind == "bsr":
        if min(data[1:]) < 1 or rows % data[1] or cols % data[2]:
            raise ArchiveError(f"blocks of {data[1]}x{data[2]} do not divide {rows}x{cols}")
        rows, cols = rows // data[1], cols // data[2]
    if kind in ("coo", "dia"):
        bounds = {"row": (0, rows), "col": (0, cols), "offsets": (1 - rows, cols)}
        lengths = dict.fromkeys(bounds, data[0])
    else:
        major, minor = (cols, rows) if kind == "csc" else (rows, cols)
        bounds = {"indices": (0, minor), "indptr": (0, data[0] + 1)}
        lengths = {"indices": data[0], "indptr": major + 1}
    for name in _MEMBERS[kind][1:]:
        dtype, length = archive.header(name)
        if dtype.kind not in "iu" or length != (lengths[name],):
            raise ArchiveError(
                f"{name} must be {lengths[name]} integers, got {dtype} of shape {length}"
            )
    return bounds


def _matrix(
    kind: str,
    shape: tuple[int, int],
    data: np.ndarray,
    arrays: dict[str, np.ndarray],
    bounds: dict[str, tuple[int, int]],
) -> scipy.sparse.sparray:
    for name, array in arrays.items():
        begin, end = bounds[name]
        if array.size and not begin <= array.min() <= array.max() < end:
            raise ArchiveError(
                f"{name} holds {array.min()}..{array.max()}, which lies outside its shape: "
                f"{begin}..{end - 1} expected"
            )
    if kind == "coo":
        return scipy.sparse.coo_array((data, (arrays["row"], arrays["col"])), shape=shape)
    if kind == "dia":
        if np.unique(arrays["offsets"]).size != len(data):
            raise ArchiveError("offsets holds a diagonal twice")
        return scipy.sparse.dia_array((data, arrays["offsets"]), shape=shape)
    indptr = arrays["indptr"]
    if indptr[0] != 0 or indptr[-1] != len(data) or (indptr[1:] < indptr[:-1]).any():
        raise ArchiveError(f"indptr does not rise from 0 to {len(data)}")
    make = {
        "csr": scipy.sparse.csr_array,
        "csc": scipy.sparse.csc_array,
        "bsr": scipy.sparse.bsr_array,
    }
    return make[kind]((data, arrays["indices"], indptr), shape=shape)


def _indices(name: str, array: np.ndarray) -> np.ndarray:
    """The array as scipy has its indices, int32 or int64."""
    if array.dtype in (np.int32, np.int64):
        return array
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise ArchiveError(f"{name} holds {array.max()}, which exceeds int64")
    return array.astype(np.int64)
