"""Random graphs whose rows and columns hold very different numbers of nonzeros."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse

from datasets.sampling import Flat, check_nnz, check_shape, csr_from_flat, draw_distinct


def rmat(
    rows: int,
    cols: int,
    nnz: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    values: str = "ones",
    seed: int = 0,
) -> scipy.sparse.csr_array:
    """R-MAT graph: each nonzero falls through the quadrants with probabilities a, b, c, 1-a-b-c.

    Source: Chakrabarti, Zhan, Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004.
    The square of the next power of two is drawn from and cut to rows x cols.
    """
    check_shape(rows, cols)
    check_nnz(nnz, rows, cols)
    check_quadrants(a, b, c)
    rng = np.random.default_rng(seed)
    levels = max(rows - 1, cols - 1, 1).bit_length()

    def draw(count: int) -> Flat:
        row = np.zeros(count, np.int64)
        col = np.zeros(count, np.int64)
        for _ in range(levels):
            u = rng.random(count, np.float32)
            row = 2 * row + (u >= a + b)
            col = 2 * col + (((u >= a) & (u < a + b)) | (u >= a + b + c))
        inside = (row < rows) & (col < cols)
        return row[inside] * cols + col[inside]

    return csr_from_flat(draw_distinct(draw, nnz, rng), rows, cols, values, rng)


def check_quadrants(a: float, b: float, c: float) -> None:
    d = 1 - a - b - c
    if not min(a, b, c, d) >= -1e-12 or not math.isfinite(d):
        raise ValueError(f"a, b, c must be probabilities of sum <= 1, got {a}, {b}, {c}")


def power_law(
    rows: int,
    cols: int,
    nnz: int,
    *,
    exponent: float = 2.5,
    longest_row: int = 0,
    values: str = "ones",
    seed: int = 0,
) -> scipy.sparse.csr_array:
    """Rows and columns drawn as floor(size * u^exponent), u uniform, then shuffled.

    exponent 1 is uniform; larger ones concentrate the nonzeros in few rows and columns. With
    `longest_row`, one random row holds at least that many of the nnz nonzeros (at most cols).
    """
    check_shape(rows, cols)
    check_nnz(nnz, rows, cols)
    if not 0 < exponent < math.inf:
        raise ValueError(f"exponent must be > 0 and finite, got {exponent}")
    if not 0 <= longest_row <= min(nnz, cols):
        raise ValueError(
            f"longest_row must lie in 0..min(nnz, cols) = {min(nnz, cols)}, got {longest_row}"
        )
    rng = np.random.default_rng(seed)
    row_names, col_names = rng.permutation(rows), rng.permutation(cols)

    def draw(count: int) -> Flat:
        row = (rows * rng.random(count) ** exponent).astype(np.int64)
        col = (cols * rng.random(count) ** exponent).astype(np.int64)
        return row_names[row] * np.int64(cols) + col_names[col]

    flat = draw_distinct(draw, nnz, rng)
    if longest_row:
        flat = _lengthen(flat, int(rng.integers(rows)), longest_row, cols, rng)
    return csr_from_flat(flat, rows, cols, values, rng)


def popular_columns(
    rows: int,
    cols: int,
    nnz: int,
    *,
    exponent: float = 3.0,
    values: str = "ones",
    seed: int = 0,
) -> scipy.sparse.csr_array:
    """A bipartite graph of users and items: rows uniform, few columns popular.

    Columns are drawn as floor(cols * u^exponent), u uniform, then shuffled.
    """
    check_shape(rows, cols)
    check_nnz(nnz, rows, cols)
    if not 0 < exponent < math.inf:
        raise ValueError(f"exponent must be > 0 and finite, got {exponent}")
    rng = np.random.default_rng(seed)
    names = rng.permutation(cols)

    def draw(count: int) -> Flat:
        col = (cols * rng.random(count) ** exponent).astype(np.int64)
        return rng.integers(0, rows, count) * np.int64(cols) + names[col]

    return csr_from_flat(draw_distinct(draw, nnz, rng), rows, cols, values, rng)


def one_long_column(
    rows: int, cols: int, nnz: int, length: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Uniform, but for one random column that holds `length` of the nnz nonzeros."""
    check_shape(rows, cols)
    check_nnz(nnz, rows, cols)
    if not 0 <= length <= min(nnz, rows) or nnz - length > rows * (cols - 1):
        raise ValueError(f"length must lie in 0..min(nnz, rows), got {length}, and the rest fit")
    rng = np.random.default_rng(seed)
    column = int(rng.integers(cols))

    def draw(count: int) -> Flat:
        flat = rng.integers(0, rows * cols, count)
        return flat[flat % cols != column]

    others = draw_distinct(draw, nnz - length, rng)
    own = rng.choice(rows, length, replace=False).astype(np.int64) * cols + column
    return csr_from_flat(np.sort(np.concatenate([own, others])), rows, cols, values, rng)


def nearest_neighbors(
    points: int, neighbors: int, *, dimensions: int = 3, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """The k-nearest-neighbour graph of random points in a cube, each its own neighbour.

    Points are numbered along slabs of the cube, so that neighbours have near numbers in part, as in
    a point cloud that was sorted.
    """
    check_shape(points, points)
    if not 1 <= neighbors <= points:
        raise ValueError(f"neighbors must lie in 1..points = {points}, got {neighbors}")
    if dimensions < 1:
        raise ValueError(f"dimensions must be >= 1, got {dimensions}")
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(seed)
    places = rng.random((points, dimensions))
    slabs = max(1, round((points / neighbors) ** (1 / dimensions)))
    cells = np.floor(places * slabs).astype(np.int64)
    places = places[np.lexsort((*cells.T,))]
    nearest = cKDTree(places).query(places, neighbors, workers=-1)[1].reshape(points, neighbors)
    flat = np.arange(points, dtype=np.int64)[:, None] * points + np.sort(nearest, 1)
    return csr_from_flat(flat.ravel(), points, points, values, rng)


def _lengthen(flat: Flat, row: int, length: int, cols: int, rng: np.random.Generator) -> Flat:
    """Move random nonzeros of other rows into `row` until it holds `length`."""
    inside = flat // cols == row
    own, others = flat[inside], flat[~inside]
    missing = length - own.size
    if missing <= 0:
        return flat
    free = np.setdiff1d(np.arange(cols), own - row * cols, assume_unique=True)
    added = row * cols + rng.choice(free, missing, replace=False)
    kept = rng.choice(others, others.size - missing, replace=False)
    return np.sort(np.concatenate([own, added, kept]))
