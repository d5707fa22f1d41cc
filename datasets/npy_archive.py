"""Reads plain arrays out of an .npz archive in which every stated size may be wrong."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np

from datasets.limits import MAX_EXPANSION

_MAX_MEMBERS = 16
_MAX_HEADER = 2**16
# Bytes that are read at once, the directory of the archive among them.
_BLOCK = 2**20

# The dictionary that numpy writes before an array of numbers or text; numpy evaluates it as Python,
# which is more than is needed here.
_HEADER = re.compile(
    r"\{'descr': '([<>|=][biufcOSUV][0-9]*)', 'fortran_order': (True|False), "
    r"'shape': \(((?:[0-9]+L?, ?)*(?:[0-9]+L?)?)\),? ?\}\s*"
)

# What zipfile and zlib raise for the bytes of a hostile archive.
ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, LookupError,
    RuntimeError, OverflowError, MemoryError,
)  # fmt: skip


class ArchiveError(Exception):
    """The archive is broken, or is no archive of plain arrays; the text says why."""


class SmallReads:
    """The file as zipfile needs it; refuses to read a directory of millions of members whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        if count > _BLOCK:
            raise zipfile.BadZipFile(f"its directory of members has {count} bytes")
        return self._file.read(count if count >= 0 else _BLOCK)


class NpyArchive:
    """The arrays of an .npz file by name; no more memory is taken than the file can hold."""

    def __init__(self, file: BinaryIO) -> None:
        self._length = os.fstat(file.fileno()).st_size
        try:
            self._zip = zipfile.ZipFile(SmallReads(file))
        except ZIP_ERRORS as error:
            raise ArchiveError(reason_of(error)) from None
        self._members = self._checked_members()

    def __enter__(self) -> NpyArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def names(self) -> set[str]:
        return set(self._members)

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        infos = self._zip.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise ArchiveError(f"it has {len(infos)} members")
        members = {info.filename.removesuffix(".npy"): info for info in infos}
        if len(members) != len(infos):
            raise ArchiveError("it has two members of one name")
        for name, info in members.items():
            if info.flag_bits & 1:
                raise ArchiveError(f"member {name!r} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveError(f"member {name!r} is compressed in another way than by deflate")
            expansion = 1 if info.compress_type == zipfile.ZIP_STORED else MAX_EXPANSION
            if info.compress_size > self._length or (
                info.file_size > info.compress_size * expansion
            ):
                raise ArchiveError(
                    f"member {name!r} claims {info.file_size} bytes, more than it can hold"
                )
        return members

    def header(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """The dtype and the shape of an array, whose length agrees with them."""
        try:
            with self._zip.open(self._info(name)) as member:
                dtype, _, shape = self._header(name, member)
        except ZIP_ERRORS as error:
            raise ArchiveError(f"member {name!r}: {reason_of(error)}") from None
        return dtype, shape

    def read(self, name: str, max_bytes: int | None = None) -> np.ndarray:
        """An array in the machine's byte order and in C order, its checksum verified."""
        if max_bytes is not None and self._info(name).file_size > max_bytes:
            raise ArchiveError(f"member {name!r} has {self._info(name).file_size} bytes")
        try:
            with self._zip.open(self._info(name)) as member:
                dtype, order, shape = self._header(name, member)
                flat = np.empty(_product(shape), dtype)
                _fill(memoryview(flat.view(np.uint8)) if flat.nbytes else memoryview(b""), member)
        except ZIP_ERRORS as error:
            raise ArchiveError(f"member {name!r}: {reason_of(error)}") from None
        array = flat.reshape(shape, order=order)
        return np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise ArchiveError(f"it has no member {name!r}")
        return self._members[name]

    def _header(
        self, name: str, member: zipfile.ZipExtFile
    ) -> tuple[np.dtype[Any], str, tuple[int, ...]]:
        magic = member.read(8)
        size_bytes = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(magic)
        if size_bytes is None:
            raise ArchiveError(f"member {name!r} is no array")
        length = int.from_bytes(member.read(size_bytes), "little")
        text = member.read(min(length, _MAX_HEADER)).decode("latin-1")
        header = _HEADER.fullmatch(text)
        if header is None:
            raise ArchiveError(f"member {name!r} is no plain array")
        descr, fortran, lengths = header.groups()
        if descr[1] in "OV":
            raise ArchiveError(f"member {name!r} holds Python objects, which are never loaded")
        try:
            dtype = np.dtype(descr)
        except TypeError:
            raise ArchiveError(f"member {name!r} has the unknown type {descr!r}") from None
        shape = tuple(int(x) for x in re.findall("[0-9]+", lengths))
        held = self._info(name).file_size - 8 - size_bytes - length
        if _product(shape) * dtype.itemsize != held:
            raise ArchiveError(f"member {name!r} has {held} bytes for {dtype} of shape {shape}")
        return dtype, "F" if fortran == "True" else "C", shape


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:  # not numpy's, which overflows
        count *= length
    return count


def _fill(view: memoryview, member: zipfile.ZipExtFile) -> None:
    """Reads the rest of a member into memory of its length; zipfile checks the sum at the end."""
    done = 0
    while block := member.read(_BLOCK):
        view[done : done + len(block)] = block
        done += len(block)
    if done != len(view):
        raise EOFError(f"ends after {done} of {len(view)} bytes")


def reason_of(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is too little memory"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
