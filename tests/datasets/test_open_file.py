"""Only ordinary files are opened, and a file is known by its content."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import datasets
from datasets import FileError


def test_the_digest_of_a_file_depends_on_its_content_alone(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    first, second = tmp_path / "a.mtx", tmp_path / "sub" / "b.npz"
    first.write_bytes(b"x" * 3_000_000)
    second.write_bytes(b"x" * 3_000_000)
    digest = datasets.file_digest(first)
    assert digest == datasets.file_digest(str(second))
    assert len(digest) == 32
    assert digest == datasets.file_digest(tmp_path / "sub" / ".." / "a.mtx")


def test_the_digest_sees_a_change_that_size_and_times_hide(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx"
    path.write_bytes(b"x" * 3_000_000)
    before, times = datasets.file_digest(path), path.stat()
    path.write_bytes(b"x" * 2_999_999 + b"y")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert datasets.file_digest(path) != before


@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz", "m.smtx", "m.npz"])
def test_what_is_no_ordinary_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder" / name).mkdir(parents=True)
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / name)
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / name).symlink_to("/dev/zero")
    (tmp_path / "circle").mkdir()
    (tmp_path / "circle" / name).symlink_to(tmp_path / "circle" / name)
    reasons = {
        f"folder/{name}": "is a folder",
        f"fifo/{name}": "is no ordinary file",
        f"device/{name}": "is no ordinary file",
        f"circle/{name}": "cannot be read: Too many levels of symbolic links",
        f"none/{name}": "no such file",
        f"{'x' * 300}{name}": "cannot be read: File name too long",
        f"nu\0ll{name}": "is no file name: embedded null byte",
    }
    for place, reason in reasons.items():
        for reads in (datasets.read, datasets.read_size, datasets.file_digest):
            with pytest.raises(FileError) as caught:
                reads(f"{tmp_path}/{place}")
            assert str(caught.value) == f"{tmp_path}/{place}: {reason}".replace("\0", "\\x00")


def test_an_error_is_one_line_whatever_the_name_of_the_file(tmp_path: Path) -> None:
    for name in ("two\nlines.mtx", "\udcff.mtx", "\x1b[31m.mtx"):
        with pytest.raises(FileError, match="no such file") as caught:
            datasets.file_digest(tmp_path / name)
        assert str(caught.value).isprintable()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
