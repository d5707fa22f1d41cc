"""A small file that would fill the memory or never end is refused while little of it is read."""

from __future__ import annotations

import gzip
import json
import re
import resource
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import datasets
from datasets import FileError
from tests.conftest import ROOT

REAL = b"%%MatrixMarket matrix coordinate real general\n"
_MEGABYTE = 2**20


def unpacks_to(head: bytes, unit: bytes, megabytes: int) -> bytes:
    """A gzip file of a few MB at most: `head`, then so many megabytes of `unit`."""
    repeated = gzip.compress(unit * (_MEGABYTE // len(unit)))
    return gzip.compress(head) + repeated * megabytes


def zip_of_zeros(name: bytes, head: bytes, megabytes: int) -> bytes:
    """An archive with one deflated member: `head`, then so many megabytes of zeros."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    unit = deflate.compress(b"\0" * _MEGABYTE) + deflate.flush(zlib.Z_FULL_FLUSH)
    packed = start + unit * megabytes + deflate.flush()
    length = len(head) + megabytes * _MEGABYTE
    sizes = len(packed).to_bytes(4, "little") + length.to_bytes(4, "little")
    common = b"\x14\0\0\0\x08\0" + b"\0" * 8 + sizes + len(name).to_bytes(2, "little") + b"\0\0"
    local = b"PK\x03\x04" + common + name
    directory = b"PK\x01\x02\x14\0" + common + b"\0" * 14 + name
    at = len(local) + len(packed)
    end = b"PK\x05\x06\0\0\0\0\x01\0\x01\0" + len(directory).to_bytes(4, "little")
    return local + packed + directory + end + at.to_bytes(4, "little") + b"\0\0"


def zip_of_members(count: int) -> bytes:
    """An archive that is nothing but a directory of empty members."""
    directory = (b"PK\x01\x02" + b"\x14\0" * 2 + b"\0" * 20 + b"\x01" + b"\0" * 17 + b"a") * count
    end = b"PK\x05\x06" + b"\0" * 8 + len(directory).to_bytes(4, "little") + b"\0" * 6
    return directory + end


def npy(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


# Name, content, the words of the error.
BOMBS: dict[str, tuple[bytes, str]] = {
    "blanks.mtx.gz": (unpacks_to(REAL + b"2 2 1\n", b"\n", 2000), "more than 100000 blank lines"),
    "many-blanks.mtx.gz": (
        unpacks_to(REAL + b"99999 99999 9000000\n", b" " * 1023 + b"\n", 2000),
        "more than 100000 blank lines",
    ),
    "comments.mtx.gz": (unpacks_to(REAL, b"%\n", 2000), "no line 'rows cols entries' in the"),
    "one-line.mtx.gz": (unpacks_to(REAL + b"2 2 1\n1 1 0.", b"0", 2000), "longer than 1024"),
    "banner.mtx.gz": (unpacks_to(b"", b"\0", 2000), "line 1: not a Matrix Market file"),
    "entries.mtx.gz": (
        unpacks_to(REAL + b"2 2 9\n", b"1 1 0.01\n1 1 .1\n", 2000),
        "too many lines",
    ),
    "claim.mtx.gz": (gzip.compress(REAL + b"2 2 999999999999\n1 1 1\n"), "truncated file"),
    "honest.mtx.gz": (
        unpacks_to(REAL + b"9 9 100000000\n", b"1 1 0.01\n1 1 .1\n", 2000),
        "takes 4.* bytes of memory to read",
    ),
    "rows.mtx": (REAL + b"1000000000 2 1\n1 1 1\n", "takes 16.* bytes of memory to read"),
    "blanks.smtx": (b"2, 3, 3\n" + b" " * 20_000_000 + b"0 1 3\n1 0 2\n", "too many for 2 rows"),
    "directory.npz": (zip_of_members(500_000), "its directory of members has 235"),
    "format.npz": (zip_of_zeros(b"format.npy", npy("(1,)"), 2000), "'format' has 2097"),
    "data.npz": (zip_of_zeros(b"data.npy", npy("(262144000,)"), 2000), "no member 'format'"),
}

READ_EACH = """
import json, pathlib, re, sys, time
import datasets

def peak():  # that of getrusage begins with the memory of the parent
    return int(re.search("VmHWM:\\s*([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1])

memory = peak()
for path in sys.argv[1:]:
    begin = time.process_time()
    words = "was read"
    for call in (datasets.read_size, lambda p: datasets.read(p, max_bytes=2**30)):
        try:
            call(path)
        except datasets.FileError as error:
            words = str(error)
    seconds = time.process_time() - begin
    print(json.dumps([path, words, seconds, peak() - memory]), flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, int]]:
    """What reading each bomb ended in, its seconds of processor time and the KB it took; in one
    process that the system ends if it takes too much."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, (content, _) in BOMBS.items():
        (folder / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", READ_EACH, *(str(folder / name) for name in BOMBS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (40, 40)),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(path).name: (words, seconds, grown) for path, words, seconds, grown in lines}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_line_within_seconds_and_little_memory(
    name: str, outcomes: dict[str, tuple[str, float, int]]
) -> None:
    assert name in outcomes, "the process was ended before this file"
    words, seconds, kilobytes = outcomes[name]
    assert re.search(BOMBS[name][1], words), words
    assert words.isprintable()
    assert seconds < 5
    assert kilobytes < 200_000


def test_an_index_array_longer_than_its_values_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    parts = {"data": np.ones(3), "indptr": np.array([0, 3]), "indices": np.zeros(2_000_000, int)}
    np.savez(path, format=b"csr", shape=(1, 3), **parts)
    tracemalloc.start()
    with pytest.raises(FileError, match="indices must be 3 integers, got int64 of shape"):
        datasets.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # of 16,000,000
