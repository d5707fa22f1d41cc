"""A study over a folder has a case for each matrix file, and tells what is left out and why."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from experiments.bench.arguments import prepare
from experiments.bench.errors import ExperimentError
from experiments.bench.sources import File
from experiments.sddmm.config import Config
from experiments.sddmm.folder import cases_of
from experiments.sddmm.objective import SDDMM

MATRIX = "%%MatrixMarket matrix coordinate pattern general\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A download of several collections, with what else may lie there."""
    for name in ("graphs/raw", "dlmc/0.9"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "small.mtx").write_text(MATRIX + "2 2 1\n1 1\n")
    (tmp_path / "LARGE.MTX").write_text(
        MATRIX + "9 9 9\n" + "".join(f"{i} 1\n" for i in range(1, 10))
    )
    (tmp_path / "dlmc/0.9/a b.smtx").write_text("2, 3, 3\n0 1 3\n1 0 2\n")
    for name, text in (("edge", "0,1\n1,2\n"), ("num-node-list", "3\n"), ("num-edge-list", "2\n")):
        (tmp_path / f"graphs/raw/{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "readme.txt").write_text("no matrix")
    (tmp_path / "graphs/again").symlink_to(tmp_path)
    return tmp_path


def labels(folder: Path, **options: object) -> list[str]:
    return [label for label, _ in cases_of(Config(matrix=None, folder=str(folder), **options))]


def test_every_matrix_file_is_a_case_under_its_path(folder: Path) -> None:
    config = Config(matrix=None, folder=str(folder), k=8, dtype="float16")
    cases = dict(SDDMM.cases(config, {"matrix": "1000x1000", "study": "folder"}))
    assert list(cases) == ["LARGE.MTX", "small.mtx", "dlmc/0.9/a b.smtx", "graphs/raw/edge.csv.gz"]
    graph = cases["graphs/raw/edge.csv.gz"]
    assert (graph.k, graph.dtype, graph.folder) == (8, "float16", "")
    assert graph.matrix == File(path=str(folder / "graphs/raw/edge.csv.gz"))
    assert SDDMM.make_case("g", graph, SDDMM.identity(graph)).pattern.shape == (3, 3)


def test_names_and_sizes_choose_among_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert labels(folder, glob="*.smtx") == labels(folder, glob="dlmc/*") == ["dlmc/0.9/a b.smtx"]
    assert capsys.readouterr().out == ""
    assert labels(folder, min_nnz=2, max_nnz=3) == ["dlmc/0.9/a b.smtx", "graphs/raw/edge.csv.gz"]
    assert capsys.readouterr().out.splitlines() == [
        f"left out: {folder}/LARGE.MTX: 9 nonzeros, max_nnz is 3",
        f"left out: {folder}/small.mtx: 1 nonzeros, min_nnz is 2",
    ]


def test_what_cannot_be_read_is_listed_with_the_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "dlmc/broken.mtx").write_text("junk")
    (folder / "graphs/raw/num-edge-list.csv.gz").unlink()
    os.mkfifo(folder / "pipe.npz")
    assert labels(folder) == ["LARGE.MTX", "small.mtx", "dlmc/0.9/a b.smtx"]
    pipe, broken, graph = capsys.readouterr().out.splitlines()
    assert pipe == f"left out: {folder}/pipe.npz: is no ordinary file"
    assert "broken.mtx: line 1: not a Matrix Market file" in broken
    assert graph == f"left out: {folder}/graphs/raw/num-edge-list.csv.gz: no such file"


def test_a_folder_that_is_none_or_holds_nothing_to_measure_is_refused(folder: Path) -> None:
    for wrong in ("", str(folder / "small.mtx"), str(folder / "absent")):
        with pytest.raises(ExperimentError, match="folder must be a folder of matrix files, got"):
            SDDMM.cases(Config(matrix=None, folder=wrong), {"study": "folder"})
    with pytest.raises(ExperimentError, match=r"\(glob='x'\): no file of \.mtx, \.mtx\.gz, \.tar"):
        labels(folder, glob="x")
    with pytest.raises(ExperimentError, match="none of 4 files can be measured"):
        labels(folder, min_nnz=100)


def test_a_folder_and_a_pattern_are_written_as_they_are() -> None:
    assert prepare(["folder=my files, all", "glob=*/{a}*"]) == [
        "folder='my files, all'", "glob='*/{a}*'",
    ]  # fmt: skip
