"""Each generator makes the matrix it promises, the same one for the same seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.csgraph

import datasets
from datasets.sampling import draw_distinct
from tests.conftest import ROOT

GENERATORS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "uniform": (datasets.uniform, {"rows": 60, "cols": 80, "nnz": 700}, 700),
    "uniform dense": (datasets.uniform, {"rows": 60, "cols": 80, "nnz": 4700}, 4700),
    "rmat": (datasets.rmat, {"rows": 100, "cols": 70, "nnz": 900}, 900),
    "hashed_rmat": (datasets.hashed_rmat, {"rows": 100, "cols": 70, "nnz": 900}, 900),
    "power_law": (datasets.power_law, {"rows": 90, "cols": 50, "nnz": 800}, 800),
    "banded": (datasets.banded, {"rows": 9, "cols": 6, "bandwidth": 1}, 17),
    "block_diagonal": (datasets.block_diagonal, {"rows": 10, "cols": 7, "block": 4}, 28),
    "star_stencil": (datasets.star_stencil, {"nx": 4, "ny": 3}, 12 + 2 * (3 * 3 + 4 * 2)),
    # Trees of 4 graphs over 20 nodes, whose edges are stored twice.
    "small_graphs": (datasets.small_graphs, {"length": 20, "graphs": 4, "bonds": 0}, 2 * (20 - 4)),
    "nearest_neighbors": (datasets.nearest_neighbors, {"points": 80, "neighbors": 5}, 400),
    "popular_columns": (datasets.popular_columns, {"rows": 90, "cols": 50, "nnz": 800}, 800),
    "one_long_column": (
        datasets.one_long_column,
        {"rows": 90, "cols": 50, "nnz": 200, "length": 70},
        200,
    ),
    "causal": (datasets.causal, {"rows": 7, "cols": 9}, 7 * 8 // 2 + 2 * 7),
    "sliding_window": (datasets.sliding_window, {"length": 9, "window": 1}, 9 + 2 * 8),
    "dilated_window": (
        datasets.dilated_window,
        {"length": 9, "window": 1, "dilation": 2},
        9 + 2 * 7,
    ),
    "random_blocks": (
        datasets.random_blocks,
        {"rows": 32, "cols": 48, "block": 8, "density": 0.25},
        6 * 64,
    ),
    "fem": (datasets.fem, {"nx": 3, "ny": 2, "nz": 2, "block": 2}, 7 * 2 * 2 * 2 * 2 * 2),
}


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("values", ["ones", "uniform"])
def test_exact_nnz_canonical_form_values_and_seeds(name: str, values: str) -> None:
    generate, arguments, nnz = GENERATORS[name]
    if name == "fem":
        nnz = (3 * 3 - 2) * (2 * 2) * (2 * 2) * 4
    matrix = generate(**arguments, values=values, seed=3)
    assert isinstance(matrix, scipy.sparse.csr_array)
    assert (matrix.nnz, matrix.dtype, matrix.indices.dtype) == (nnz, np.float32, np.int32)
    rebuilt = scipy.sparse.csr_array(
        (matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape
    )
    assert rebuilt.has_canonical_format
    rebuilt.check_format(full_check=True)
    low, high = (1, 1) if values == "ones" else (1, 10)
    assert low <= matrix.data.min() <= matrix.data.max() <= high
    again = generate(**arguments, values=values, seed=3)
    np.testing.assert_array_equal(matrix.toarray(), again.toarray())
    other = generate(**arguments, values="uniform", seed=4)
    assert (matrix.toarray() != other.toarray()).any()


def test_uniform_positions_are_uniform() -> None:
    """Chi-square of cell counts over many seeds, below and above half density."""
    for nnz in (6, 18):
        counts = sum(datasets.uniform(4, 6, nnz, seed=s).toarray() for s in range(600))
        expected = 600 * nnz / 24
        chi_square = ((counts - expected) ** 2 / expected).sum() / (1 - nnz / 24)
        assert chi_square < 60  # 23 degrees of freedom: one in 40,000


@pytest.mark.parametrize("nnz", [0, 1, 24, 23, 12])
def test_uniform_at_the_extremes(nnz: int) -> None:
    assert datasets.uniform(4, 6, nnz).nnz == nnz


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_10_million_nonzeros_take_no_more_than_30_bytes_each() -> None:
    """The peak is that of a process of its own, of which scipy and numpy take 0.1 GB. (getrusage
    would count the process that started it.)"""
    code = (
        "import datasets\n"
        "print(datasets.uniform(50_000, 50_000, 10_000_000).nnz)\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "print(next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    nnz, peak = map(int, done.stdout.split())
    assert nnz == 10_000_000
    assert peak < 0.1e9 + 30 * nnz


def _quadrants(matrix: scipy.sparse.csr_array, at: int, size: int) -> list[float]:
    """The nonzeros of the four squares of a size whose corner is at (at, at), over all of them."""
    half = matrix.toarray()[at : at + 2 * size, at : at + 2 * size] != 0
    squares = [half[i : i + size, j : j + size].sum() for i in (0, size) for j in (0, size)]
    return [square / half.sum() for square in squares]


@pytest.mark.parametrize(
    "matrix",
    [
        datasets.rmat(1024, 1024, 20_000, a=0.4, b=0.3, c=0.2),
        datasets.hashed_rmat(1024, 1024, 20_000, a=0.4, b=0.3, c=0.2, shuffled=False),
    ],
    ids=["rmat", "hashed_rmat"],
)
def test_rmat_quadrants_have_their_probabilities(matrix: scipy.sparse.csr_array) -> None:
    for at, size in ((0, 512), (0, 256), (512, 256)):  # at the first level, and at the second
        shares = _quadrants(matrix, at, size)
        np.testing.assert_allclose(shares, [0.4, 0.3, 0.2, 0.1], atol=0.04)


def test_a_shuffled_rmat_graph_has_its_nonzeros_everywhere_and_as_many_in_a_row() -> None:
    shuffled, plain = (
        datasets.hashed_rmat(1024, 1024, 20_000, shuffled=shuffled) for shuffled in (True, False)
    )
    lengths = [np.sort(np.diff(x.indptr))[::-1] for x in (shuffled, plain)]
    np.testing.assert_allclose(lengths[0][:50], lengths[1][:50], rtol=0.2)
    assert _quadrants(plain, 0, 512)[0] > 0.45
    np.testing.assert_allclose(_quadrants(shuffled, 0, 512), 0.25, atol=0.05)


@pytest.mark.gpu
def test_a_gpu_makes_the_same_graph_as_a_cpu() -> None:
    fields = {"rows": 100_000, "cols": 90_000, "nnz": 1_000_000}
    crow, cols = datasets.hashed_rmat_indices(**fields, device="cuda")
    matrix = datasets.hashed_rmat(**fields)
    np.testing.assert_array_equal(crow.cpu(), matrix.indptr)
    np.testing.assert_array_equal(cols.cpu(), matrix.indices)


def test_power_law_concentrates_and_has_its_long_row() -> None:
    matrix = datasets.power_law(2000, 1500, 20_000, longest_row=1200)
    lengths = np.sort(np.diff(matrix.indptr))[::-1]
    assert matrix.nnz == 20_000
    assert lengths[0] >= 1200
    assert lengths[:200].sum() > 0.3 * 20_000
    flat = datasets.power_law(2000, 1500, 20_000, exponent=1.0)
    assert np.diff(flat.indptr).max() < 40


def test_banded_and_blocks_are_where_they_should_be() -> None:
    i, j = np.indices((9, 6))
    np.testing.assert_array_equal(datasets.banded(9, 6, 2).toarray(), abs(i - j) <= 2)
    np.testing.assert_array_equal(datasets.banded(3, 6, 9).toarray(), np.ones((3, 6)))
    i, j = np.indices((10, 7))
    np.testing.assert_array_equal(datasets.block_diagonal(10, 7, 4).toarray(), i // 4 == j // 4)


def test_small_graphs_are_symmetric_and_each_is_connected() -> None:
    matrix = datasets.small_graphs(500, 40, 100)
    assert (matrix != matrix.T).nnz == 0
    assert matrix.diagonal().sum() == 0
    assert 2 * (500 - 40) < matrix.nnz <= 2 * (500 - 40 + 100)
    count, labels = scipy.sparse.csgraph.connected_components(matrix)
    assert count == 40
    assert np.array_equal(labels, np.sort(labels))  # one after another
    coo = matrix.tocoo()
    assert np.abs(coo.row - coo.col).max() <= 6


def test_a_star_stencil_couples_a_point_with_its_next_neighbours() -> None:
    point = np.arange(24)
    x, y, z = point % 4, point // 4 % 3, point // 12
    steps = sum(abs(c[:, None] - c[None, :]) for c in (x, y, z))
    np.testing.assert_array_equal(datasets.star_stencil(4, 3, 2).toarray(), steps <= 1)
    five = datasets.star_stencil(5, 4)
    assert np.diff(five.indptr).max() == 5


def test_masks_are_where_they_should_be() -> None:
    i, j = np.indices((9, 9))
    np.testing.assert_array_equal(datasets.causal(9, 9).toarray(), j <= i)
    for rows, cols in ((3, 8), (8, 3)):
        last = i[:rows, :cols] + cols - rows
        np.testing.assert_array_equal(
            datasets.causal(rows, cols).toarray(), j[:rows, :cols] <= last
        )
    for width, kept in ((2, 0), (2, 3), (0, 9), (20, 1)):
        window = datasets.sliding_window(9, width, global_tokens=kept).toarray()
        whole = (i < kept) | (j < kept)
        np.testing.assert_array_equal(window, (abs(i - j) <= width) | whole)


def test_a_dilated_window_has_gaps_between_its_diagonals() -> None:
    i, j = np.indices((9, 9))
    for window, dilation in ((2, 3), (0, 4), (3, 1), (20, 5)):
        dense = datasets.dilated_window(9, window, dilation).toarray()
        is_stored = ((i - j) % dilation == 0) & (abs(i - j) <= window * dilation)
        np.testing.assert_array_equal(dense, is_stored)


def test_packed_sequences_are_causal_and_do_not_see_each_other() -> None:
    dense = datasets.packed_causal(50, 6, seed=2).toarray() != 0
    first = dense.argmax(1)
    i, j = np.indices((50, 50))
    np.testing.assert_array_equal(dense, (j >= first[:, None]) & (j <= i))
    assert len(np.unique(first)) == 6
    assert (first[first] == first).all()


def test_random_blocks_are_whole_and_cut_at_the_edge() -> None:
    dense = datasets.random_blocks(20, 27, 8, 0.5, seed=1).toarray() != 0
    for i in range(0, 20, 8):
        for j in range(0, 27, 8):
            block = dense[i : i + 8, j : j + 8]
            assert block.all() or not block.any()
    assert sum(dense[i, j] for i in range(0, 20, 8) for j in range(0, 27, 8)) == 6


def test_blocks_with_noise_are_as_full_as_asked() -> None:
    i, j = np.indices((200, 200))
    inside = i // 50 == j // 50
    dense = datasets.blocks_and_noise(200, 50, 300, fill=0.6).toarray() != 0
    assert 0.55 < dense[inside].mean() < 0.65
    assert 150 < dense[~inside].sum() < 300
    whole = datasets.blocks_and_noise(200, 50, 0).toarray() != 0
    np.testing.assert_array_equal(whole, inside)


def test_a_graph_of_neighbours_joins_near_points() -> None:
    matrix = datasets.nearest_neighbors(400, 8)
    dense = matrix.toarray() != 0
    assert (dense.sum(1) == 8).all()
    assert dense.diagonal().all()
    assert (dense & dense.T).sum() > 0.6 * matrix.nnz  # near points are each other's neighbours


def test_popular_columns_and_one_long_column() -> None:
    popular = datasets.popular_columns(2000, 500, 20_000)
    assert np.diff(popular.indptr).max() < 40
    columns = np.sort(np.bincount(popular.indices, minlength=500))[::-1]
    assert columns[:50].sum() > 0.35 * 20_000
    long = datasets.one_long_column(2000, 300, 4000, 1500)
    columns = np.sort(np.bincount(long.indices, minlength=300))[::-1]
    assert columns[0] == 1500
    assert columns[1] < 40


def test_fem_couples_each_node_with_its_27_neighbours_by_dense_blocks() -> None:
    dense = datasets.fem(4, 3, 2, block=3).toarray() != 0
    node = np.arange(24)
    x, y, z = node % 4, node // 4 % 3, node // 12
    near = np.maximum.reduce([abs(c[:, None] - c[None, :]) for c in (x, y, z)]) <= 1
    np.testing.assert_array_equal(dense, np.kron(near, np.ones((3, 3))))


@pytest.mark.parametrize(
    ("generate", "message"),
    [
        (lambda: datasets.uniform(2, 3, 7), r"nnz must lie in 0\.\.rows\*cols = 6, got 7"),
        (lambda: datasets.uniform(0, 3, 0), "rows must be an integer >= 1, got 0"),
        (lambda: datasets.uniform(2, "3", 0), "cols must be an integer >= 1, got '3'"),
        (lambda: datasets.uniform(2, 3, 1, values="gauss"), "values must be 'ones' or 'uniform'"),
        (lambda: datasets.nnz_of(2, 3, 1.2), "sparsity must be a fraction"),
        (lambda: datasets.rmat(4, 4, 2, a=0.9, b=0.2), "a, b, c must be probabilities"),
        (lambda: datasets.power_law(4, 4, 2, exponent=0), "exponent must be > 0"),
        (lambda: datasets.power_law(4, 4, 2, exponent=float("nan")), "> 0 and finite, got nan"),
        (lambda: datasets.power_law(4, 4, 2, exponent=float("inf")), "> 0 and finite, got inf"),
        (lambda: datasets.rmat(4, 4, 2, a=float("nan")), "a, b, c must be probabilities"),
        (lambda: datasets.power_law(4, 4, 2, longest_row=3), "longest_row must lie in 0..min"),
        (lambda: datasets.banded(4, 4, -1), "bandwidth must be >= 0"),
        (lambda: datasets.block_diagonal(4, 4, 0), "block must be >= 1"),
        (lambda: datasets.fem(4, 0, 4), "ny must be >= 1"),
        (lambda: datasets.small_graphs(4, 5, 0), "graphs must lie in 1..length = 4"),
        (lambda: datasets.small_graphs(4, 2, -1), "bonds must be >= 0"),
        (lambda: datasets.star_stencil(4, 0), "ny must be >= 1"),
        (lambda: datasets.packed_causal(4, 5), r"sequences must lie in 1\.\.length = 4"),
        (lambda: datasets.sliding_window(4, -1), "window must be >= 0"),
        (lambda: datasets.sliding_window(4, 1, global_tokens=5), r"must lie in 0\.\.length = 4"),
        (lambda: datasets.dilated_window(4, -1, 2), "window must be >= 0"),
        (lambda: datasets.dilated_window(4, 1, 0), "dilation must be >= 1"),
        (lambda: datasets.random_blocks(4, 4, 0, 0.5), "block must be >= 1"),
        (lambda: datasets.random_blocks(4, 4, 2, 1.5), r"fraction in 0\.\.1, got 1.5"),
        (lambda: datasets.blocks_and_noise(4, 2, 1, fill=2), "fill must be a probability"),
        (lambda: datasets.nearest_neighbors(4, 5), r"neighbors must lie in 1\.\.points = 4"),
        (lambda: datasets.popular_columns(4, 4, 2, exponent=0), "exponent must be > 0"),
        (lambda: datasets.one_long_column(4, 4, 2, 3), r"length must lie in 0\.\.min"),
    ],
)
def test_what_cannot_be_made_is_refused(generate: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate()


def test_a_distribution_too_concentrated_for_its_nnz_is_told() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="only 3 of 5 distinct nonzeros could be drawn"):
        draw_distinct(lambda count: rng.integers(0, 3, count), 5, rng)
