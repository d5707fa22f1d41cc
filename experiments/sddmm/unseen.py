"""Patterns and tensors for which nothing is cached, so that preparations are measured whole."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

import sddmm


class OfPattern(Protocol):
    """A case of a CSR pattern."""

    @property
    def pattern(self) -> sddmm.SparsePattern: ...


def new_pattern(case: OfPattern) -> sddmm.SparsePattern:
    """A pattern of its own, over the same index arrays."""
    pattern = case.pattern
    return sddmm.SparsePattern.from_csr(pattern.major_indices, pattern.col_indices, pattern.shape)


def unseen_csr(case: OfPattern, values: Tensor) -> Tensor:
    """The pattern as torch's CSR tensor with these values, of which the package has no trace.

    Earlier copies held the same indices, maybe at this address: nothing of theirs may answer.
    """
    sddmm.clear_cache()
    pattern = case.pattern
    return torch.sparse_csr_tensor(
        pattern.major_indices, pattern.col_indices, values, pattern.shape, check_invariants=False
    )
