"""Every file ends in the right values or in one line of error, quickly and in bounded memory."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datasets
from tests.datasets.archives import npz
from tests.datasets.refusals import assert_refused_in_one_line

BANNER = b"%%MatrixMarket matrix coordinate "
REAL = BANNER + b"real general\n"
INTEGER = BANNER + b"integer general\n"
PATTERN = BANNER + b"pattern general\n"
SYMMETRIC = BANNER + b"real symmetric\n"
SKEW = BANNER + b"real skew-symmetric\n"


class Explosive:
    """Leaves a trace if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import sys; sys.modules['exploded'] = sys",))


def csr(**changed: Any) -> bytes:
    """The 2 x 3 CSR matrix [[0, 5, 0], [7, 0, 6]], but for what is changed; None leaves out."""
    members: dict[str, Any] = {
        "format": b"csr",
        "shape": (2, 3),
        "data": np.array([5.0, 7.0, 6.0]),
        "indices": np.array([1, 0, 2], np.int32),
        "indptr": np.array([0, 1, 3], np.int32),
    }
    members.update(changed)
    return npz(**{name: value for name, value in members.items() if value is not None})


def csc(**changed: Any) -> bytes:
    """The 2 x 3 CSC matrix [[0, 5, 0], [7, 0, 6]], but for what is changed."""
    columns = {"indices": np.array([1, 0, 1]), "indptr": np.array([0, 1, 2, 3])}
    return csr(**{"format": b"csc", "data": np.array([7.0, 5.0, 6.0]), **columns, **changed})


def coo(**changed: Any) -> bytes:
    places = {"row": np.array([0, 1, 1]), "col": np.array([1, 0, 2])}
    return csr(**{"format": b"coo", "indices": None, "indptr": None, **places, **changed})


def encrypted(content: bytes) -> bytes:
    """The archive with the flag of encryption in every entry of its directory."""
    at = -1
    while (at := content.find(b"PK\x01\x02", at + 1)) >= 0:
        content = content[: at + 8] + b"\x01" + content[at + 9 :]
    return content


def claiming(content: bytes, size: int) -> bytes:
    """The archive whose directory says that each member takes `size` bytes."""
    at = -1
    while (at := content.find(b"PK\x01\x02", at + 1)) >= 0:
        content = content[: at + 24] + size.to_bytes(4, "little") + content[at + 28 :]
    return content


def twice(content: bytes) -> bytes:
    buffer = io.BytesIO(content)
    with (
        zipfile.ZipFile(buffer, "a") as file,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        file.writestr("data.npy", file.read("data.npy"))
    return buffer.getvalue()


def npy_header(text: bytes) -> bytes:
    """A CSR archive whose data has this header."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(csr())) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "data.npy":
                content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
            target.writestr(name, content)
    return buffer.getvalue()


# Name, content, the words of the error.
REFUSED: list[tuple[str, bytes, str]] = [
    # Matrix Market: the banner and the size line.
    ("m.mtx", b"", "line 1: the file is empty"),
    ("m.mtx", b"\n\n", "line 1: not a Matrix Market file: "),
    ("m.mtx", b"\xef\xbb\xbf" + REAL + b"1 1 0\n", "line 1: begins with a byte order mark"),
    ("m.mtx", (REAL + b"1 1 0\n").decode().encode("utf-16"), "line 1: is UTF-16"),
    ("m.mtx", b"\xff" * 99, "line 1: not a Matrix Market file: "),
    ("m.mtx", b"\0" * 10_000, "line 1: not a Matrix Market file: "),
    ("m.mtx", gzip.compress(REAL), "line 1: the content is gzip: name the file .mtx.gz"),
    ("m.mtx", b"%MatrixMarket matrix coordinate real general\n1 1 0\n", "line 1: not a Matrix"),
    ("m.mtx", b"%%MatrixMarket matrix coordinate real\n1 1 0\n", "line 1: not a Matrix Market"),
    ("m.mtx", BANNER + b"real general x\n1 1 0\n", "line 1: not a Matrix Market file"),
    ("m.mtx", b"%%MatrixMarket vector coordinate real general\n1 1 0\n", "line 1: not a Matrix"),
    ("m.mtx", BANNER + b"complex general\n1 1 1\n1 1 1 0\n", "line 1: must hold .* real, integer"),
    ("m.mtx", BANNER + b"complex hermitian\n1 1 1\n1 1 1 0\n", "line 1: must hold"),
    ("m.mtx", BANNER + b"real hermitian\n1 1 1\n1 1 1\n", "line 1: a real matrix must be general"),
    ("m.mtx", BANNER + b"pattern skew-symmetric\n2 2 1\n2 1\n", "line 1: a pattern matrix must"),
    ("m.mtx", b"%%MatrixMarket matrix array real general\n1 1\n1\n", "line 1: must hold a coord"),
    ("m.mtx", REAL, "line 1: the file ends before the line 'rows cols entries'"),
    ("m.mtx", REAL + b"% one\n\n% two\n", "line 4: the file ends before the line"),
    ("m.mtx", REAL + b"% x\n" * 2**20, r"line \d+: no line 'rows cols entries' in the first 10485"),
    ("m.mtx", REAL + b"2 2\n", "line 2: 'rows cols entries' expected, .* got '2 2'"),
    ("m.mtx", REAL + b"2 2 1 1\n", "line 2: 'rows cols entries' expected"),
    ("m.mtx", REAL + b"2 -2 1\n", "line 2: 'rows cols entries' expected"),
    ("m.mtx", REAL + b"2.0 2 1\n", "line 2: 'rows cols entries' expected"),
    ("m.mtx", REAL + b"2 2 0x1\n", "line 2: 'rows cols entries' expected"),
    ("m.mtx", REAL + b"1" + b"0" * 30 + b" 2 1\n1 1 1\n", r"line 2: .*0\.\.2\^63-1, got '1000"),
    ("m.mtx", REAL + b"9" * 5000 + b" 2 1\n1 1 1\n", r"line 2: .* got '9999.*\.\.\.'"),
    ("m.mtx", REAL + b"2 2 9223372036854775808\n1 1 1\n", r"line 2: .*0\.\.2\^63-1"),
    ("m.mtx", REAL + b"1000000000000 2 1\n1 1 1\n", "line 2: .* takes 16.* bytes of memory to"),
    ("m.mtx", SYMMETRIC + b"2 3 1\n1 1 1\n", "line 2: a symmetric matrix is square, got 2x3"),
    # Matrix Market: the number of entries.
    ("m.mtx", REAL + b"2 2 2\n1 1 1\n", "line 3: truncated file: it ends after 1 of 2 entries"),
    ("m.mtx", REAL + b"2 2 1000000000000\n1 1 1\n", "line 3: truncated file: .* 1 of 10{12} "),
    ("m.mtx.gz", gzip.compress(REAL + b"2 2 1000000\n1 1 1\n"), "line 3: truncated file"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1\n\n2 2 1\n", "line 5: too many lines: 1 entries expected"),
    ("m.mtx", REAL + b"2 2 0\n% end\n", "line 3: too many lines: 0 entries expected"),
    ("m.mtx", REAL + b"2 2 1\n" + b"\n" * 200_000, "more than 100000 blank lines"),
    # Matrix Market: an entry.
    ("m.mtx", REAL + b"2 2 1\n% late\n1 1 1\n", "line 3: 3 fields expected, got '% late'"),
    ("m.mtx", REAL + b"2 2 1\n0 1 1\n", r"line 3: a row index in 1\.\.2 expected, got '0'"),
    ("m.mtx", REAL + b"2 2 1\n1 3 1\n", r"line 3: a column index in 1\.\.2 expected, got '3'"),
    ("m.mtx", REAL + b"2 2 1\n-1 1 1\n", r"line 3: a row index in 1\.\.2 expected, got '-1'"),
    ("m.mtx", REAL + b"2 2 1\n1 1.0 1\n", r"line 3: a column index in 1\.\.2 expected, got '1\.0'"),
    ("m.mtx", REAL + b"2 2 1\n4294967297 1 1\n", "line 3: a row index in"),
    ("m.mtx", REAL + b"2 2 1\n18446744073709551617 1 1\n", "line 3: a row index in"),
    ("m.mtx", REAL + b"2 2 1\n" + b"9" * 900 + b" 1 1\n", "line 3: a row index in"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1.5D3\n", "line 3: a value of the field 'real' .* '1 1 1.5D3'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1,5\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 0x1p3\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1abc\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1_000\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1.2.3\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1e\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 .\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 --1\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 nan(1)\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 \xd9\xa3\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1\0\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1\x0b1\n", "line 3: a value of the field 'real'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1e400\n", "line 3: '1e400' is too large for float64"),
    ("m.mtx", REAL + b"2 2 2\n1 1 inf\n2 2 -1e999\n", "line 4: '-1e999' is too large for fl"),
    ("m.mtx", REAL + b"2 2 1\n1 1\n", "line 3: 3 fields expected, got '1 1'"),
    ("m.mtx", REAL + b"2 2 1\n1 1 1 1\n", "line 3: 3 fields expected"),
    ("m.mtx", REAL + b"2 2 2\r1 1 5\r2 2 6\r", "line 2: 'rows cols entries' expected"),
    ("m.mtx", REAL + b"2 2 2\n1 1 5\r2 2 6\r", "line 3: 3 fields expected"),
    ("m.mtx", REAL + b"2 2 1\n1 1 " + b"0" * 1020 + b"1\n", "line 3: longer than 1024 characters"),
    ("m.mtx", INTEGER + b"2 2 1\n1 1 1.5\n", "line 3: a value of the field 'integer' expected"),
    ("m.mtx", INTEGER + b"2 2 1\n1 1 1e3\n", "line 3: a value of the field 'integer' expected"),
    ("m.mtx", INTEGER + b"2 2 1\n1 1 nan\n", "line 3: a value of the field 'integer' expected"),
    ("m.mtx", INTEGER + b"2 2 1\n1 1 9223372036854775808\n", "line 3: a value in -9223.* expected"),
    ("m.mtx", INTEGER + b"2 2 2\n1 1 9223372036854775807\n1 1 1\n", "may exceed int64 when summed"),
    ("m.mtx", PATTERN + b"2 2 1\n1 1 1\n", "line 3: 2 fields expected, got '1 1 1'"),
    ("m.mtx", SYMMETRIC + b"2 2 2\n2 1 1\n1 2 1\n", "line 4: a symmetric matrix stores one side"),
    ("m.mtx", SKEW + b"2 2 2\n2 1 1\n1 1 0\n", "line 4: a skew-symmetric matrix stores no diag"),
    # Compression.
    ("m.mtx.gz", b"", "line 1: the file is empty"),
    ("m.mtx.gz", REAL + b"1 1 0\n", "cannot be read: Not a gzipped file"),
    ("X.MTX.GZ", REAL + b"1 1 0\n", "cannot be read: Not a gzipped file"),
    ("m.mtx.gz", gzip.compress(REAL + b"1 1 0\n")[:-9], "cannot be read: Compressed file ended"),
    ("m.mtx.gz", gzip.compress(REAL + b"1 1 0\n") + b"junk", "cannot be read: Not a gzipped"),
    ("m.mtx.gz", gzip.compress(REAL)[:-8] + b"\0" * 8, "cannot be read: CRC check failed"),
    # DLMC.
    ("m.smtx", b"", "line 1: 'rows, cols, nnz' expected, got ''"),
    ("m.smtx", b"2, 3\n0 1\n1\n", "line 1: 'rows, cols, nnz' expected"),
    ("m.smtx", b"2, 3, -1\n0 1\n1\n", "line 1: 'rows, cols, nnz' expected"),
    ("m.smtx", b"2, 3, 1.0\n0 0 1\n1\n", "line 1: 'rows, cols, nnz' expected"),
    ("m.smtx", b"2, 3, 10000000000\n0 1 3\n1 0 2\n", "line 1: .*10000000000 nonzeros do not fit"),
    ("m.smtx", b"2, 3, " + b"9" * 30 + b"\n0 1 3\n1 0 2\n", "line 1: 'rows, cols, nnz' expected"),
    ("m.smtx", b"2, 3, 3\n0 1\n1 0 2\n", "line 2: 3 row offsets rising from 0 to 3 .*, got 2 "),
    ("m.smtx", b"2, 3, 3\n0 1 2\n1 0 2\n", "line 2: .* rising from 0 to 3 .* from 0 to 2"),
    ("m.smtx", b"2, 3, 3\n1 1 3\n1 0 2\n", "line 2: .* from 1 to 3"),
    ("m.smtx", b"2, 3, 3\n0 1.0 3\n1 0 2\n", r"line 2: integers >= 0 expected, got '\.0'"),
    ("m.smtx", b"2, 3, 3\n0 9223372036854775808 3\n1 0 2\n", "line 2: 3 row offsets rising"),
    ("m.smtx", b"2, 3, 3\n0 1 3\n1 0 18446744073709551618\n", "line 3: 3 column indices in 0..2"),
    ("m.smtx", b"2, 3, 3\n0 1 3\n1 -1 2\n", "line 3: integers >= 0 expected, got '-1'"),
    (
        "m.smtx",
        b"2, 3, 3\n0 1 3\n1 0 3\n",
        r"line 3: 3 column indices in 0..2 expected, got 3 in 0",
    ),
    ("m.smtx", b"2, 3, 3\n0 1 3\n1\x0c0 2\n", "line 3: integers >= 0 expected"),
    ("m.smtx", b"2, 3, 3\n0 1 3\n1 0 2\n5 6 7\n", "line 4: three lines expected, then '5 6 7'"),
    ("m.smtx", b"2, 3, 0\n0 0 0\n" + b"\n" * 10**6, "line 1: 1000014 bytes are too many"),
    # scipy's archives: the members.
    ("m.npz", b"", "File is not a zip file"),
    ("m.npz", b"PK junk", "File is not a zip file"),
    ("m.npz", csr()[:-30], "File is not a zip file"),
    ("m.npz", csr().replace(b"\x00\x00\x14\x40", b"\x01\x00\x14\x40"), "'data': Bad CRC-32"),
    ("m.npz", csr(indptr=None), "it has no member 'indptr'"),
    ("m.npz", csr(format=None), "it has no member 'format'"),
    ("m.npz", npz(x=np.ones(3)), "it has no member 'format'"),
    ("m.npz", csr(mask=np.zeros(3, bool)), r"members that a csr matrix does not have: \['mask'\]"),
    ("m.npz", npz(**{f"x{i}": 1 for i in range(20)}), "it has 20 members"),
    ("m.npz", twice(csr()), "two members of one name"),
    ("m.npz", encrypted(csr()), "member 'format' is encrypted"),
    ("m.npz", claiming(csr(), 2**31), "claims 2147483648 bytes, more than it can hold"),
    ("m.npz", csr(format=b"lil"), "format 'lil' is unknown; known are csr, csc, bsr, coo, dia"),
    ("m.npz", csr(format=b"two\nlines"), r"format 'two\\nlines' is unknown"),
    ("m.npz", csr(format=7), "its member 'format' is no text"),
    ("m.npz", csr(format=np.array([b"csr"] * 2)), "its member 'format' is no text"),
    # scipy's archives: the shape.
    ("m.npz", csr(shape=(2,)), r"shape must be two integers >= 0, got \[2\]"),
    ("m.npz", csr(shape=7), "shape must be two integers >= 0"),
    ("m.npz", csr(shape=(2, 3, 1)), "shape must be two integers >= 0"),
    ("m.npz", csr(shape=(2, -3)), "shape must be two integers >= 0"),
    ("m.npz", csr(shape=(2.0, 3.0)), "shape must be two integers >= 0"),
    ("m.npz", csr(shape=np.array([2, 2**63], np.uint64)), "exceeds what an index can hold"),
    ("m.npz", csr(shape=np.array([10**30, 3], object)), "'shape' holds Python objects, which are"),
    ("m.npz", coo(shape=(10**12, 3)), "takes 16.* bytes of memory to read, the limit is"),
    ("m.npz", csr(shape=np.ones(10**4)), "member 'shape' has 80128 bytes"),
    # scipy's archives: the values.
    ("m.npz", csr(data=np.array([5, 7, 6 + 1j])), "its values are complex, only real ones"),
    ("m.npz", csr(data=np.array([Explosive()] * 3)), "'data' holds Python objects, which are"),
    ("m.npz", csr(data=np.array(["a"] * 3)), "values of type <U1 are not read"),
    ("m.npz", csr(data=np.ones(3, np.longdouble)), "values of type float128 are not read"),
    ("m.npz", csr(data=np.ones(3, "M8[s]")), "member 'data' is no plain array"),
    ("m.npz", csr(data=np.ones(3, "f8,i4")), "member 'data' is no plain array"),
    ("m.npz", csr(data=np.ones(2)), r"indices must be 2 integers, got int32 of shape \(3,\)"),
    ("m.npz", csr(data=np.ones((3, 1))), r"data of a csr matrix has shape \(3, 1\)"),
    (
        "m.npz",
        csr(data=np.array([127, 127, 1], np.int8), indices=np.array([1, 2, 2])[[1, 0, 0]] * 0),
        "duplicates of up to 127 may exceed int8",
    ),
    ("m.npz", npy_header(b"{'descr': '<f8', "), "member 'data' is no plain array"),
    ("m.npz", npy_header(b"__import__('os').abort()"), "member 'data' is no plain array"),
    ("m.npz", npy_header(b"(" * 9000), "member 'data' is no plain array"),
    (
        "m.npz",
        npy_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
        r"member 'data' has 0 bytes for float64 of shape \(1000000000000,\)",
    ),
    (
        "m.npz",
        npy_header(b"{'descr': '<f7', 'fortran_order': False, 'shape': (0,), }"),
        "member 'data' has the unknown type '<f7'",
    ),
    # scipy's archives: the indices, wrong in a way that scipy would follow through memory.
    ("m.npz", csr(indices=np.array([1, 0, 3])), "indices holds 0..3, .* outside its shape: 0..2"),
    ("m.npz", csr(indices=np.array([1, -1, 2])), r"indices holds -1\.\.2"),
    ("m.npz", csr(indices=np.array([1.0, 0.0, 2.0])), "indices must be 3 integers, got float64"),
    ("m.npz", csr(indices=np.array([True, False, True])), "indices must be 3 integers, got bool"),
    ("m.npz", csr(indices=np.array([1, 0, 2**64 - 1], np.uint64)), "indices holds 184.* exceeds"),
    ("m.npz", csr(indptr=np.array([0, 1, 2])), "indptr does not rise from 0 to 3"),
    ("m.npz", csr(indptr=np.array([0, 1, 4])), r"indptr holds 0\.\.4"),
    ("m.npz", csr(indptr=np.array([1, 1, 3])), "indptr does not rise from 0 to 3"),
    ("m.npz", csr(indptr=np.array([0, 3])), "indptr must be 3 integers"),
    ("m.npz", csr(indptr=np.array([0, -(2**62), 3])), "indptr holds -4611686018427387904"),
    ("m.npz", csr(shape=(3, 3), indptr=np.array([0, 2, 1, 3])), "indptr does not rise"),
    ("m.npz", csc(indices=np.array([1, 0, 10**9])), r"indices holds 0\.\.1000000000"),
    ("m.npz", csc(indices=np.array([1, 0, -(10**9)])), r"indices holds -1000000000\.\.1"),
    ("m.npz", csc(indptr=np.array([0, 10**9, 2, 3])), r"indptr holds 0\.\.1000000000"),
    ("m.npz", csc(indptr=np.array([0, 2, 1, 3])), "indptr does not rise from 0 to 3"),
    ("m.npz", csc(indptr=np.array([0, 1, 3])), r"indptr must be 4 integers, got int64 of shape"),
    ("m.npz", coo(row=np.array([0, 1, 2])), r"row holds 0\.\.2"),
    ("m.npz", coo(col=np.array([0, 1, -2])), r"col holds -2\.\.1"),
    ("m.npz", coo(col=np.array([0, 1])), "col must be 3 integers"),
    (
        "m.npz",
        csr(format=b"bsr", data=np.ones((3, 2, 2))),
        "blocks of 2x2 do not divide 2x3",
    ),
    (
        "m.npz",
        csr(format=b"bsr", data=np.ones((3, 0, 2))),
        "blocks of 0x2 do not divide 2x3",
    ),
    (
        "m.npz",
        npz(format=b"dia", shape=(2, 3), data=np.ones((2, 3)), offsets=np.array([1, 1])),
        "offsets holds a diagonal twice",
    ),
    (
        "m.npz",
        npz(format=b"dia", shape=(2, 3), data=np.ones((2, 3)), offsets=np.array([1, 99])),
        r"offsets holds 1\.\.99",
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    REFUSED,
    ids=[f"{i}-{row[2][:40]}" for i, row in enumerate(REFUSED)],
)
def test_a_hostile_file_is_refused_in_one_line(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert_refused_in_one_line(path, words)
    assert "exploded" not in sys.modules


NAN = float("nan")
READ: list[tuple[str, bytes, list[list[float]]]] = [
    ("m.mtx", (REAL + b"% x\n2 2 2\n1 1 5\n2 2 6\n").replace(b"\n", b"\r\n"), [[5, 0], [0, 6]]),
    ("m.mtx", REAL + b"2 2 2\n\n 1\t1  5 \n\n2 2 6", [[5, 0], [0, 6]]),
    ("m.mtx", REAL.lower() + b"2 2 1\n1 1 5\n", [[5, 0], [0, 0]]),
    ("m.mtx", REAL + b"% \xff\xfe\0 not UTF-8\n1 1 1\n1 1 5\n", [[5]]),
    ("m.mtx", REAL + b"1 7 7\n1 1 +1.5\n1 2 .5\n1 3 5.\n1 4 -1E+2\n1 5 1e-999\n1 6 007\n1 7 1e0\n",
     [[1.5, 0.5, 5, -100, 0, 7, 1]]),
    ("m.mtx", REAL + b"1 3 3\n1 1 nan\n1 2 -Inf\n1 3 +INFINITY\n", [[NAN, -np.inf, np.inf]]),
    ("m.mtx", INTEGER + b"1 3 3\n1 1 -9223372036854775808\n1 2 +7\n1 3 9223372036854775807\n",
     [[-(2**63), 7, 2**63 - 1]]),
    ("m.mtx", SYMMETRIC + b"2 2 2\n1 2 5\n2 2 6\n", [[0, 5], [5, 6]]),
    ("X.MTX.GZ", gzip.compress(REAL + b"1 1 1\n1 1 5\n"), [[5]]),
    ("m.mtx.gz", gzip.compress(REAL + b"1 1 1\n") + gzip.compress(b"1 1 5\n"), [[5]]),
    ("m.smtx", b"2 3 3\r\n0 1 3\r\n1 0 2\r\n", [[0, 1, 0], [1, 0, 1]]),
    ("m.smtx", b"2, 3, 0\n0 0 0\n", [[0, 0, 0], [0, 0, 0]]),
    ("m.npz", csr(), [[0, 5, 0], [7, 0, 6]]),
    ("m.npz", csc(), [[0, 5, 0], [7, 0, 6]]),
    ("m.npz", coo(data=np.array([5, 7, 6], ">f4")), [[0, 5, 0], [7, 0, 6]]),
    ("m.npz", csr(data=np.array([5, 7, 6], np.float16)), [[0, 5, 0], [7, 0, 6]]),
    ("m.npz", csr(indices=np.array([1, 0, 2], np.uint8)), [[0, 5, 0], [7, 0, 6]]),
    ("m.npz", csr(data=np.array([5, NAN, np.inf])), [[0, 5, 0], [NAN, 0, np.inf]]),
    ("m.npz", csr(format=b"bsr", shape=(4, 3), indices=np.array([1, 0, 2]),
                  data=np.asfortranarray(np.arange(1.0, 7).reshape(3, 2, 1))),
     [[0, 1, 0], [0, 2, 0], [3, 0, 5], [4, 0, 6]]),
    ("m.npz", npz(format=b"dia", shape=(2, 3), data=np.array([[0.0, 1, 2], [3, 4, 9]]),
                  offsets=np.array([1, 0])), [[3, 1, 0], [0, 4, 2]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "expected"), READ, ids=range(len(READ)))
def test_an_unusual_file_is_read_right(
    name: str, content: bytes, expected: list[list[float]], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    matrix = datasets.read(path)
    np.testing.assert_array_equal(matrix.toarray(), expected)
    rows, cols, nnz = datasets.read_size(path)
    assert (rows, cols) == matrix.shape
    assert nnz >= matrix.nnz
