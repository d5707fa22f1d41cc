"""Patterns of raw index tensors, remembered from call to call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from sddmm.pattern import SparsePattern


class PatternCache:
    """The patterns of raw index tensors, so that their plans survive from call to call.

    Keyed by where the indices lie. An entry holds its tensors, so that their memory is not given
    to others while the key stands. Entries and bytes are bounded; the least recently used go.
    """

    def __init__(self, max_entries: int = 32, max_bytes: int = 2**31) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._patterns: OrderedDict[Any, SparsePattern] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._patterns)

    def same(self, pattern: SparsePattern) -> SparsePattern:
        """The pattern seen before with these very indices, else `pattern`, now remembered."""
        tensors = (pattern.major_indices, pattern.col_indices)
        if any(t.is_inference() for t in tensors):  # torch does not count their changes
            return pattern
        places = ((t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        key = (pattern.shape, pattern.is_csr, *places)
        with self._lock:
            known = self._patterns.get(key)
            if known is not None and known.versions == pattern.versions:
                self._patterns.move_to_end(key)
                return known
            self._patterns[key] = pattern
            self._patterns.move_to_end(key)
            while len(self) > 1 and not self._within_bounds():
                self._patterns.popitem(last=False)
        return pattern

    def clear(self) -> None:
        with self._lock:
            self._patterns.clear()

    def _within_bounds(self) -> bool:
        held = sum(p.major_indices.nbytes + p.col_indices.nbytes for p in self._patterns.values())
        return len(self) <= self.max_entries and held <= self.max_bytes


PATTERNS = PatternCache()
