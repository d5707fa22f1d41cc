"""Index tensors that may be changed in place, and the values that are computed from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from gemm_core.runtime.variables import CHECK_INDICES
from sddmm.sparse.indices import BlockSize, as_array, crow_length, require_alike, stored_nnz

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

# Whether every use of a pattern checks for changes of its indices that torch does not count.
_CHECK_INDICES = os.environ.get(CHECK_INDICES.name) == "1"


class DerivedKey(Generic[T]):
    """The key of one value that is computed from index tensors; T is the value's type."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"DerivedKey({self.name!r})"


CHECK = DerivedKey[None]("check")
"""The key of a pattern's check: there is a value once it found all indices right."""
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


def belong_together(major: Tensor, cols: Tensor, major_length: int) -> bool:
    """Whether index tensors are of one dtype and device, hold values, and have this length."""
    return (
        major.numel() == major_length
        and major.dtype == cols.dtype
        and major.device == cols.device
        and not cols.is_meta
    )


class IndexTensors:
    """The index tensors of a pattern, with values that follow them when they change in place."""

    shape: tuple[int, int]
    col_indices: Tensor
    crow_indices: Tensor | None
    row_indices: Tensor | None
    major_indices: Tensor
    is_csr: bool
    blocksize: BlockSize | None
    index_dtype: torch.dtype
    device: torch.device
    _derived: Derived

    def __init__(
        self,
        shape: tuple[int, int],
        col_indices: Tensor,
        crow_indices: Tensor | None = None,
        row_indices: Tensor | None = None,
        blocksize: BlockSize | None = None,
    ) -> None:
        major = row_indices if crow_indices is None else crow_indices
        if major is None or (crow_indices is not None and row_indices is not None):
            raise ValueError("a pattern has either crow_indices (CSR) or row_indices (COO)")
        # One dict update: a frozen dataclass assigns fields through the slow object.__setattr__.
        self.__dict__.update(
            shape=shape,
            col_indices=col_indices,
            crow_indices=crow_indices,
            row_indices=row_indices,
            major_indices=major,
            is_csr=crow_indices is not None,
            blocksize=blocksize,
            index_dtype=col_indices.dtype,
            device=col_indices.device,
            _derived=NOTHING_DERIVED,
        )

    @property
    def nnz(self) -> int:
        if self.blocksize is None:  # asked at every call
            return self.col_indices.numel()
        return stored_nnz(self.col_indices, self.blocksize)

    @property
    def form(self) -> str:
        """How the indices are stored: "coo", "csr" or, with the size of blocks, "bsr 16x16"."""
        if self.blocksize is not None:
            return f"bsr {self.blocksize[0]}x{self.blocksize[1]}"
        return "csr" if self.is_csr else "coo"

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
            self._current(self.versions)
        return self.versions == versions

    def derive(self, key: DerivedKey[T], compute: Callable[[], T]) -> T:
        """The value of compute(), kept until torch changes an index tensor in place."""
        derived, versions = self._derived, self.versions
        if _CHECK_INDICES or derived.versions != versions:
            derived = self._current(versions)
        values = derived.values
        if key not in values:
            values.setdefault(key, compute())  # another thread's, if it was quicker
            derived.growth += 1
        value: T = values[key]
        return value

    def find_derived(self, key: DerivedKey[T]) -> T | None:
        """The value that `derive` keeps; None if it keeps none."""
        derived = self._derived
        value: T | None = derived.values.get(key) if derived.versions == self.versions else None
        return value

    def count_growth(self) -> None:
        """Count that this pattern keeps more now, so that a cache measures its bytes again."""
        self._derived.growth += 1

    @property
    def growth(self) -> int:
        """A number that changes when more is kept with this pattern."""
        return self._derived.growth

    def clone(self) -> Self:
        """The same pattern in memory of its own."""
        return self.with_indices(self.major_indices.clone(), self.col_indices.clone())

    def alias(self) -> Self:
        """The same pattern over the same memory, by new tensors that count the same changes."""
        return self.map_indices(Tensor.detach)

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Self:
        """The pattern on this device: itself if it is there already, else a copy.

        What was prepared for it is prepared again on the other device.
        """

        if isinstance(device, (torch.dtype, Tensor)):  # Tensor.to would convert the indices
            raise TypeError(
                f"device must be a torch.device, its name or its index, got {device!r}; a pattern "
                f"keeps the dtype of its indices"
            )

        def move(indices: Tensor) -> Tensor:
            return indices.to(device, non_blocking=non_blocking)

        return self.map_indices(move)

    def cuda(
        self, device: torch.device | str | int | None = None, non_blocking: bool = False
    ) -> Self:
        """The pattern on a GPU, the current one if None; see `to`."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def cpu(self) -> Self:
        """The pattern in the host's memory; see `to`."""
        return self.to("cpu")

    def map_indices(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The pattern of changed index tensors; this one if no tensor is another."""
        major, cols = change(self.major_indices), change(self.col_indices)
        if major is self.major_indices and cols is self.col_indices:
            return self
        return self.with_indices(major, cols)

    def with_indices(self, major: Tensor, cols: Tensor) -> Self:
        """A pattern of this shape and form over other index tensors."""
        if self.is_csr:
            return type(self)(self.shape, cols, crow_indices=major, blocksize=self.blocksize)
        return type(self)(self.shape, cols, row_indices=major)

    def _current(self, versions: tuple[int, ...]) -> Derived:
        """The values that belong to the indices as they are now, which is at these versions."""
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
        """Raise unless the index tensors still fit each other.

        Callers may have resized them, or given them other memory, since the pattern was made.
        """
        entries = self.col_indices.numel()
        name, length = "row", entries
        if self.is_csr:
            name, length = "crow", self.shape[0] + 1
            if self.blocksize is not None:
                length = crow_length(self.shape, self.blocksize)
        if belong_together(self.major_indices, self.col_indices, length):
            return
        require_alike(self.major_indices, f"{name}_indices", self.col_indices)
        if self.major_indices.numel() != length:
            raise ValueError(
                f"{name}_indices must have {length} entries beside {entries} col_indices, "
                f"got {self.major_indices.numel()}: it was resized after the pattern was made"
            )

    def compute_fingerprint(self) -> str:
        """A digest of shape, form and indices."""
        digest = hashlib.blake2b(digest_size=16)
        form = self.is_csr if self.blocksize is None else self.blocksize
        digest.update(f"{self.shape} {form} {self.index_dtype}".encode())
        for indices in (self.major_indices, self.col_indices):
            digest.update(as_array(indices.cpu().contiguous()).data)
        return digest.hexdigest()
