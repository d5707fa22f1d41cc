"""Matrix sources know their size before they load, and load what they promise."""

from __future__ import annotations

from pathlib import Path

import scipy.io

from experiments.bench import sources


def test_every_source_knows_its_size_before_it_loads(tmp_path: Path) -> None:
    path = tmp_path / "m.mtx"
    scipy.io.mmwrite(path, sources.Uniform(rows=9, cols=8, nnz=12).load())
    every = [
        sources.Uniform(rows=30, cols=40, sparsity=0.9),
        sources.Rmat(rows=30, cols=40, nnz=100),
        sources.PowerLaw(rows=30, cols=40, nnz=100),
        sources.Banded(rows=30, cols=40, bandwidth=3),
        sources.BlockDiagonal(rows=30, cols=40, block=8),
        sources.Fem(nx=2, ny=3, nz=4),
        sources.File(path=str(path)),
    ]
    assert {type(source) for source in every} == set(sources.SOURCES.values())
    for source in every:
        rows, cols, nnz = source.size()
        matrix = source.load()
        assert matrix.shape == (rows, cols)
        assert nnz is not None
        assert matrix.nnz <= nnz
