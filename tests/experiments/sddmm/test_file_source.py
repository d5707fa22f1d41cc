"""The memory guard knows how large a matrix file is, whatever its kind, before it is read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from experiments.bench.errors import ExperimentError
from experiments.bench.sources import File, Size
from experiments.sddmm.case import make_case
from experiments.sddmm.config import Config


def identity(path: Path) -> Path:
    """A file that holds the 300 x 300 identity in the way that its name says."""
    matrix = scipy.sparse.coo_array(np.eye(300))
    if path.suffix == ".npz":
        scipy.sparse.save_npz(path, matrix)
    elif path.suffix == ".smtx":
        offsets, columns = (" ".join(map(str, range(count))) for count in (301, 300))
        path.write_text(f"300, 300, 300\n{offsets}\n{columns}\n")
    else:
        plain = path.with_name("plain.mtx")
        scipy.io.mmwrite(plain, matrix, symmetry="general")
        text = plain.read_bytes()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz", "m.smtx", "m.npz"])
def test_a_file_larger_than_memory_is_refused_before_it_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = File(path=str(identity(tmp_path / name)))
    assert source.size() == Size(300, 300, 300)
    monkeypatch.setattr(File, "load", lambda self: pytest.fail("was read"))
    monkeypatch.setattr("experiments.sddmm.case.available_memory", lambda: 50_000)
    with pytest.raises(ExperimentError, match=r"300x300, 300 nonzeros\) with k=256 needs \d+ byte"):
        make_case(name, Config(matrix=source))


def test_a_promise_that_the_file_cannot_hold_is_no_question_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.mtx"
    path.write_text(f"%%MatrixMarket matrix coordinate real general\n2 2 {10**12}\n1 1 5\n")
    with pytest.raises(ExperimentError, match=r"m\.mtx: line 3: truncated file: .* 1 of 10{12}"):
        make_case("m", Config(matrix=File(path=str(path)), k=2))


@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz", "m.smtx", "m.npz"])
def test_a_broken_file_is_one_line_that_names_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"junk\njunk\n")
    with pytest.raises(ExperimentError) as caught:
        make_case(name, Config(matrix=File(path=str(tmp_path / name)), k=2))
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert str(caught.value).isprintable()
