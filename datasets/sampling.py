"""Drawing an exact number of distinct positions of a matrix, from any distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Flat = NDArray[np.int64]
"""Positions as row * n + column."""

MAX_ROUNDS = 200
"""The draws after which a skewed distribution counts as exhausted."""


def check_shape(rows: int, cols: int) -> None:
    for name, size in (("rows", rows), ("cols", cols)):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {size!r}")


def check_nnz(nnz: int, rows: int, cols: int) -> None:
    if not 0 <= nnz <= rows * cols:
        raise ValueError(f"nnz must lie in 0..rows*cols = {rows * cols}, got {nnz}")


def draw_distinct(draw: Callable[[int], Flat], nnz: int, rng: np.random.Generator) -> Flat:
    """Returns nnz distinct positions in ascending order, from as many `draw(count)` as that takes.

    Surplus positions leave at random, so that for a uniform `draw` every set of nnz positions is
    equally likely.
    """
    positions = np.empty(0, np.int64)
    for _ in range(MAX_ROUNDS):
        missing = nnz - positions.size
        if missing == 0:
            return positions
        # A little more than is missing, against collisions.
        fresh = draw(missing + missing // 16 + 16)
        fresh.sort()
        positions = sorted_unique(np.concatenate([positions, fresh]) if positions.size else fresh)
        surplus = positions.size - nnz
        if surplus > 0:
            keep = np.ones(positions.size, bool)
            keep[rng.choice(positions.size, surplus, replace=False)] = False
            positions = positions[keep]
    raise exhausted(positions.size, nnz)


def exhausted(drawn: int, nnz: int) -> ValueError:
    """The error of a distribution that gave `drawn` distinct positions in MAX_ROUNDS draws."""
    return ValueError(
        f"only {drawn} of {nnz} distinct nonzeros could be drawn: the distribution is too "
        f"concentrated for this many; lower nnz or the skew"
    )


def sorted_unique(flat: Flat) -> Flat:
    """The positions in ascending order, each once; sorts `flat` in place."""
    if flat.size == 0:
        return flat
    flat.sort()
    keep = np.empty(flat.size, bool)
    keep[0] = True
    np.not_equal(flat[1:], flat[:-1], out=keep[1:])
    return flat[keep]


def csr_from_flat(
    flat: Flat, rows: int, cols: int, values: str, rng: np.random.Generator
) -> scipy.sparse.csr_array:
    """Returns the float32 CSR matrix of ascending positions.

    values: "ones", or "uniform" in [1, 10). Indices are int32 where sizes allow, as scipy has it.
    """
    if values not in ("ones", "uniform"):
        raise ValueError(f"values must be 'ones' or 'uniform', got {values!r}")
    index = np.int32 if max(flat.size, cols) < 2**31 else np.int64
    crow = np.searchsorted(flat, np.arange(rows + 1, dtype=np.int64) * cols).astype(index)
    columns = np.empty(flat.size, index)
    step = 2**24  # the remainder of a large array in parts, to spare a second one of its size
    for begin in range(0, flat.size, step):
        np.remainder(
            flat[begin : begin + step], cols, out=columns[begin : begin + step], casting="unsafe"
        )
    if values == "ones":
        data = np.ones(flat.size, np.float32)
    else:
        data = rng.random(flat.size, np.float32)
        data *= 9
        data += 1
    matrix = scipy.sparse.csr_array((data, columns, crow), shape=(rows, cols))
    matrix.has_canonical_format = True
    return matrix
