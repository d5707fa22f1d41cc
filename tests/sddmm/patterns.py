"""Patterns that are hard in some way, and tensors of their values."""

from __future__ import annotations

import torch
from torch import Tensor

from sddmm import SparsePattern
from sddmm.testing import random_pattern


def of_lengths(lengths: list[int], n: int = 40) -> SparsePattern:
    """The CSR pattern with so many nonzeros in each row."""
    crow = torch.tensor([0, *lengths]).cumsum(0)
    return SparsePattern.from_csr(crow, torch.arange(int(crow[-1])) * 7 % n, (len(lengths), n))


def csr_tensor(pattern: SparsePattern, values: Tensor) -> Tensor:
    """The CSR tensor of a CSR pattern with these values."""
    return torch.sparse_csr_tensor(
        pattern.major_indices, pattern.col_indices, values, pattern.shape
    )


# On a GPU.


def uniform() -> SparsePattern:
    return random_pattern(3000, 2000, 90_000, device="cuda")


def unsorted() -> SparsePattern:
    return random_pattern(3000, 2000, 90_000, layout="coo", shuffled=True, device="cuda")


def one_row() -> SparsePattern:
    cols = torch.arange(300_000, device="cuda")
    return SparsePattern.from_coo(torch.full_like(cols, 70), cols, (2000, 300_000))


def skewed() -> SparsePattern:
    """Some rows and columns of thousands of nonzeros, and many without any; duplicates."""
    generator = torch.Generator("cuda").manual_seed(0)
    rows, cols = (torch.rand(2, 200_000, device="cuda", generator=generator) ** 6 * 5000).long()
    return SparsePattern.from_coo(rows.sort().values, cols, (5000, 5000))
