"""The cache: the patterns of index tensors, and the prepared plans of patterns, between calls.

A pattern keeps its own plans until its indices change in place (`PlanStore`). Callers who give
index tensors or sparse tensors have no pattern of their own: the cache keeps one for them. The
bounds on patterns, and what goes first, are in this file.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda.comparison import same_indices
from sddmm.cache_entries import Entry, changes_are_counted, counting_tensors
from sddmm.memory import memory_blocks, total_bytes
from sddmm.prepared import (
    FirstCalls,
    FirstRun,
    PlanKey,
    PreparedPlan,
    SeenTensor,
    SeenTensors,
    V,
    is_capturing,
    keep,
    log_notes,
    plans_of,
    prepare,
    refuse_capture,
)
from sddmm.problem import SddmmProblem
from sddmm.sparse.indices import counts_changes
from sddmm.sparse.pattern import SparsePattern

# The bounds. A pattern that callers keep themselves counts for none but the bound on its plans.
MAX_PATTERNS = 32
MAX_BYTES = 2**31  # by default; `set_cache_limit` changes it
# No pattern holds more than this many times the bytes of its indices and of an index for every row
# and column, by far.
_MAX_GROWTH = 64

P = TypeVar("P")


class PatternKey(NamedTuple):
    """The addresses of index tensors, and how to read them. The cache compares the rest itself:
    other indices may be at the same addresses by now."""

    shape: tuple[int, int]
    is_csr: bool
    blocksize: tuple[int, int] | None
    dtype: torch.dtype
    device: torch.device
    nnz: int
    addresses: tuple[int, int]
    strides: tuple[tuple[int, ...], ...]


class CacheInfo(NamedTuple):
    """The contents of the cache: patterns, bytes with all that was prepared, and the bound."""

    patterns: int
    bytes: int
    max_bytes: int


class Cache:
    """Patterns of index tensors that callers hold, and plans of any pattern.

    The addresses of indices only find an entry. A cached pattern answers for tensors that are the
    same objects with the same count of changes; where that cannot be known, its own copy of the
    indices is compared with theirs, which waits for the GPU. The least recently used patterns go
    while all together hold more than `max_bytes`; the last one used always stays.
    """

    def __init__(self, max_patterns: int = MAX_PATTERNS, max_bytes: int = MAX_BYTES) -> None:
        self.max_patterns, self.max_bytes = max_patterns, max_bytes
        self._entries: OrderedDict[PatternKey, Entry] = OrderedDict()  # the cache's own patterns
        self._weak_entries: dict[PatternKey, Entry] = {}  # patterns that others keep
        # All that the entries can hold, and those that went since it was summed.
        self._most_bytes = 0
        self._seen = SeenTensors()
        self._lock = threading.RLock()  # a weak reference may die while it is held

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        backend: str | None = None,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        first_run: FirstRun | None = None,
    ) -> PreparedPlan:
        """The plan of a pattern for a problem, prepared at the first request. Thread-safe.

        backend, kernel: the names that the caller requests; a refusal is then a ValueError. calls:
        the number of runs to prepare for. first_run: the run that the plan is requested for.
        """
        key = PlanKey(problem, backend, kernel, calls)
        store = plans_of(pattern)
        by_key = store.by_key
        if by_key:
            with self._lock:
                plan = by_key.get(key)
                if plan is not None:
                    by_key.move_to_end(key)
                    return plan
        plan = prepare(pattern, key, first_run)
        with self._lock:
            store.add(key, plan)
            self.count_growth(pattern)
        return plan

    def find_or_prepare(
        self,
        pattern: SparsePattern,
        kept: dict[tuple[P, str], V],
        problem: P,
        purpose: str,
        prepare: Callable[[], V],
    ) -> V:
        """What `kept`, a dictionary of the pattern's `PlanStore`, holds for a problem of another
        operator than sddmm; at the first request that is prepare(). Thread-safe.

        purpose: what else it is prepared for, in words, or "". RuntimeError while a CUDA graph is
        captured: preparing waits for the GPU.
        """
        key = problem, purpose
        prepared = kept.get(key)
        if prepared is None:
            refuse_capture(pattern.device)
            prepared = prepare()
            keep(kept, key, prepared)
            log_notes(prepared, "%s %s" if purpose else "%s%s", problem, purpose)
            self.count_growth(pattern)
        return prepared

    def run_first(self, pattern: SparsePattern, first: FirstCalls, run: FirstRun) -> Tensor:
        """The values of a call that is planned for a single run."""
        if is_capturing(first.problem.device) or not first.run(pattern, run):
            plan = self.get_or_prepare(pattern, first.problem, calls=1, first_run=run)
            run(plan.execute)
        self.count_growth(pattern)
        return run.out

    def count_growth(self, pattern: SparsePattern) -> None:
        """Count what a pattern keeps now, and forget others if all together is too much."""
        with self._lock:
            pattern.count_growth()
            self._make_room()

    def of_tensors(self, pattern: SparsePattern) -> SparsePattern:
        """The cached pattern with the indices of `pattern`, which is one over tensors that a caller
        holds. It goes when the caller drops them."""
        is_counted, key = changes_are_counted(pattern), _key(pattern)
        entry, cached = self._match(pattern, key, is_counted)
        if cached is not None:
            return cached
        # Seen there before, with other content or as other objects: that may happen again.
        is_copy = entry is not None or not is_counted
        return self._add(pattern, key, is_counted, is_copy, counting_tensors(pattern))

    def of_sparse(
        self, pattern: SparsePattern, owner: Tensor, is_sampled_at_once: bool = False
    ) -> tuple[SparsePattern, SeenTensor | None]:
        """As `of_tensors`, for a sparse tensor's indices: changes of them through the tensors that
        it was made of are not counted, so their content is compared. It goes with its owner.

        is_sampled_at_once: whether `pattern` itself may serve an owner that comes for the first
        time. What is noted of the owner, all that is kept, is returned with it, else None.
        """
        seen = self._seen.find(owner)
        if seen is None and is_sampled_at_once and not self._entries:
            return pattern, self._seen.add(owner)
        key = _key(pattern)
        if key in self._entries or key in self._weak_entries:
            cached = self._match(pattern, key, is_counted=False)[1]
            if cached is not None:
                return cached, None
        if seen is None and is_sampled_at_once:
            return pattern, self._seen.add(owner)
        cached = self._add(pattern, key, False, True, (owner,))
        if seen is not None:
            plans_of(cached).seen = seen.problems
        return cached, None

    def of_operator(self, pattern: SparsePattern) -> SparsePattern:
        """As `of_tensors`, for tensors that an operator received. Compiled code makes new tensor
        objects at every call, so the pattern outlives them."""
        is_counted, key = changes_are_counted(pattern), _key(pattern)
        cached = self._match(pattern, key, is_counted)[1]
        return self._add(pattern, key, is_counted, True, ()) if cached is None else cached

    def over_tensors(
        self, major: Tensor, cols: Tensor, shape: tuple[int, int], is_csr: bool
    ) -> SparsePattern | None:
        """The cached pattern over these very tensors, as `of_operator` would find it, but in less
        time; None if that has to look."""
        key = _key_of_tensors(major, cols, shape, is_csr, None)
        entry, cached = self._look_up(key)
        if (
            entry is None
            or cached is None
            or not (cached.major_indices is major and cached.col_indices is cols)
            or entry.versions != cached.versions
            or not (counts_changes(major) and counts_changes(cols))
        ):
            return None
        with self._lock:
            if self._entries.get(key) is entry:
                self._entries.move_to_end(key)
        return cached

    def find(self, pattern: SparsePattern) -> SparsePattern:
        """The cached pattern of the very tensors of a caller's pattern, else `pattern` itself."""
        if not (self._entries or self._weak_entries):
            return pattern
        entry, cached = self._look_up(_key(pattern))
        vouches = entry is not None and cached is not None and entry.vouches_for(cached, pattern)
        return cached if vouches and cached is not None else pattern

    def of_pattern(self, pattern: SparsePattern) -> SparsePattern:
        """The cached pattern of the very tensors of a caller's pattern, else `pattern` itself,
        which the cache can find from now on but does not keep."""
        key = _key(pattern)
        entry, cached = self._look_up(key)
        if entry is not None and cached is not None and entry.vouches_for(cached, pattern):
            return cached
        entry = Entry(weakref.ref(pattern, functools.partial(self._drop, key)), is_copy=False)
        entry.versions = pattern.versions
        with self._lock:
            self._weak_entries[key] = entry
        return pattern

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._weak_entries.clear()
            self._seen.clear()

    def info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(len(self), self._count_bytes(), self.max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Bound the bytes, now and from now on."""
        with self._lock:
            self.max_bytes = max_bytes
            self._make_room()

    def renew_lock(self) -> None:
        """After a fork: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def _match(
        self, pattern: SparsePattern, key: PatternKey, is_counted: bool
    ) -> tuple[Entry | None, SparsePattern | None]:
        """The entry of these addresses, and its pattern if that has the same indices."""
        entry, cached = self._look_up(key)
        if entry is None or cached is None:
            return None, None
        if not (is_counted and entry.vouches_for(cached, pattern)):
            if not (entry.is_copy and same_indices(cached, pattern)):
                return entry, None
            if is_counted or entry.versions is not None:
                entry.watch(pattern, is_counted)
        with self._lock:
            if self._entries.get(key) is entry:
                self._entries.move_to_end(key)
        return entry, cached

    def _look_up(self, key: PatternKey) -> tuple[Entry | None, SparsePattern | None]:
        entry = self._entries.get(key) or self._weak_entries.get(key)
        return entry, None if entry is None else entry.pattern()

    def _add(
        self,
        pattern: SparsePattern,
        key: PatternKey,
        is_counted: bool,
        is_copy: bool,
        owners: tuple[Tensor, ...],
    ) -> SparsePattern:
        cached = pattern.clone() if is_copy else pattern.alias()
        entry = Entry(lambda: cached, is_copy)
        indices = cached.col_indices.itemsize * (cached.major_indices.numel() + cached.nnz)
        entry.max_bytes = _MAX_GROWTH * (indices + 8 * (cached.shape[0] + cached.shape[1]))
        if is_counted:
            entry.watch(pattern, is_counted)
        if owners:
            drop = functools.partial(self._drop, key)
            entry.owners = tuple([weakref.ref(owner, drop) for owner in owners])
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._most_bytes += entry.max_bytes
            self._make_room()
        return cached

    def _drop(self, key: PatternKey, dead: object) -> None:
        """Remove the entry that a dead reference belonged to, if it is still there."""
        with self._lock:
            for entries in (self._entries, self._weak_entries):
                entry = entries.get(key)
                if entry is not None and any(x is dead for x in (entry.pattern, *entry.owners)):
                    del entries[key]

    def _make_room(self) -> None:
        entries = self._entries
        while len(entries) > self.max_patterns:
            entries.popitem(last=False)
        # To count takes as long as a small call: not while all is small for certain.
        if self._most_bytes <= self.max_bytes:
            return
        self._most_bytes = sum(entry.max_bytes for entry in entries.values())
        if self._most_bytes <= self.max_bytes:
            return
        while len(entries) > 1 and self._count_bytes() > self.max_bytes:
            entries.popitem(last=False)

    def _count_bytes(self) -> int:
        blocks: dict[int, int] = {}
        for entry in self._entries.values():
            pattern = entry.pattern()
            if pattern is not None and entry.growth != pattern.growth:
                entry.growth, entry.blocks = pattern.growth, memory_blocks(pattern)
            blocks |= entry.blocks
        return total_bytes(blocks)


def _key(pattern: SparsePattern) -> PatternKey:
    return _key_of_tensors(
        pattern.major_indices, pattern.col_indices, pattern.shape, pattern.is_csr, pattern.blocksize
    )


def _key_of_tensors(
    major: Tensor,
    cols: Tensor,
    shape: tuple[int, int],
    is_csr: bool,
    blocksize: tuple[int, int] | None,
) -> PatternKey:
    return PatternKey(
        shape, is_csr, blocksize, cols.dtype, cols.device, cols.numel(),
        (major.data_ptr(), cols.data_ptr()), (major.stride(), cols.stride()),
    )  # fmt: skip


CACHE = Cache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CACHE.renew_lock)


def cache_info() -> CacheInfo:
    """The patterns and the bytes that are kept between calls with index and sparse tensors."""
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
