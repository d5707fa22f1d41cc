"""Keeps generated matrices on disk under a digest of what defines them."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scipy.sparse

from datasets.files import read
from datasets.open_file import FileError

_log = logging.getLogger(__name__)

FOLDER_VARIABLE = "SDDMM_DATASETS_CACHE"


def folder() -> Path:
    """Where matrices are kept: $SDDMM_DATASETS_CACHE, or the user's cache folder."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sddmm" / "datasets"


def cached(
    generate: Callable[..., scipy.sparse.csr_array], **arguments: Any
) -> scipy.sparse.csr_array:
    """Returns generate(**arguments), from disk if it was generated before.

    The key holds the function, its arguments (defaults included) and the source of the generators,
    so that a changed generator never meets an old matrix. A folder that cannot be written only
    costs time; a damaged file is noticed by its checksums and made anew.
    """
    path = folder() / f"{generate.__name__}-{_key(generate, arguments)}.npz"
    if os.path.lexists(path):
        try:
            return read(path, max_bytes=sys.maxsize)  # no larger than what generating it takes
        except FileError as error:
            _log.warning("cached matrix is unreadable (%s); generating it anew", error)
    matrix = generate(**arguments)
    _save(path, matrix)
    return matrix


def _key(generate: Callable[..., Any], arguments: dict[str, Any]) -> str:
    bound = inspect.signature(generate).bind(**arguments)
    bound.apply_defaults()
    defined = json.dumps(
        [generate.__module__, generate.__name__, sorted(bound.arguments.items())], default=str
    )
    digest = hashlib.blake2b(defined.encode(), digest_size=12)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _save(path: Path, matrix: scipy.sparse.csr_array) -> None:
    """Writes a temporary file and renames it, so that another process never reads half a matrix."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = file.name
            scipy.sparse.save_npz(file, matrix, compressed=False)
        os.replace(temporary, path)
    except OSError as error:
        _log.warning("cannot cache the matrix in %s: %s", path.parent, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
