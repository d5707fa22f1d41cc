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
        self._patterns: OrderedDict[Any, tuple[SparsePattern, int]] = OrderedDict()  # and its bytes
        self._held_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._patterns)

    def same(self, pattern: SparsePattern) -> SparsePattern:
        """The pattern seen before with these very indices, else `pattern`, now remembered."""
        major, cols = pattern.major_indices, pattern.col_indices
        if major.is_inference() or cols.is_inference():  # torch does not count their changes
            return pattern
        key = (
            pattern.shape, pattern.is_csr, cols.dtype, cols.device, cols.numel(),
            major.data_ptr(), major.stride(), cols.data_ptr(), cols.stride(),
        )  # fmt: skip
        with self._lock:
            if key in self._patterns:
                known, held = self._patterns.pop(key)
                self._held_bytes -= held
                if known.versions == pattern.versions:
                    pattern = known
            held = major.nbytes + cols.nbytes
            self._patterns[key] = pattern, held
            self._held_bytes += held
            while len(self) > 1 and not self._within_bounds():
                self._held_bytes -= self._patterns.popitem(last=False)[1][1]
        return pattern

    def clear(self) -> None:
        with self._lock:
            self._patterns.clear()
            self._held_bytes = 0

    def _within_bounds(self) -> bool:
        return len(self) <= self.max_entries and self._held_bytes <= self.max_bytes


PATTERNS = PatternCache()
