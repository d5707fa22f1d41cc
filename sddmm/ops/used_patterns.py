"""The patterns that an operator used, which its backward finds again: callers may drop theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sddmm.sparse.pattern import SparsePattern


class _Used(threading.local):
    """patterns: those of the operator that this thread computes now; None if nobody asks."""

    patterns: list[SparsePattern] | None = None


_USED = _Used()


def note_used(pattern: SparsePattern) -> None:
    """Note that the operator which is computed now uses a pattern."""
    if _USED.patterns is not None:
        _USED.patterns.append(pattern)


@contextmanager
def used_patterns() -> Iterator[list[SparsePattern]]:
    """The patterns that operators use in the block, in a list that grows."""
    outer, _USED.patterns = _USED.patterns, []
    try:
        yield _USED.patterns
    finally:
        _USED.patterns = outer


def holder_of(patterns: list[SparsePattern]) -> Tensor | None:
    """An empty tensor that holds these patterns, with all that is prepared of them, for as long as
    autograd saves it: until the backward, or later if the graph is retained. None for none."""
    if not patterns:
        return None
    holder = torch.empty(0, device="cpu")
    holder.patterns = patterns  # type: ignore[attr-defined]
    return holder
