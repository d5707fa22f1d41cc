"""Patterns of index tensors that callers hold, remembered from call to call."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from sddmm.backends.cuda.comparison import same_indices
from sddmm.sparse.indices import counts_changes
from sddmm.sparse.pattern import SparsePattern

_Key = tuple[Any, ...]

# No pattern's plans take more than so many times the bytes of its indices, by far.
_MOST_GROWTH = 64


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

    __slots__ = (
        "bytes", "growth", "index_bytes", "owned", "owners", "pattern", "roots", "versions"
    )  # fmt: skip

    def __init__(
        self, pattern: Callable[[], SparsePattern | None], owned: bool, index_bytes: int = 0
    ) -> None:
        self.pattern, self.owned, self.index_bytes = pattern, owned, index_bytes
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

    def belongs_to(self, dead: object) -> bool:
        """Whether this weak reference is that of its pattern, or of an object that it goes with."""
        return self.pattern is dead or any(owner is dead for owner in self.owners)


class PatternCache:
    """The patterns of index tensors, so that what was prepared for them survives from call to call.

    An address only says where to look. A remembered pattern answers for tensors that are the same
    objects with the same count of changes; where that is not known, its own copy of the indices is
    compared with theirs, which waits for the GPU. The least recently used patterns go while all
    hold more than `max_bytes`.
    """

    def __init__(self, max_entries: int = 32, max_bytes: int = 2**31) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._kept: OrderedDict[_Key, _Entry] = OrderedDict()  # patterns that the cache keeps
        self._lent: dict[_Key, _Entry] = {}  # patterns that others keep
        self._lock = threading.RLock()  # a weak reference may die while it is held

    def __len__(self) -> int:
        return len(self._kept)

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
        return self._remember(pattern, False, True, (owner,)) if known is None else known

    def of_operator(self, pattern: SparsePattern) -> SparsePattern:
        """As `of_tensors`, of tensors that an operator was given. Compiled code makes new tensor
        objects at every call, so the pattern outlives them."""
        counted = _counted(pattern)
        known = self._found(pattern, counted)[1]
        return self._remember(pattern, counted, True, ()) if known is None else known

    def of_pattern(self, pattern: SparsePattern) -> SparsePattern:
        """The remembered pattern of the very tensors of a caller's pattern, else `pattern` itself,
        which is found from now on but not kept."""
        entry, known = self._look_up(_key(pattern))
        if entry is not None and known is not None and entry.vouches_for(known, pattern):
            return known
        self._lend(pattern)
        return pattern

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._lent.clear()

    def info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(len(self), self._held_bytes(), self.max_bytes)

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
        entry, known = self._look_up(key)
        if entry is None or known is None:
            return None, None
        if not (counted and entry.vouches_for(known, pattern)):
            if not (entry.owned and same_indices(known, pattern)):
                return entry, None
            self._stamp(entry, pattern, counted)
        with self._lock:
            if self._kept.get(key) is entry:
                self._kept.move_to_end(key)
        return entry, known

    def _look_up(self, key: _Key) -> tuple[_Entry | None, SparsePattern | None]:
        entry = self._kept.get(key) or self._lent.get(key)
        return entry, None if entry is None else entry.pattern()

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
            self._lend(kept)  # operators are given its own tensors
        key = _key(pattern)
        entry = _Entry(lambda: kept, owned, kept.major_indices.nbytes + kept.col_indices.nbytes)
        self._stamp(entry, pattern, counted)
        entry.owners = tuple(weakref.ref(owner, self._dropper(key)) for owner in owners)
        with self._lock:
            self._kept[key] = entry
            self._kept.move_to_end(key)
            self._make_room()
        return kept

    def _lend(self, pattern: SparsePattern) -> None:
        key = _key(pattern)
        entry = _Entry(weakref.ref(pattern, self._dropper(key)), owned=False)
        entry.versions = pattern.versions
        with self._lock:
            self._lent[key] = entry

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
            for entries in (self._kept, self._lent):
                entry = entries.get(key)
                if entry is not None and entry.belongs_to(dead):
                    del entries[key]

    def _make_room(self) -> None:
        while len(self._kept) > self.max_entries:
            self._kept.popitem(last=False)
        # To count takes as long as a small call: not while all is small for certain.
        if sum(entry.index_bytes for entry in self._kept.values()) * _MOST_GROWTH <= self.max_bytes:
            return
        held = self._held_bytes()
        while held > self.max_bytes and len(self._kept) > 1:
            held -= self._kept.popitem(last=False)[1].bytes

    def _held_bytes(self) -> int:
        for entry in self._kept.values():
            pattern = entry.pattern()
            if pattern is not None and entry.growth != pattern.growth:
                entry.growth, entry.bytes = pattern.growth, pattern.held_bytes
        return sum(entry.bytes for entry in self._kept.values())


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


CACHE = PatternCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CACHE.forget_locks)


def cache_info() -> CacheInfo:
    """What is remembered between calls with index tensors and sparse tensors."""
    return CACHE.info()


def clear_cache() -> None:
    """Forget all patterns of index tensors and sparse tensors, and free what they hold."""
    CACHE.clear()


def set_cache_limit(max_bytes: int) -> None:
    """Bound what is remembered, indices and all that was prepared for them; 2 GiB by default.

    The least recently used patterns are forgotten first; the last one used is always kept.
    Raises ValueError unless max_bytes is an integer >= 0.
    """
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 0:
        raise ValueError(f"max_bytes must be an integer >= 0, got {max_bytes!r}")
    CACHE.limit(max_bytes)
