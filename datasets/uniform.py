"""Uniformly random sparse matrices."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from datasets.sampling import check_nnz, check_shape, csr_from_flat, draw_distinct


def nnz_of(rows: int, cols: int, sparsity: float) -> int:
    """The number of nonzeros at a sparsity, a fraction in [0, 1]: rounded to the nearest."""
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity must be a fraction in 0..1, got {sparsity}")
    return round(rows * cols * (1 - sparsity))


def uniform(
    rows: int, cols: int, nnz: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """rows x cols float32 CSR with exactly nnz nonzeros, every set of positions equally likely.

    values: "ones", or "uniform" in [1, 10). Memory is a few words per nonzero, never rows x cols:
    50,000 x 50,000 with 125 million nonzeros peaks below 5 GB.
    """
    check_shape(rows, cols)
    check_nnz(nnz, rows, cols)
    rng = np.random.default_rng(seed)
    cells = rows * cols
    if nnz <= cells // 2:
        flat = draw_distinct(lambda count: rng.integers(0, cells, count), nnz, rng)
    else:  # draw what is left out; a mask of the cells is then smaller than the result
        keep = np.ones(cells, bool)
        keep[draw_distinct(lambda count: rng.integers(0, cells, count), cells - nnz, rng)] = False
        flat = np.flatnonzero(keep)
    return csr_from_flat(flat, rows, cols, values, rng)
