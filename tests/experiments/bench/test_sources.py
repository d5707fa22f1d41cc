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
        sources.HashedRmat(rows=30, cols=40, nnz=100),
        sources.PowerLaw(rows=30, cols=40, nnz=100),
        sources.Banded(rows=30, cols=40, bandwidth=3),
        sources.BlockDiagonal(rows=30, cols=40, block=8),
        sources.Fem(nx=2, ny=3, nz=4),
        sources.StarStencil(nx=5, ny=4),
        sources.SmallGraphs(length=30, graphs=4, bonds=9),
        sources.NearestNeighbors(points=30, neighbors=4),
        sources.PopularColumns(rows=30, cols=40, nnz=100),
        sources.OneLongColumn(rows=30, cols=40, nnz=100, length=25),
        sources.Causal(rows=30, cols=40),
        sources.Causal(rows=40, cols=30),
        sources.PackedCausal(length=30, sequences=3),
        sources.SlidingWindow(length=30, window=3, global_tokens=4),
        sources.DilatedWindow(length=30, window=3, dilation=4),
        sources.RandomBlocks(rows=30, cols=40, block=8, density=0.4),
        sources.BlocksAndNoise(length=30, block=8, noise_nnz=50),
        sources.File(path=str(path)),
    ]
    assert {type(source) for source in every} == set(sources.SOURCES.values())
    for source in every:
        rows, cols, nnz = source.size()
        matrix = source.load()
        assert matrix.shape == (rows, cols)
        assert nnz is not None
        assert matrix.nnz <= nnz
