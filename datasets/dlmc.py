"""Reads .smtx files of the Deep Learning Matrix Collection (Gale et al., SC 2020).

A file is three lines: "rows, cols, nnz", the row offsets, the column indices. It holds no values.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse

from datasets.limits import Size, refuse_too_large
from datasets.open_file import file_error, quoted

_LONGEST_HEAD = 4096
# Its blanks included; text beyond that is no matrix and must not fill the memory.
_LONGEST_NUMBER = 64
_HEAD = re.compile(
    rb"[ \t]*0*([0-9]{1,18})(?:[ \t]*,[ \t]*|[ \t]+)" * 2 + rb"0*([0-9]{1,18})[ \t]*"
)


def size(path: Path, file: BinaryIO) -> Size:
    """The rows, columns and nonzeros of the first line, which the file's length must allow."""
    line = file.readline(_LONGEST_HEAD)
    match = _HEAD.fullmatch(line.rstrip(b"\r\n"))
    if not match:
        raise file_error(path, f"'rows, cols, nnz' expected, got {quoted(line)}", 1)
    rows, cols, nnz = (int(word) for word in match.groups())
    held, numbers = os.fstat(file.fileno()).st_size, rows + 1 + nnz
    if 2 * numbers > held:  # a digit and a separator for each number
        raise file_error(
            path, f"{rows} rows and {nnz} nonzeros do not fit into a file of {held} bytes", 1
        )
    if held > _LONGEST_HEAD + _LONGEST_NUMBER * numbers:
        raise file_error(path, f"{held} bytes are too many for {rows} rows, {nnz} nonzeros", 1)
    return Size(rows, cols, nnz)


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.csr_array:
    """The pattern with ones as values, in float32."""
    rows, cols, nnz = promised = size(path, file)
    refuse_too_large(path, promised, max_bytes, 1)
    crow = _integers(file.readline(), path, 2)
    columns = _integers(file.readline(), path, 3)
    if rest := file.read().strip(b" \t\r\n"):
        raise file_error(path, f"three lines expected, then {quoted(rest[:100])}", 4)
    if crow.size != rows + 1 or crow[0] != 0 or crow[-1] != nnz or (np.diff(crow) < 0).any():
        raise file_error(
            path,
            f"{rows + 1} row offsets rising from 0 to {nnz} expected, got {crow.size}"
            + (f" from {crow[0]} to {crow[-1]}" if crow.size else ""),
            2,
        )
    if columns.size != nnz or (nnz and columns.max() >= cols):
        raise file_error(
            path,
            f"{nnz} column indices in 0..{cols - 1} expected, got {columns.size}"
            + (f" in {columns.min()}..{columns.max()}" if columns.size else ""),
            3,
        )
    ones = np.ones(nnz, np.float32)
    return scipy.sparse.csr_array((ones, columns, crow), shape=(rows, cols))


def _integers(line: bytes, path: Path, number: int) -> np.ndarray:
    """The numbers of a line of digits; those beyond int64 come out as its largest value."""
    line = line.rstrip(b"\r\n")
    if wrong := re.search(rb"[^0-9 \t][^ \t]*", line):
        raise file_error(path, f"integers >= 0 expected, got {quoted(wrong[0][:100])}", number)
    if not line.strip(b" \t"):
        return np.empty(0, np.int64)
    return np.fromstring(line, np.int64, sep=" ")
