"""Reads the matrix out of a .tar.gz file as the SuiteSparse Matrix Collection offers it.

Such an archive holds a folder NAME with NAME/NAME.mtx, and perhaps vectors and coordinates beside
it. Nothing is extracted: the matrix is parsed as it is decompressed. An archive's claims are not
trusted: no link is followed, no header may be longer than a block, and only so much may precede the
matrix.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import scipy.sparse

from datasets import matrix_market
from datasets.limits import MAX_EXPANSION, Size
from datasets.open_file import file_error, quoted

# The most bytes that tarfile may ask for at once, which are a header's; and that are read at once.
_BLOCK = 4 * 2**20
# Members, and bytes of them, that may precede the matrix.
_MAX_MEMBERS, _MAX_SKIPPED = 1000, 2**28


def size(path: Path, file: BinaryIO) -> Size:
    """The rows, columns and nonzeros that the header of the matrix promises."""
    with _matrix(path, file) as (member, most_bytes):
        return matrix_market.size_of_text(path, member, most_bytes)


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.coo_array:
    """The matrix with symmetric halves expanded and duplicates kept."""
    with _matrix(path, file) as (member, most_bytes):
        return matrix_market.read_text(path, member, most_bytes, max_bytes)


@contextmanager
def _matrix(path: Path, file: BinaryIO) -> Iterator[tuple[_Member, int]]:
    """The text of the matrix, and the most bytes that it can have."""
    held = os.fstat(file.fileno()).st_size * MAX_EXPANSION
    try:
        stream = _Forward(gzip.GzipFile(fileobj=file, mode="rb"))
        member = _find(path, stream)
        stream.seek(member.offset_data)
        yield _Member(stream, member.size), min(member.size, held)
    except tarfile.TarError as error:
        raise file_error(path, f"not a tar archive: {error}") from None
    except gzip.BadGzipFile as error:
        raise file_error(path, f"not a gzip file: {error}") from None


def _find(path: Path, stream: _Forward) -> tarfile.TarInfo:
    """The member NAME/NAME.mtx."""
    names = []
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            folder, _, name = member.name.removeprefix("./").partition("/")
            if folder and name == f"{folder}.mtx":
                if not member.isfile() or member.issparse():
                    raise file_error(path, f"member {quoted(member.name)} is no ordinary file")
                return member
            names.append(member.name)
            if len(names) > _MAX_MEMBERS:
                break
    shown = ", ".join(quoted(name) for name in names[:2]) or "no member"
    raise file_error(
        path, f"no member NAME/NAME.mtx, as SuiteSparse has it; it begins with {shown}"
    )


class _Forward:
    """A compressed stream as tarfile needs it, which it may read forwards and in small pieces."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self.tell = stream, stream.tell

    def read(self, count: int = -1) -> bytes:
        if not 0 <= count <= _BLOCK:
            raise tarfile.ReadError(f"a header of {count} bytes")
        return self._stream.read(count)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or position < self.tell():
            raise tarfile.ReadError("a member overlaps the one before")
        if position - self.tell() > _MAX_SKIPPED or position > 2 * _MAX_SKIPPED:
            raise tarfile.ReadError(f"more than {_MAX_SKIPPED} bytes before the matrix")
        return self._stream.seek(position)


class _Member:
    """The bytes of one member, from the stream's position on."""

    def __init__(self, stream: _Forward, size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, count: int, /) -> bytes:
        block = self._stream.read(min(count, self._left, _BLOCK))
        self._left -= len(block)
        return block
