"""Attention masks: causal, packed, sliding and dilated windows, random blocks; and with noise."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from datasets.sampling import check_shape, csr_from_flat, draw_distinct, sorted_unique
from datasets.structured import from_column_ranges


def causal(rows: int, cols: int, *, values: str = "ones", seed: int = 0) -> scipy.sparse.csr_array:
    """All columns up to the diagonal that ends in the last row and column."""
    check_shape(rows, cols)
    row = np.arange(rows, dtype=np.int64)
    last = np.clip(row + 1 + cols - rows, 0, cols)
    return from_column_ranges(np.zeros_like(last), last, cols, values, seed)


def packed_causal(
    length: int, sequences: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Causal masks of sequences of random lengths, one after another on the diagonal."""
    check_shape(length, length)
    if not 1 <= sequences <= length:
        raise ValueError(f"sequences must lie in 1..length = {length}, got {sequences}")
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(length - 1, sequences - 1, replace=False)) + 1
    first = np.concatenate([[0], cuts])
    lengths = np.diff(np.concatenate([first, [length]]))
    row = np.arange(length, dtype=np.int64)
    return from_column_ranges(np.repeat(first, lengths), row + 1, length, values, seed)


def sliding_window(
    length: int, window: int, *, global_tokens: int = 0, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """All |i - j| <= window, and the first `global_tokens` rows and columns whole (Longformer)."""
    check_shape(length, length)
    if window < 0:
        raise ValueError(f"window must be >= 0, got {window}")
    if not 0 <= global_tokens <= length:
        raise ValueError(f"global_tokens must lie in 0..length = {length}, got {global_tokens}")
    row = np.arange(length, dtype=np.int64)
    is_global = row < global_tokens
    last = np.where(is_global, length, np.minimum(row + window + 1, length))
    first = np.clip(row - window, global_tokens, last)
    first[is_global] = min(global_tokens, length)
    ranges = np.stack([np.zeros_like(row), first], 1), np.stack([row * 0 + global_tokens, last], 1)
    return from_column_ranges(*ranges, length, values, seed)


def dilated_window(
    length: int, window: int, dilation: int, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """All i - j that are a multiple of `dilation`, from -window to window times it (Longformer)."""
    check_shape(length, length)
    if window < 0:
        raise ValueError(f"window must be >= 0, got {window}")
    if dilation < 1:
        raise ValueError(f"dilation must be >= 1, got {dilation}")
    reach = min(window, (length - 1) // dilation)
    row = np.arange(length, dtype=np.int64)[:, None]
    columns = row + dilation * np.arange(-reach, reach + 1)
    flat = (row * length + columns)[(columns >= 0) & (columns < length)]
    return csr_from_flat(flat, length, length, values, np.random.default_rng(seed))


def random_blocks(
    rows: int, cols: int, block: int, density: float, *, values: str = "ones", seed: int = 0
) -> scipy.sparse.csr_array:
    """Dense block x block squares of a grid, drawn at random: the fraction `density` of them.

    A block at the edge is cut there.
    """
    check_shape(rows, cols)
    if block < 1:
        raise ValueError(f"block must be >= 1, got {block}")
    if not 0 <= density <= 1:
        raise ValueError(f"density must be a fraction in 0..1, got {density}")
    rng = np.random.default_rng(seed)
    down, across = -(-rows // block), -(-cols // block)
    count = round(down * across * density)
    chosen = np.sort(rng.choice(down * across, count, replace=False))
    # The blocks of the row of blocks that each row crosses.
    in_block_row = np.bincount(chosen // across, minlength=down)
    begin = np.concatenate([[0], np.cumsum(in_block_row)])
    block_row = np.arange(rows, dtype=np.int64) // block
    lengths = in_block_row[block_row]
    row = np.repeat(np.arange(rows, dtype=np.int64), lengths)
    within = np.arange(row.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    first = chosen[begin[block_row[row]] + within] % across * block
    columns = first[:, None] + np.arange(block)
    flat = (row[:, None] * cols + columns)[columns < cols]
    return csr_from_flat(flat.ravel(), rows, cols, values, rng)


def blocks_and_noise(
    length: int,
    block: int,
    noise_nnz: int,
    *,
    fill: float = 1.0,
    values: str = "ones",
    seed: int = 0,
) -> scipy.sparse.csr_array:
    """Squares down the diagonal, each entry present with probability `fill`, and uniform noise.

    The noise is `noise_nnz` positions; those that fall into a square's nonzeros merge with them.
    """
    check_shape(length, length)
    if block < 1:
        raise ValueError(f"block must be >= 1, got {block}")
    if not 0 <= fill <= 1:
        raise ValueError(f"fill must be a probability, got {fill}")
    rng = np.random.default_rng(seed)
    row = np.arange(length, dtype=np.int64)
    columns = (row // block * block)[:, None] + np.arange(block)
    inside = (row[:, None] * length + columns)[columns < length]
    inside = inside[rng.random(inside.size, np.float32) < fill]
    noise = draw_distinct(lambda count: rng.integers(0, length * length, count), noise_nnz, rng)
    flat = sorted_unique(np.concatenate([inside, noise]))
    return csr_from_flat(flat, length, length, values, rng)
