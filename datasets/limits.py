"""The size that a matrix file promises, and the bound on the memory that reading it may take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from datasets.open_file import file_error

# The peak of reading: the entries as the file has them, and the sorted matrix made of them.
_BYTES_PER_NONZERO = 40
_BYTES_PER_ROW = 16

# Deflate makes at most 1032 bytes of one.
MAX_EXPANSION = 1032


class Size(NamedTuple):
    """rows, cols and nonzeros of a matrix, duplicates counted each."""

    rows: int
    cols: int
    nnz: int


def default_max_bytes() -> int:
    """Half of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def refuse_too_large(path: Path, size: Size, max_bytes: int, line: int | None = None) -> None:
    """Raises FileError if reading a matrix of this size would take more than max_bytes."""
    needed = size.nnz * _BYTES_PER_NONZERO + (size.rows + 1) * _BYTES_PER_ROW
    if needed > max_bytes:
        raise file_error(
            path,
            f"a {size.rows}x{size.cols} matrix with {size.nnz} nonzeros takes {needed} bytes of "
            f"memory to read, the limit is {max_bytes}",
            line,
        )
