"""Patterns of index tensors that callers hold, remembered from call to call."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from sddmm.comparison import same_indices
from sddmm.indices import counts_changes
from sddmm.pattern import SparsePattern

_Key = tuple[Any, ...]


class CacheInfo(NamedTuple):
    """What the cache of patterns holds: patterns, bytes with all that was prepared, the bound."""

    patterns: int
    bytes: int
    max_bytes: int


class _Entry:
    """A remembered pattern, and how to know that other index tensors hold the same.

    pattern: gives it; None once it is gone. roots: the tensors that count the changes of the
    indices, by weak reference, and versions: the counts then; None if torch does not count all
    changes. owned: the pattern's memory is the cache's alone, so that content can be compared.
    """

    __slots__ = ("bytes", "growth", "owned", "owners", "pattern", "roots", "versions")

    def __init__(self, pattern: Callable[[], SparsePattern | None], owned: bool) -> None:
        self.pattern, self.owned = pattern, owned
        self.owners: tuple[weakref.ref[Tensor], ...] = ()
        self.roots: tuple[weakref.ref[Tensor], ...] = ()
        self.versions: tuple[int, ...] | None = None
        self.bytes, self.growth = 0, -1

    def vouches_for(self, known: SparsePattern, pattern: SparsePattern) -> bool:
        """Whether torch counted no change since, of the very tensors that were seen then."""
        if self.versions != pattern.versions:
            return False
        if (
            known.major_indices is pattern.major_indices
            and known.col_indices is pattern.col_indices
        ):
            return True
        return bool(self.roots) and all(
            root() is tensor for root, tensor in zip(self.roots, _roots(pattern), strict=True)
        )


class PatternCache:
    """The patterns of index tensors, so that what was prepared for them survives from call to call.

    An address only says where to look. A remembered pattern answers for tensors that are the same
    objects with the same count of changes; where that is not known, its own copy of the indices is
    compared with theirs, which waits for the GPU. The least recently used patterns go while all
    hold more than `max_bytes`.
    """

    def __init__(self, max_entries: int = 32, max_bytes: int = 2**31) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._lock = threading.RLock()  # a weak reference may die while it is held

    def __len__(self) -> int:
        return len(self._kept())

    def of_tensors(self, pattern: SparsePattern) -> SparsePattern:
        """The remembered pattern with the indices of `pattern`, which is one over tensors that a
        caller holds. It is forgotten when the caller drops them."""
        counted = _counted(pattern)
        entry, known = self._found(pattern, counted)
        if known is not None:
            return known
        # Seen there before, with other content or as other objects: that may happen again.
        owned = entry is not None or not counted
        return self._remember(pattern, counted, owned, _roots(pattern))

    def of_sparse(self, pattern: SparsePattern, owner: Tensor) -> SparsePattern:
        """As `of_tensors`, of a sparse tensor's indices: changes of them through the tensors that
        it was made of are not counted, so their content is compared. Forgotten with its owner."""
        known = self._found(pattern, counted=False)[1]
        return known or self._remember(pattern, False, True, (owner,))

    def of_operator(self, pattern: SparsePattern) -> SparsePattern:
        """As `of_tensors`, of tensors that an operator was given. Compiled code makes new tensor
        objects at every call, so the pattern outlives them."""
        counted = _counted(pattern)
        known = self._found(pattern, counted)[1]
        return known or self._remember(pattern, counted, True, ())

    def of_pattern(self, pattern: SparsePattern) -> SparsePattern:
        """The remembered pattern of the very tensors of a caller's pattern, else `pattern` itself,
        which is found from now on but not kept."""
        entry = self._entries.get(_key(pattern))
        known = None if entry is None else entry.pattern()
        if entry is not None and known is not None and entry.vouches_for(known, pattern):
            return known
        self._insert_weakly(pattern)
        return pattern

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def info(self) -> CacheInfo:
        with self._lock:
            kept = self._kept()
            return CacheInfo(len(kept), self._count(kept), self.max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Bound the bytes, now and from now on."""
        with self._lock:
            self.max_bytes = max_bytes
            self._make_room()

    def forget_locks(self) -> None:
        """After a fork: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def _found(
        self, pattern: SparsePattern, counted: bool
    ) -> tuple[_Entry | None, SparsePattern | None]:
        """The entry of these addresses, and its pattern if that has the same indices."""
        key = _key(pattern)
        entry = self._entries.get(key)
        known = None if entry is None else entry.pattern()
        if entry is None or known is None:
            return None, None
        if not (counted and entry.vouches_for(known, pattern)):
            if not (entry.owned and same_indices(known, pattern)):
                return entry, None
            self._stamp(entry, pattern, counted)
        with self._lock:
            if self._entries.get(key) is entry:
                self._entries.move_to_end(key)
        return entry, known

    def _stamp(self, entry: _Entry, pattern: SparsePattern, counted: bool) -> None:
        """From now on the entry vouches for these tensors, if torch counts their changes."""
        entry.versions = None  # while the two do not belong together
        entry.roots = tuple(weakref.ref(root) for root in _roots(pattern)) if counted else ()
        entry.versions = pattern.versions if counted else None

    def _remember(
        self, pattern: SparsePattern, counted: bool, owned: bool, owners: tuple[Tensor, ...]
    ) -> SparsePattern:
        kept = pattern.clone() if owned else pattern.alias()
        if owned:
            self._insert_weakly(kept)  # operators are given its own tensors
        key = _key(pattern)
        entry = _Entry(lambda: kept, owned)
        self._stamp(entry, pattern, counted)
        entry.owners = tuple(weakref.ref(owner, self._dropper(key)) for owner in owners)
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._make_room()
        return kept

    def _insert_weakly(self, pattern: SparsePattern) -> None:
        key = _key(pattern)
        entry = _Entry(weakref.ref(pattern, self._dropper(key)), owned=False)
        entry.versions = pattern.versions
        with self._lock:
            self._entries[key] = entry

    def _dropper(self, key: _Key) -> Callable[[Any], None]:
        """What removes the entry that a dead reference belonged to, if it still stands there."""
        cache = weakref.ref(self)

        def drop(dead: Any) -> None:
            alive = cache()
            if alive is not None:
                alive._drop(key, dead)

        return drop

    def _drop(self, key: _Key, dead: Any) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and (
                entry.pattern is dead or any(x is dead for x in entry.owners)
            ):
                del self._entries[key]

    def _touch(self, key: _Key, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                self._entries.move_to_end(key)

    def _kept(self) -> list[tuple[_Key, _Entry, SparsePattern]]:
        """The entries whose patterns the cache alone keeps, the least recently used first."""
        return [
            (key, entry, pattern)
            for key, entry in self._entries.items()
            if not isinstance(entry.pattern, weakref.ref)
            and (pattern := entry.pattern()) is not None
        ]

    def _make_room(self) -> None:
        kept = self._kept()
        held = self._count(kept)
        for key, entry, _ in kept[:-1]:
            if len(kept) <= self.max_entries and held <= self.max_bytes:
                return
            held -= entry.bytes
            kept = kept[1:]
            del self._entries[key]

    def _count(self, kept: list[tuple[_Key, _Entry, SparsePattern]]) -> int:
        for _, entry, pattern in kept:
            if entry.growth != pattern.growth:
                entry.growth, entry.bytes = pattern.growth, pattern.held_bytes
        return sum(entry.bytes for _, entry, _ in kept)


def _counted(pattern: SparsePattern) -> bool:
    return counts_changes(pattern.major_indices) and counts_changes(pattern.col_indices)


def _roots(pattern: SparsePattern) -> tuple[Tensor, ...]:
    """The tensors whose counts of changes are those of the indices: they, or what they view."""
    major, cols = pattern.major_indices, pattern.col_indices
    return (
        major if major._base is None else major._base,
        cols if cols._base is None else cols._base,
    )


def _key(pattern: SparsePattern) -> _Key:
    major, cols = pattern.major_indices, pattern.col_indices
    return (
        pattern.shape, pattern.is_csr, cols.dtype, cols.device, cols.numel(),
        major.data_ptr(), major.stride(), cols.data_ptr(), cols.stride(),
    )  # fmt: skip


PATTERNS = PatternCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PATTERNS.forget_locks)


def cache_info() -> CacheInfo:
    """What is remembered between calls with index tensors and sparse tensors."""
    return PATTERNS.info()


def clear_cache() -> None:
    """Forget all patterns of index tensors and sparse tensors, and free what they hold."""
    PATTERNS.clear()


def set_cache_limit(max_bytes: int) -> None:
    """Bound what is remembered, indices and all that was prepared for them; 2 GiB by default.

    The least recently used patterns are forgotten first; the last one used is always kept.
    Raises ValueError unless max_bytes is an integer >= 0.
    """
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 0:
        raise ValueError(f"max_bytes must be an integer >= 0, got {max_bytes!r}")
    PATTERNS.limit(max_bytes)
