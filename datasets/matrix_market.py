"""Reads Matrix Market coordinate files, strictly.

Where the format leaves a choice open, this reader accepts line ends of either kind, blank lines,
a sign before a value, nan and inf as scipy writes them, and a symmetric file that holds the upper
side in place of the lower. It refuses a byte order mark, comments after the size line, numbers in
other notations (Fortran's 1.5D3, hexadecimal, decimal commas) or too large for the field's type,
both sides of a symmetric matrix, the diagonal of a skew-symmetric one, complex and dense (array)
matrices.

The body is parsed by scipy's reader, which is quick but stops at the first character that it does
not understand and ignores the rest of the line: 1.5D3 would be 1.5 and 0x1p3 would be 0. So every
line is checked against the grammar of its field before scipy sees it, block by block.
"""

from __future__ import annotations

import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import scipy.io
import scipy.sparse

from datasets.limits import MAX_EXPANSION, Size, refuse_too_large
from datasets.open_file import file_error, quoted

# The banner, the comments and the size line must lie within so many bytes.
_LONGEST_HEAD = 2**20
# Bytes of entries that are checked and parsed at once.
_BLOCK = 4 * 2**20
# The format's own bound.
_LONGEST_LINE = 1024
# Blank lines beyond one per entry; a compressed file of 2 MB can hold two thousand million.
_MAX_BLANK_LINES = 100_000
_MAX_INTEGER = 2**63 - 1

_DTYPES = {
    "real": np.float64,
    "integer": np.int64,
    "unsigned-integer": np.uint64,
    "pattern": np.float64,
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")

# A line's outline: every run of digits is one 0, every run of blanks and tabs one blank.
_OUTLINE = bytes.maketrans(b"123456789\t", b"000000000 ")
_VALUE_OUTLINES = {
    "real": rb" [+-]?(?:(?:0\.?0?|\.0)(?:e[+-]?0)?|nan|inf|infinity)",
    "integer": rb" [+-]?0",
    "unsigned-integer": rb" \+?0",
    "pattern": rb"",
}
_BLANK = re.compile(rb" ?\r?")


class Stream(Protocol):
    """A source of bytes: a file, or what a compressed one or an archive holds."""

    def read(self, count: int, /) -> bytes: ...


@dataclass(frozen=True)
class Header:
    """The contents of the banner and the size line, and the offset of the first entry."""

    field: str
    symmetry: str
    rows: int
    cols: int
    entries: int
    line: int
    """The number of the size line."""
    end: int
    """Bytes up to the first line of entries."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def bytes_per_entry(self) -> int:
        """The fewest bytes that one entry takes in the file, as in "1 1" and "1 1 1"."""
        return 4 if self.field == "pattern" else 6


def size(path: Path, file: BinaryIO) -> Size:
    """The rows, columns and nonzeros that the header promises and the file's bytes can hold."""
    return size_of_text(path, _text(path, file), _most_bytes(path, file))


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.coo_array:
    """The matrix with symmetric halves expanded and duplicates kept."""
    return read_text(path, _text(path, file), _most_bytes(path, file), max_bytes)


def size_of_text(path: Path, stream: Stream, most_bytes: int) -> Size:
    """As `size`, of a text of at most so many bytes; path: the file that errors name."""
    head = _header(path, stream.read(_LONGEST_HEAD))
    entries = min(head.entries, most_bytes // head.bytes_per_entry + 1)
    return Size(head.rows, head.cols, entries * (1 if head.symmetry == "general" else 2))


def read_text(
    path: Path, stream: Stream, most_bytes: int, max_bytes: int
) -> scipy.sparse.coo_array:
    """As `read`, of a text of at most so many bytes; path: the file that errors name."""
    first = stream.read(_LONGEST_HEAD)
    head = _header(path, first)
    capacity = min(head.entries, most_bytes // head.bytes_per_entry + 1)
    expanded = capacity * (1 if head.symmetry == "general" else 2)
    refuse_too_large(path, Size(*head.shape, expanded), max_bytes, head.line)
    entries = _Entries(path, head, capacity)
    for block in _whole_lines(stream, first[head.end :]):
        entries.add(block)
    return entries.matrix()


def _text(path: Path, file: BinaryIO) -> Stream:
    return gzip.GzipFile(fileobj=file, mode="rb") if path.suffix.lower() == ".gz" else file


def _most_bytes(path: Path, file: BinaryIO) -> int:
    """The most bytes of text that the file can hold, known without reading it."""
    held = os.fstat(file.fileno()).st_size
    return held * MAX_EXPANSION if path.suffix.lower() == ".gz" else held


def _whole_lines(stream: Stream, rest: bytes) -> Iterator[bytes]:
    """The text in blocks that end with a line's end."""
    while block := stream.read(_BLOCK):
        rest += block
        end = rest.rfind(b"\n") + 1
        if end == 0:
            break  # no line is this long; the check of the length refuses it
        yield rest[:end]
        rest = rest[end:]
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _header(path: Path, text: bytes) -> Header:
    field, symmetry = _banner(path, text)
    number, begin = 1, text.find(b"\n") + 1
    while begin and begin < len(text):
        number += 1
        end = text.find(b"\n", begin) + 1
        line = text[begin : end or len(text)]
        if not line.startswith(b"%") and line.strip(b" \t\r\n"):
            rows, cols, entries = _sizes(path, line, number)
            if symmetry != "general" and rows != cols:
                raise file_error(path, f"a {symmetry} matrix is square, got {rows}x{cols}", number)
            return Header(field, symmetry, rows, cols, entries, number, end or len(text))
        begin = end
    if len(text) >= _LONGEST_HEAD:
        words = f"no line 'rows cols entries' in the first {_LONGEST_HEAD} bytes"
        raise file_error(path, words, number)
    raise file_error(path, "the file ends before the line 'rows cols entries'", number)


def _banner(path: Path, text: bytes) -> tuple[str, str]:
    """The field and the symmetry that the first line names."""
    if not text:
        raise file_error(path, "the file is empty", 1)
    for mark, what in {
        b"\x1f\x8b": "the content is gzip: name the file .mtx.gz",
        b"\xef\xbb\xbf": "begins with a byte order mark: save the file as plain ASCII",
        b"\xff\xfe": "is UTF-16: save the file as plain ASCII",
        b"\xfe\xff": "is UTF-16: save the file as plain ASCII",
    }.items():
        if text.startswith(mark):
            raise file_error(path, what, 1)
    line = text[:_LONGEST_LINE].partition(b"\n")[0]
    words = line.decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise file_error(
            path,
            "not a Matrix Market file: '%%MatrixMarket matrix coordinate real general' or the "
            f"like expected, got {quoted(line)}",
            1,
        )
    form, field, symmetry = words[2:]
    if form != "coordinate" or field not in _DTYPES:
        raise file_error(
            path,
            "must hold a coordinate matrix of real, integer or pattern entries, got "
            f"{quoted(' '.join(words[2:4]))}",
            1,
        )
    if symmetry not in _SYMMETRIES or (
        symmetry == "skew-symmetric" and field in ("pattern", "unsigned-integer")
    ):
        raise file_error(
            path,
            f"a {field} matrix must be general, symmetric or (with signs) skew-symmetric, got "
            f"{quoted(symmetry)}",
            1,
        )
    return field, symmetry


def _sizes(path: Path, line: bytes, number: int) -> tuple[int, ...]:
    words = line.split()
    right = len(words) == 3 and all(re.fullmatch(rb"0*[0-9]{1,19}", word) for word in words)
    sizes = tuple(int(word.lstrip(b"0") or b"0") for word in words) if right else ()
    if not right or max(sizes) > _MAX_INTEGER:
        raise file_error(
            path,
            f"'rows cols entries' expected, each in 0..2^63-1, got {quoted(line)}",
            number,
        )
    return sizes


class _Entries:
    """The entries of one file, filled in block by block."""

    def __init__(self, path: Path, head: Header, capacity: int) -> None:
        index = np.int32 if max(head.shape) < 2**31 else np.int64
        self._path, self._head = path, head
        self._row = np.empty(capacity, index)
        self._col = np.empty(capacity, index)
        self._data = np.empty(capacity, _DTYPES[head.field])
        self._count = 0
        self._lines = head.line
        self._blank_lines = 0
        self._sides: set[str] = set()
        pattern = rb" ?0 0" + _VALUE_OUTLINES[head.field] + rb" ?\r?"
        self._outline = re.compile(pattern, re.IGNORECASE)

    def add(self, text: bytes) -> None:
        """Checks and stores the entries of a block of whole lines."""
        outlines = Counter(_outlines(text))
        blank = sum(count for line, count in outlines.items() if _BLANK.fullmatch(line))
        entries = sum(count for line, count in outlines.items() if self._outline.fullmatch(line))
        lines = outlines.total()
        longest = np.diff(np.flatnonzero(np.frombuffer(b"\n" + text, np.uint8) == 10)).max() - 1
        self._blank_lines += blank
        if (
            blank + entries < lines
            or longest > _LONGEST_LINE
            or self._count + entries > self._row.size
        ):
            self._refuse(text)
        if self._blank_lines > _MAX_BLANK_LINES + self._count + entries:
            raise file_error(
                self._path, f"more than {_MAX_BLANK_LINES} blank lines", self._lines + lines
            )
        if entries:
            if any(b" +" in line for line in outlines):  # a sign that scipy's reader refuses
                text = text.replace(b" +", b" ").replace(b"\t+", b" ")
            infinite = sum(n for line, n in outlines.items() if b"inf" in line.lower())
            self._store(text, entries, infinite)
        self._lines += lines

    def _store(self, text: bytes, entries: int, infinite: int) -> None:
        head = self._head
        banner = f"%%MatrixMarket matrix coordinate {head.field} general\n"
        sizes = f"{head.rows} {head.cols} {entries}\n"
        try:
            block = scipy.io.mmread(io.BytesIO((banner + sizes).encode() + text))
        except (ValueError, OverflowError):  # an index or an integer out of its range
            self._refuse(text)
        if np.isinf(block.data).sum() > infinite:  # a number too large for float64
            self._refuse(text)
        self._check_symmetry(text, block)
        part = slice(self._count, self._count + entries)
        self._row[part], self._col[part], self._data[part] = block.row, block.col, block.data
        self._count += entries

    def _check_symmetry(self, text: bytes, block: scipy.sparse.coo_array) -> None:
        if self._head.symmetry == "general":
            return
        sides = {
            name
            for name, entries in (
                ("below", block.row > block.col),
                ("above", block.row < block.col),
            )
            if entries.any()
        }
        skew = self._head.symmetry == "skew-symmetric"
        if len(self._sides | sides) > 1 or (skew and (block.row == block.col).any()):
            self._refuse(text)
        if skew and block.data.dtype.kind == "i" and block.data.min() == -(2**63):
            self._refuse(text)
        self._sides |= sides

    def _refuse(self, text: bytes) -> None:
        """Raises the FileError of the first wrong line of a block, which has one."""
        count = self._count
        lines = zip(text.split(b"\n"), _outlines(text), strict=False)
        for number, (line, outline) in enumerate(lines, self._lines + 1):
            if len(line) <= _LONGEST_LINE and _BLANK.fullmatch(outline):
                continue
            reason = self._reason(line, outline, count)
            if reason:
                raise file_error(self._path, reason, number)
            count += 1
        raise file_error(self._path, "cannot be read by scipy", self._lines + 1)

    def _reason(self, line: bytes, outline: bytes, count: int) -> str | None:
        """The reason why the line after `count` entries is wrong; None if it is right."""
        head = self._head
        if len(line) > _LONGEST_LINE:
            return f"longer than {_LONGEST_LINE} characters"
        if count == head.entries:
            return f"too many lines: {head.entries} entries expected"
        words = line.split()
        expected = 2 if head.field == "pattern" else 3
        if len(words) != expected:
            return f"{expected} fields expected, got {quoted(line)}"
        for word, name, bound in zip(words[:2], ("row", "column"), head.shape, strict=True):
            if not re.fullmatch(rb"[0-9]+", word) or not 1 <= int(word) <= bound:
                return f"a {name} index in 1..{bound} expected, got {quoted(word)}"
        if not self._outline.fullmatch(outline):
            return f"a value of the field {head.field!r} expected, got {quoted(line)}"
        return self._reason_of_value(*words) or self._reason_of_side(int(words[0]), int(words[1]))

    def _reason_of_value(self, row: bytes, col: bytes, word: bytes = b"1") -> str | None:
        field = self._head.field
        if field == "real":
            if np.isinf(float(word)) and b"inf" not in word.lower():
                return f"{quoted(word)} is too large for float64"
            return None
        limits = np.iinfo(_DTYPES[field]) if field != "pattern" else np.iinfo(np.int64)
        low = limits.min + (self._head.symmetry == "skew-symmetric")
        if not low <= int(word) <= limits.max:
            return f"a value in {low}..{limits.max} expected, got {quoted(word)}"
        return None

    def _reason_of_side(self, row: int, col: int) -> str | None:
        symmetry = self._head.symmetry
        if symmetry == "general":
            return None
        if row == col:
            if symmetry == "skew-symmetric":
                return "a skew-symmetric matrix stores no diagonal"
            return None
        self._sides.add("below" if row > col else "above")
        if len(self._sides) > 1:
            return f"a {symmetry} matrix stores one side of the diagonal only"
        return None

    def matrix(self) -> scipy.sparse.coo_array:
        """The whole matrix; FileError if entries are missing."""
        if self._count < self._head.entries:
            raise file_error(
                self._path,
                f"truncated file: it ends after {self._count} of {self._head.entries} entries",
                self._lines,
            )
        row, col, data = self._row, self._col, self._data
        if self._head.symmetry != "general":
            away = row != col
            mirrored = -data[away] if self._head.symmetry == "skew-symmetric" else data[away]
            row, col = np.concatenate([row, col[away]]), np.concatenate([col, row[away]])
            data = np.concatenate([data, mirrored])
        return scipy.sparse.coo_array((data, (row, col)), shape=self._head.shape)


def _outlines(text: bytes) -> list[bytes]:
    """The outline of every line of a text that ends with a line's end."""
    marks = np.frombuffer(text.translate(_OUTLINE), np.uint8)
    kept = np.ones(marks.size, bool)
    same = marks[1:] == marks[:-1]
    same &= (marks[1:] == ord("0")) | (marks[1:] == ord(" "))
    np.logical_not(same, out=kept[1:])
    return marks[kept].tobytes().split(b"\n")[:-1]
