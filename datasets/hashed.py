"""R-MAT graphs for large sizes: every nonzero follows from a hash, in parallel on a CPU or a GPU.

The numbers are integers throughout, so a CPU and a GPU make the same matrix, and every process of
several can make it for itself. torch computes them, as it runs on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from datasets.sampling import MAX_ROUNDS, check_nnz, check_shape, csr_from_flat, exhausted
from datasets.skewed import check_quadrants

if TYPE_CHECKING:
    from torch import Tensor

# Draws at once: on a CPU, as many as its caches hold.
_STEP = {"cpu": 1 << 15, "cuda": 1 << 25}
_BITS = 31  # of a hash, for each level


def hashed_rmat(
    rows: int,
    cols: int,
    nnz: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    shuffled: bool = True,
    values: str = "ones",
    seed: int = 0,
) -> scipy.sparse.csr_array:
    """R-MAT graph as `rmat` defines it, with other nonzeros of the same distribution.

    shuffled: number rows and columns anew, by a permutation each, so that no part of the matrix has
    more nonzeros than another of its size.
    """
    flat = _positions(rows, cols, nnz, (a, b, c), shuffled, seed, "cpu").numpy()
    return csr_from_flat(flat, rows, cols, values, np.random.default_rng(seed))


def hashed_rmat_indices(
    rows: int,
    cols: int,
    nnz: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    shuffled: bool = True,
    seed: int = 0,
    device: Any = "cpu",
) -> tuple[Tensor, Tensor]:
    """crow_indices and col_indices of `hashed_rmat`, made on a device; int32 where sizes allow."""
    import torch

    positions = _positions(rows, cols, nnz, (a, b, c), shuffled, seed, device)
    dtype = torch.int32 if max(nnz, cols) < 2**31 else torch.int64
    begins = torch.arange(rows + 1, device=device) * cols
    return torch.searchsorted(positions, begins).to(dtype), (positions % cols).to(dtype)


def _positions(
    rows: int,
    cols: int,
    nnz: int,
    shares: tuple[float, float, float],
    shuffled: bool,
    seed: int,
    device: Any,
) -> Tensor:
    """row * cols + column of the nonzeros, ascending. shares: a, b and c."""
    import torch

    check_shape(rows, cols)
    check_nnz(nnz, rows, cols)
    a, b, c = shares
    check_quadrants(a, b, c)
    levels = max(rows - 1, cols - 1, 1).bit_length()
    limits = [round(limit * (1 << _BITS)) for limit in (a, a + b, a + b + c)]

    def draw(first: int, count: int) -> Tensor:
        """The positions of some draws, those outside of the matrix left out."""
        number = torch.arange(first, first + count, device=device)
        row, col = _falls(number, levels, limits, seed)
        if shuffled:
            row, col = _renumbered(row, levels, seed, 0), _renumbered(col, levels, seed, 1)
        inside = (row < rows) & (col < cols)
        return (row * cols + col)[inside]

    step = _STEP["cpu" if torch.device(device).type == "cpu" else "cuda"]
    positions, drawn = torch.empty(0, dtype=torch.int64, device=device), 0
    for _ in range(MAX_ROUNDS):
        missing = nnz - positions.numel()
        if missing <= 0:
            return _without_surplus(positions, -missing, seed)
        # A little more than is missing, against collisions.
        count = missing + missing // 16 + 16
        steps = range(drawn, drawn + count, step)
        fresh = [draw(first, min(step, drawn + count - first)) for first in steps]
        positions, drawn = torch.unique(torch.cat([positions, *fresh])), drawn + count
        del fresh
    raise exhausted(positions.numel(), nnz)


def _falls(number: Tensor, levels: int, limits: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Row and column of each draw: at every level it falls into one of four quadrants."""
    row, col = number.new_zeros(number.shape), number.new_zeros(number.shape)
    first, second, third = limits
    for level in range(levels):
        u = _hash(number, seed, level) & ((1 << _BITS) - 1)
        lower = u >= second
        right = ((u >= first) & ~lower) | (u >= third)
        row.mul_(2).add_(lower)
        col.mul_(2).add_(right)
    return row, col


def _renumbered(x: Tensor, bits: int, seed: int, which: int) -> Tensor:
    """The image of numbers below 2**bits under a permutation of these."""
    mask = (1 << bits) - 1
    for turn in range(4):
        key = _scalar_hash(seed, 100 + 10 * which + turn)
        x = (x * (key | 1) + (key >> 20)) & mask  # odd factors and sums permute
        x = x ^ (x >> (bits + 1) // 2)  # and so does this
    return x


def _without_surplus(positions: Tensor, surplus: int, seed: int) -> Tensor:
    """The positions but for `surplus` of them, those with the smallest hashes."""
    import torch

    if surplus <= 0:
        return positions
    hashes = _hash(positions, seed, 99)
    keep = torch.ones_like(positions, dtype=torch.bool)
    keep[hashes.topk(surplus, largest=False).indices] = False
    return positions[keep]


def _hash(number: Tensor, seed: int, what: int) -> Tensor:
    """splitmix64 (Steele, Lea and Flood, OOPSLA 2014) of int64 numbers, in 64 bits that wrap."""
    x = number * _signed(0x9E3779B97F4A7C15) + _signed(_scalar_hash(seed, what))
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _scalar_hash(seed: int, what: int) -> int:
    """A number below 2**63 that follows from both."""
    x = (seed * 0xD1342543DE82EF95 + what * 0x2545F4914F6CDD1D + 0x632BE59BD9B4E019) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor % 2**64
    return (x ^ x >> 31) >> 1


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x
