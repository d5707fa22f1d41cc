"""Opening a matrix file: ordinary files only, and every failure is one line that names the file."""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_DIGEST_BLOCK = 2**20
_DIGEST_BYTES = 16
_MAX_QUOTED = 60


class FileError(ValueError):
    """A matrix file cannot be read; the message is one line: the file, the line if known, why."""


def file_error(path: str | Path, reason: str, line: int | None = None) -> FileError:
    """The FileError of a file, with everything escaped that would break or hide the one line."""
    text = f"{path}: {reason}" if line is None else f"{path}: line {line}: {reason}"
    return FileError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def quoted(text: bytes | str) -> str:
    """The beginning of a text as it stands in an error."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    shown = ascii(text.strip(" \t\r\n"))
    return shown if len(shown) <= _MAX_QUOTED else shown[:_MAX_QUOTED] + "...'"


@contextmanager
def open_regular(path: str | Path) -> Iterator[BinaryIO]:
    """Opens an ordinary file for reading bytes; FileError for everything else.

    The kind of the file is looked up before it is opened: opening a FIFO would wait for a writer,
    and opening a device may change its state. An OSError while the file is open becomes a FileError
    too, and so does broken compression.
    """
    try:
        _refuse_other_kinds(path)
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise file_error(path, "no such file") from None
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise file_error(path, f"cannot be read: {error}") from None


def _refuse_other_kinds(path: str | Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a null byte in the name
        raise file_error(path, f"is no file name: {error}") from None
    if stat.S_ISDIR(mode):
        raise file_error(path, "is a folder")
    if not stat.S_ISREG(mode):
        raise file_error(path, "is no ordinary file")


def digest_of_text(text: str) -> str:
    """The digest of a text, as long as that of a file."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Identifies the content of a file: 32 hexadecimal digits that do not depend on its name.

    All bytes are hashed in every call, at one to three seconds per GB, a sixth of what reading
    the matrix takes. Nothing is remembered between calls, so a file that was replaced is always
    seen, even if its size and its time of change are the same. A compressed file is hashed as it
    is.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with open_regular(path) as file:
        while block := file.read(_DIGEST_BLOCK):
            digest.update(block)
    return digest.hexdigest()
