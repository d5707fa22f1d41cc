"""Entries of the cache: a pattern, and for which tensors it answers."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import Tensor

from sddmm.sparse.indices import counts_changes
from sddmm.sparse.pattern import SparsePattern


class Entry:
    """A cached pattern, and how to know that other index tensors hold the same indices.

    pattern: returns it; None once it is gone. counters: the tensors that count the changes of the
    indices, by weak reference; versions: their counts then, or None if torch does not count all
    changes. is_copy: the pattern's memory is the cache's alone, so that content can be compared.
    owners: the entry goes with any of these. blocks: the memory that the pattern holds, by address,
    when its growth was `growth`; max_bytes: a bound on it, from the indices alone.
    """

    __slots__ = (
        "blocks", "counters", "growth", "is_copy", "max_bytes", "owners", "pattern", "versions"
    )  # fmt: skip

    def __init__(self, pattern: Callable[[], SparsePattern | None], is_copy: bool) -> None:
        self.pattern, self.is_copy = pattern, is_copy
        self.owners: tuple[weakref.ref[Tensor], ...] = ()
        self.counters: tuple[weakref.ref[Tensor], ...] = ()
        self.versions: tuple[int, ...] | None = None
        self.blocks: dict[int, int] = {}
        self.growth = -1
        self.max_bytes = 0

    def watch(self, pattern: SparsePattern, is_counted: bool) -> None:
        """Let the entry vouch for these tensors from now on, if torch counts their changes."""
        self.versions = None  # while the two do not belong together
        self.counters = tuple(map(weakref.ref, counting_tensors(pattern))) if is_counted else ()
        self.versions = pattern.versions if is_counted else None

    def vouches_for(self, cached: SparsePattern, pattern: SparsePattern) -> bool:
        """Whether torch counted no change since, of the very tensors that were seen then."""
        if self.versions != pattern.versions:
            return False
        major, cols = pattern.major_indices, pattern.col_indices
        if cached.major_indices is major and cached.col_indices is cols:
            return True
        counters = zip(self.counters, counting_tensors(pattern), strict=False)
        return bool(self.counters) and all(counter() is tensor for counter, tensor in counters)


def changes_are_counted(pattern: SparsePattern) -> bool:
    return counts_changes(pattern.major_indices) and counts_changes(pattern.col_indices)


def counting_tensors(pattern: SparsePattern) -> tuple[Tensor, ...]:
    """The tensors whose counts of changes are those of the indices: they, or what they view."""
    major, cols = pattern.major_indices, pattern.col_indices
    return major if major._base is None else major._base, cols if cols._base is None else cols._base
