"""Matrices with regular structure: bands, blocks, meshes, stencils."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from datasets.sampling import check_shape, csr_from_flat, sorted_unique


def banded(
    rows: int, cols: int, bandwidth: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """All entries with |i - j| <= bandwidth."""
    check_shape(rows, cols)
    if bandwidth < 0:
        raise ValueError(f"bandwidth must be >= 0, got {bandwidth}")
    row = np.arange(rows, dtype=np.int64)
    first = np.clip(row - bandwidth, 0, cols)
    last = np.clip(row + bandwidth + 1, 0, cols)
    return from_column_ranges(first, last, cols, values, seed)


def block_diagonal(
    rows: int, cols: int, block: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Dense block x block squares down the diagonal, cut at the matrix's edge."""
    check_shape(rows, cols)
    if block < 1:
        raise ValueError(f"block must be >= 1, got {block}")
    first = np.arange(rows, dtype=np.int64) // block * block
    return from_column_ranges(
        np.minimum(first, cols), np.minimum(first + block, cols), cols, values, seed
    )


def fem(
    nx: int, ny: int, nz: int, *, block: int = 3, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Finite-element stencil: each node of an nx x ny x nz grid couples with its 26 neighbours and
    itself by a dense block x block square (block unknowns per node; block 1 is the 27-point
    stencil). The matrix is square with nx * ny * nz * block rows.
    """
    for name, size in (("nx", nx), ("ny", ny), ("nz", nz), ("block", block)):
        if size < 1:
            raise ValueError(f"{name} must be >= 1, got {size}")
    line = [
        scipy.sparse.diags_array(
            [np.ones(n - abs(offset)) for offset in (-1, 0, 1) if n > abs(offset)],
            offsets=[offset for offset in (-1, 0, 1) if n > abs(offset)],
            shape=(n, n),
        )
        for n in (nz, ny, nx)
    ]
    # COO throughout: kron's own choice, blocks, would store the zeros within them.
    plane = scipy.sparse.kron(line[1], line[2], format="coo")
    grid = scipy.sparse.kron(line[0], plane, format="coo")
    matrix = scipy.sparse.kron(grid, np.ones((block, block)), format="coo")
    size = nx * ny * nz * block
    flat = np.sort(matrix.row.astype(np.int64) * size + matrix.col)
    return csr_from_flat(flat, size, size, values, np.random.default_rng(seed))


def star_stencil(
    nx: int, ny: int, nz: int = 1, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Each point of a grid with itself and its next neighbours along the axes.

    On a plane, nz = 1, it is the 5-point stencil, in space the 7-point stencil.
    """
    for name, size in (("nx", nx), ("ny", ny), ("nz", nz)):
        if size < 1:
            raise ValueError(f"{name} must be >= 1, got {size}")
    size = nx * ny * nz
    point = np.arange(size, dtype=np.int64)
    x, y, z = point % nx, point // nx % ny, point // (nx * ny)
    near = [  # in ascending order of the neighbour
        (z > 0, -nx * ny), (y > 0, -nx), (x > 0, -1), (np.ones(size, bool), 0),
        (x < nx - 1, 1), (y < ny - 1, nx), (z < nz - 1, nx * ny),
    ]  # fmt: skip
    offsets = np.array([offset for _, offset in near])
    exists = np.stack([there for there, _ in near], 1)
    flat = (point * size + point)[:, None] + offsets
    return csr_from_flat(flat[exists], size, size, values, np.random.default_rng(seed))


def small_graphs(
    length: int, graphs: int, bonds: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Symmetric adjacency of random connected graphs of random sizes, one after another, like a
    batch of molecules: `length` nodes in all, and `bonds` edges besides those that connect them.

    Node i is connected to one of the three nodes before it; a further edge joins a node with one of
    the six before it, and edges drawn twice are one.
    """
    check_shape(length, length)
    if not 1 <= graphs <= length:
        raise ValueError(f"graphs must lie in 1..length = {length}, got {graphs}")
    if bonds < 0:
        raise ValueError(f"bonds must be >= 0, got {bonds}")
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(length - 1, graphs - 1, replace=False)) + 1
    first = np.concatenate([[0], cuts])
    own_first = np.repeat(first, np.diff(np.concatenate([first, [length]])))
    node = np.concatenate([np.arange(length), rng.integers(0, length, bonds)])
    reach = np.minimum(node - own_first[node], np.repeat([3, 6], [length, bonds]))
    node, reach = node[reach > 0], reach[reach > 0]
    other = node - 1 - (rng.random(node.size) * reach).astype(np.int64)
    flat = np.concatenate([node * length + other, other * length + node])
    return csr_from_flat(sorted_unique(flat), length, length, values, rng)


def from_column_ranges(
    first: np.ndarray, last: np.ndarray, cols: int, values: str, seed: int
) -> scipy.sparse.csr_array:
    """Row i holds the columns first[i] .. last[i] - 1; several ascending ranges if 2-D."""
    lengths = np.maximum(last - first, 0)
    ranges_per_row = lengths[0].size
    starts = (np.cumsum(lengths) - lengths.ravel()).reshape(-1)
    row = np.arange(lengths.size, dtype=np.int64) // ranges_per_row
    base = row * cols + first.reshape(-1) - starts
    flat = np.repeat(base, lengths.reshape(-1))
    flat += np.arange(flat.size)
    return csr_from_flat(flat, len(first), cols, values, np.random.default_rng(seed))
