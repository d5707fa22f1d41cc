"""What every refusal of a matrix file must be."""

from __future__ import annotations

from pathlib import Path

import pytest

import datasets
from datasets import FileError


def assert_refused_in_one_line(path: Path, words: str) -> None:
    """Reading the file raises one short line that names it and says `words`, a pattern."""
    with pytest.raises(FileError, match=f"^{path}: .*{words}") as caught:
        datasets.read(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 250
