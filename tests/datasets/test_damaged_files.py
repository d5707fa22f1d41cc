"""A cut or flipped file gives what a strict reader gives, or one line of error.

The strict readers here follow the formats line by line, without a thought of speed.
"""

from __future__ import annotations

import gzip
import io
import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import datasets
from datasets import FileError

NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
Strict = Callable[[bytes], np.ndarray]


def strict_matrix_market(content: bytes) -> np.ndarray:
    """The dense matrix; ValueError or IndexError for anything that the format does not have."""
    lines = content.split(b"\n")
    banner = lines[0].lower().split()
    assert banner[:3] == [b"%%matrixmarket", b"matrix", b"coordinate"], banner
    _, _, _, field, symmetry = banner
    assert field in (b"real", b"integer", b"pattern"), field
    assert symmetry in (b"general", b"symmetric", b"skew-symmetric"), symmetry
    at = 1
    while lines[at].startswith(b"%") or not lines[at].strip(b" \t\r"):
        at += 1
    rows, cols, count = (whole(word) for word in lines[at].split())
    assert max(rows, cols) < 10**4
    assert symmetry == b"general" or rows == cols
    dense: dict[tuple[int, int], float] = defaultdict(float)
    entries = [line.removesuffix(b"\r") for line in lines[at + 1 :]]
    entries = [line for line in entries if line.strip(b" \t")]
    assert len(entries) == count
    for line in entries:
        words = [word for word in re.split(rb"[ \t]+", line) if word]
        assert len(words) == 2 + (field != b"pattern")
        i, j = whole(words[0]) - 1, whole(words[1]) - 1
        assert 0 <= i < rows
        assert 0 <= j < cols
        value = strict_value(field, words[2]) if field != b"pattern" else 1.0
        dense[i, j] += value
        if symmetry != b"general" and i != j:
            dense[j, i] += -value if symmetry == b"skew-symmetric" else value
        assert symmetry != b"skew-symmetric" or i != j
    if symmetry != b"general":  # one side of the diagonal only
        sides = {whole(line.split()[0]) > whole(line.split()[1]) for line in entries
                 if whole(line.split()[0]) != whole(line.split()[1])}  # fmt: skip
        assert len(sides) <= 1
    return filled(dense, rows, cols)


def strict_value(field: bytes, word: bytes) -> float:
    if field == b"integer":
        return whole(word.removeprefix(b"-")) * (-1 if word.startswith(b"-") else 1)
    if re.fullmatch(rb"[+-]?(nan|inf|infinity)", word.lower()):
        return float(word)
    assert NUMBER.fullmatch(word), word
    assert np.isfinite(float(word)), word
    return float(word)


def whole(word: bytes) -> int:
    assert re.fullmatch(rb"[0-9]{1,18}", word), word
    return int(word)


def filled(entries: dict[tuple[int, int], float], rows: int, cols: int) -> np.ndarray:
    dense = np.zeros((rows, cols))
    for (i, j), value in entries.items():
        dense[i, j] = value
    return dense


def strict_dlmc(content: bytes) -> np.ndarray:
    head, crow_line, col_line, *rest = [*content.replace(b"\r\n", b"\n").split(b"\n"), b""]
    assert not b"".join(rest).strip(b" \t\r")
    found = re.fullmatch(rb"[ \t]*([0-9]+)(?:[ \t]*,[ \t]*|[ \t]+)([0-9]+)"
                         rb"(?:[ \t]*,[ \t]*|[ \t]+)([0-9]+)[ \t\r]*", head)  # fmt: skip
    assert found, head
    rows, cols, count = (whole(word) for word in found.groups())
    crow, columns = (
        [whole(word) for word in re.split(rb"[ \t]+", line.rstrip(b"\r")) if word]
        for line in (crow_line, col_line)
    )
    assert len(crow) == rows + 1
    assert len(columns) == count
    assert crow == sorted(crow)
    assert (crow[0], crow[-1]) == (0, count)
    assert all(column < cols for column in columns)
    dense: dict[tuple[int, int], float] = defaultdict(float)
    for i in range(rows):
        for column in columns[crow[i] : crow[i + 1]]:
            dense[i, column] += 1
    return filled(dense, rows, cols)


def matrix_market(field: str, symmetry: str = "general") -> bytes:
    buffer = io.BytesIO()
    matrix = datasets.uniform(12, 12, 20, values="uniform", seed=3)
    lower = scipy.sparse.tril(matrix, -1)
    if symmetry == "symmetric":
        matrix = lower + lower.T
    if symmetry == "skew-symmetric":
        matrix = lower - lower.T
    if field == "integer":
        matrix = matrix.astype(int)
    scipy.io.mmwrite(buffer, matrix, field=field, symmetry=symmetry, precision=4)
    return buffer.getvalue()


def npz(form: str, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    matrix = datasets.uniform(12, 18, 20, values="uniform", seed=3).asformat(form)
    scipy.sparse.save_npz(buffer, matrix, compressed=compressed)
    return buffer.getvalue()


def unchanged(whole: bytes) -> Strict:
    """A file with checksums is read as it was, or not at all."""
    expected = scipy.sparse.load_npz(io.BytesIO(whole)).toarray()
    return lambda content: expected


def unzipped(content: bytes) -> np.ndarray:
    try:
        text = gzip.decompress(content)
    except Exception as error:
        raise AssertionError from error
    return strict_matrix_market(text)


DLMC = b"5, 9, 7\n0 2 2 3 5 7\n1 8 4 0 7 2 3\n"
FILES: dict[str, tuple[bytes, Strict]] = {
    "real.mtx": (matrix_market("real"), strict_matrix_market),
    "integer.mtx": (matrix_market("integer"), strict_matrix_market),
    "pattern.mtx": (matrix_market("pattern"), strict_matrix_market),
    "symmetric.mtx": (matrix_market("real", "symmetric"), strict_matrix_market),
    "skew.mtx": (matrix_market("real", "skew-symmetric"), strict_matrix_market),
    "real.mtx.gz": (gzip.compress(matrix_market("real"), mtime=0), unzipped),
    "dlmc.smtx": (DLMC, strict_dlmc),
} | {
    f"{form}{compressed:d}.npz": (npz(form, compressed), unchanged(npz(form, compressed)))
    for form in ("csr", "csc", "coo", "bsr", "dia")
    for compressed in (False, True)
}  # fmt: skip


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content cut, or with one to three of its bytes changed, left out or put in."""
    if rng.random() < 0.2:
        return content[: rng.randrange(len(content))]
    result = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(result))
        new = rng.choice([rng.randrange(256), *b"0123456789.eE+-, \t\r\n%xD"])
        kind = rng.random()
        if kind < 0.6:
            result[at] = new
        elif kind < 0.8:
            del result[at]
        else:
            result.insert(at, new)
    return bytes(result)


def read_or_refused(path: Path) -> scipy.sparse.csr_array | None:
    """The matrix, or None if it is refused in one line."""
    try:
        return datasets.read(path, max_bytes=10**8)
    except FileError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return None


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_as_a_strict_reader_does_or_refused(
    name: str, tmp_path: Path
) -> None:
    whole_file, strict = FILES[name]
    path, rng = tmp_path / name, random.Random(name)
    path.write_bytes(whole_file)
    np.testing.assert_array_equal(datasets.read(path).toarray(), strict(whole_file))
    for turn in range(300):
        content = damaged(whole_file, rng)
        path.write_bytes(content)
        result = read_or_refused(path)
        if result is None:
            continue
        try:
            expected = strict(content)
        except (AssertionError, ValueError, IndexError) as error:
            pytest.fail(f"turn {turn}: a strict reader refuses {content!r}: {error!r}")
        np.testing.assert_allclose(result.toarray(), expected, rtol=1e-6, err_msg=repr(content))


@pytest.mark.parametrize("name", [name for name, (_, f) in FILES.items() if not name.endswith("z")])
def test_what_a_strict_reader_takes_is_not_refused(name: str, tmp_path: Path) -> None:
    """The other way round: strictness costs no file that the format allows."""
    whole_file, strict = FILES[name]
    path, rng, taken = tmp_path / name, random.Random(name), 0
    for _ in range(300):
        content = damaged(whole_file, rng)
        try:
            strict(content)
        except (AssertionError, ValueError, IndexError):
            continue
        path.write_bytes(content)
        assert datasets.read(path, max_bytes=10**8) is not None, content
        taken += 1
    assert taken > 3


def test_crafted_indices_give_the_matrix_or_one_line(tmp_path: Path) -> None:
    """Archives whose checksums are right and whose indices may be anything."""
    path, rng = tmp_path / "m.npz", np.random.default_rng(5)
    read = 0
    for turn in range(400):
        form = ("csr", "csc", "coo")[turn % 3]
        matrix = datasets.uniform(4, 5, 6, values="uniform", seed=turn).asformat(form)
        names = ("row", "col") if form == "coo" else ("indices", "indptr")
        arrays = {name: getattr(matrix, name).astype(rng.choice([np.int32, np.int64]))
                  for name in names}  # fmt: skip
        victim = arrays[str(rng.choice(names))]
        victim[rng.integers(victim.size)] = rng.choice([-1, 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1])
        if rng.random() < 0.1:
            arrays[names[0]] = arrays[names[0]][:-1]
        np.savez(path, format=form.encode(), shape=(4, 5), data=matrix.data, **arrays)
        expected = strict_triplets(form, matrix.data, arrays)
        result = read_or_refused(path)
        assert (result is None) == (expected is None)
        if result is None:
            continue
        np.testing.assert_allclose(result.toarray(), expected, rtol=1e-6)
        read += 1
    assert 50 < read < 350


def strict_triplets(
    form: str, data: np.ndarray, arrays: dict[str, np.ndarray]
) -> np.ndarray | None:
    """The dense 4 x 5 matrix, or None where the indices are not sound."""
    first, second = (array.tolist() for array in arrays.values())
    if form != "coo":
        majors = 4 if form == "csr" else 5
        if len(second) != majors + 1 or second != sorted(second):
            return None
        if (second[0], second[-1]) != (0, len(data)):
            return None
        major = [i for i in range(majors) for _ in range(second[i], second[i + 1])]
        first, second = (major, first) if form == "csr" else (first, major)
    if not len(first) == len(second) == len(data):
        return None
    if not all(0 <= i < 4 and 0 <= j < 5 for i, j in zip(first, second, strict=True)):
        return None
    dense = np.zeros((4, 5))
    np.add.at(dense, (first, second), data)
    return dense
