"""Index tensors that may be changed in place, and the values that are computed from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sddmm.sparse.indices import as_array, require_alike

T = TypeVar("T")

# Whether every use of a pattern looks for changes of its indices that torch does not count.
_CHECK_INDICES = os.environ.get("SDDMM_CHECK_INDICES", "") not in ("", "0")


class DerivedKey(Generic[T]):
    """The key of one value that is computed from index tensors; T is the value's type."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"DerivedKey({self.name!r})"


_DIGEST = DerivedKey[str]("digest of the indices, for changes that torch does not count")


class Derived:
    """The values that were computed from the index tensors in one state of theirs, by key.

    versions: that state. aliases: tensors that keep the indices' memory allocated, so that its
    address stays theirs. growth: the number of values that were added.
    """

    __slots__ = ("aliases", "growth", "values", "versions")

    def __init__(self, versions: tuple[int, ...], aliases: tuple[Tensor, ...]) -> None:
        self.versions, self.aliases = versions, aliases
        self.values: dict[DerivedKey[Any], Any] = {}
        self.growth = 0


NOTHING_DERIVED = Derived((), ())


class IndexTensors:
    """The index tensors of a pattern, with values that follow them when they change in place."""

    shape: tuple[int, int]
    col_indices: Tensor
    crow_indices: Tensor | None
    row_indices: Tensor | None
    major_indices: Tensor
    is_csr: bool
    index_dtype: torch.dtype
    device: torch.device
    _derived: Derived

    @property
    def nnz(self) -> int:
        return self.col_indices.numel()

    @property
    def versions(self) -> tuple[int, ...]:
        """Addresses of the index tensors and torch's counts of their in-place changes.

        Equal tuples mean unchanged indices, as far as torch counts, while the memory is kept.
        """
        major, cols = self.major_indices, self.col_indices
        try:
            return major.data_ptr(), cols.data_ptr(), major._version, cols._version
        except RuntimeError:  # a tensor made in inference mode has no count
            counts = (0 if tensor.is_inference() else tensor._version for tensor in (major, cols))
            return major.data_ptr(), cols.data_ptr(), *counts

    def is_at(self, versions: tuple[int, ...]) -> bool:
        """Whether the indices are as they were when `versions` was read."""
        if _CHECK_INDICES:
            self._current()
        return self.versions == versions

    def derive(self, key: DerivedKey[T], compute: Callable[[], T]) -> T:
        """The value of compute(), kept until torch changes an index tensor in place."""
        values = self._current().values
        if key not in values:
            values.setdefault(key, compute())  # another thread's, if it was quicker
            self.count_growth()
        value: T = values[key]
        return value

    def count_growth(self) -> None:
        """Count that this pattern keeps more now, so that a cache measures its bytes again."""
        self._derived.growth += 1

    @property
    def growth(self) -> int:
        """A number that changes when more is kept with this pattern."""
        return self._derived.growth

    def _current(self) -> Derived:
        """The values that belong to the indices as they are now."""
        versions = self.versions
        derived = self._derived
        if derived.versions != versions:
            self._check_lengths()
            aliases = (self.major_indices.detach(), self.col_indices.detach())
            derived = Derived(versions, aliases)
            # One assignment: another thread may be reading the old object.
            self.__dict__["_derived"] = derived
        if _CHECK_INDICES:
            self._check_uncounted(derived)
        return derived

    def _check_uncounted(self, derived: Derived) -> None:
        fingerprint = self.compute_fingerprint()
        if derived.values.setdefault(_DIGEST, fingerprint) != fingerprint:
            raise RuntimeError(
                f"the indices of {self!r} were changed in a way that torch does not count, such as "
                f"through a numpy array that shares their memory; make a new pattern instead"
            )

    def _check_lengths(self) -> None:
        """Index tensors may be resized or given other memory after the pattern was made."""
        name, wanted = ("crow", self.shape[0] + 1) if self.is_csr else ("row", self.nnz)
        require_alike(self.major_indices, f"{name}_indices", self.col_indices)
        if self.major_indices.numel() != wanted:
            raise ValueError(
                f"{name}_indices must have {wanted} entries beside {self.nnz} col_indices, "
                f"got {self.major_indices.numel()}: it was resized after the pattern was made"
            )

    def compute_fingerprint(self) -> str:
        """A digest of shape, form and indices."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.shape} {self.is_csr} {self.index_dtype}".encode())
        for indices in (self.major_indices, self.col_indices):
            digest.update(as_array(indices.cpu().contiguous()).data)
        return digest.hexdigest()
