"""The sparsity pattern of S: where the product is sampled, without values."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sddmm.errors import memory_bytes
from sddmm.sparse.indices import (
    as_array,
    check_crow,
    check_range,
    checked_shape,
    compress,
    index_tensor,
    own,
    require_alike,
)
from sddmm.sparse.views import CompressedView, RowLengths, group, row_lengths

T = TypeVar("T")

# Whether every use of a pattern looks for changes of its indices that torch does not count.
_CHECK_INDICES = os.environ.get("SDDMM_CHECK_INDICES", "") not in ("", "0")


class _Derived:
    """What was derived from indices in one state of theirs: values by name.

    aliases: of the index tensors; they keep the memory. growth: a count of additions.
    """

    __slots__ = ("aliases", "growth", "values", "versions")

    def __init__(self, versions: tuple[int, ...], aliases: tuple[Tensor, ...]) -> None:
        self.versions, self.aliases = versions, aliases
        self.values: dict[str, Any] = {}
        self.growth = 0


_NOTHING = _Derived((), ())  # of no pattern


@dataclass(frozen=True, eq=False, repr=False, init=False)
class SparsePattern:
    """Positions of the nonzeros of an m x n sparse matrix, in COO or CSR form.

    Make one with `from_coo` or `from_csr`. The order of the nonzeros is kept as given; COO may be
    unsorted and hold duplicates, each of which is a nonzero of its own. Index values are checked
    once, when a plan is first made (see `check`). `major_indices` are the crow_indices of CSR, the
    row_indices of COO.

    Torch tensors whose changes torch counts are referenced: a pattern notices when they are changed
    in place and derives everything anew. All other memory is copied, and later changes of it are
    not the pattern's: numpy arrays, tensors over memory that torch did not allocate (from_numpy,
    DLPack, shared memory), tensors made in inference mode. A change that torch does not count, by
    an alias (`t.data`, DLPack, a storage; `t.numpy()` taken afterwards), cannot be seen, and what
    was derived before stays in use; with SDDMM_CHECK_INDICES=1 in the environment every use of a
    pattern compares its indices with a digest and raises RuntimeError for such a change.

    Copies and pickles hold the indices alone. `==` is identity; compare `fingerprint`s.
    """

    shape: tuple[int, int]
    col_indices: Tensor
    crow_indices: Tensor | None
    row_indices: Tensor | None
    major_indices: Tensor
    is_csr: bool
    index_dtype: torch.dtype
    device: torch.device
    _derived: _Derived

    def __init__(
        self,
        shape: tuple[int, int],
        col_indices: Tensor,
        crow_indices: Tensor | None = None,
        row_indices: Tensor | None = None,
    ) -> None:
        major = row_indices if crow_indices is None else crow_indices
        if major is None or (crow_indices is not None and row_indices is not None):
            raise ValueError("a pattern has either crow_indices (CSR) or row_indices (COO)")
        self.__dict__.update(  # at once, as to freeze each field takes its time
            shape=shape,
            col_indices=col_indices,
            crow_indices=crow_indices,
            row_indices=row_indices,
            major_indices=major,
            is_csr=crow_indices is not None,
            index_dtype=col_indices.dtype,
            device=col_indices.device,
            _derived=_NOTHING,
        )

    @classmethod
    def from_coo(
        cls, row_indices: Any, col_indices: Any, shape: tuple[int, int], *, copy: bool = True
    ) -> SparsePattern:
        """Pattern with nonzeros (row_indices[i], col_indices[i]) of an m x n matrix.

        row_indices, col_indices: 1-D int32 or int64, of equal length, dtype and device; torch
        tensors or numpy arrays. shape: (m, n). copy: whether to copy memory whose changes torch
        does not count; without, the pattern is right only until that memory changes.
        """
        shape = checked_shape(shape)
        rows = index_tensor(row_indices, "row_indices")
        cols = index_tensor(col_indices, "col_indices")
        require_alike(rows, "row_indices", cols)
        if rows.numel() != cols.numel():
            raise ValueError(
                f"row_indices and col_indices must have one entry per nonzero each, "
                f"got {rows.numel()} and {cols.numel()}"
            )
        if copy:
            rows, cols = own(rows), own(cols)
        return cls(shape, cols, row_indices=rows)

    @classmethod
    def from_csr(
        cls, crow_indices: Any, col_indices: Any, shape: tuple[int, int], *, copy: bool = True
    ) -> SparsePattern:
        """Pattern whose row i holds the columns col_indices[crow_indices[i]:crow_indices[i + 1]].

        crow_indices: (m + 1,), col_indices: (nnz,), 1-D int32 or int64 of equal dtype and device.
        Columns need not be sorted within a row. copy: as in `from_coo`.
        """
        shape = checked_shape(shape)
        crow = index_tensor(crow_indices, "crow_indices")
        cols = index_tensor(col_indices, "col_indices")
        require_alike(crow, "crow_indices", cols)
        if crow.numel() != shape[0] + 1:
            raise ValueError(
                f"crow_indices must have m + 1 = {shape[0] + 1} entries for shape {shape}, "
                f"got {crow.numel()}"
            )
        if copy:
            crow, cols = own(crow), own(cols)
        return cls(shape, cols, crow_indices=crow)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are of the indices; what was derived belongs to this memory alone."""
        return _rebuilt, (self.shape, self.col_indices, self.crow_indices, self.row_indices)

    def __repr__(self) -> str:
        layout = "csr" if self.is_csr else "coo"
        m, n = self.shape
        return (
            f"SparsePattern({m}x{n}, nnz={self.nnz}, {layout}, {self.index_dtype}, {self.device})"
        )

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

    def check(self) -> None:
        """Raise ValueError if an index lies outside the shape or crow_indices fall."""
        self.derive("check", self._check)

    @property
    def row_ids(self) -> Tensor:
        """The row of every nonzero, (nnz,), in the pattern's order."""
        if self.row_indices is not None:
            return self.row_indices
        return self.derive("row_ids", self._row_ids)

    @property
    def by_row(self) -> CompressedView:
        """The nonzeros grouped by row. A pattern whose rows never fall keeps its order."""
        return self.derive("by_row", self._by_row)

    @property
    def by_column(self) -> CompressedView:
        """The nonzeros grouped by column (the CSR form of the transpose), rows ascending."""
        return self.derive("by_column", self._by_column)

    def to_csr(self) -> SparsePattern:
        """This pattern in CSR form; nonzeros may move: `by_row.perm` says where each came from."""
        if self.is_csr:
            return self
        view = self.by_row
        return SparsePattern(self.shape, view.indices, crow_indices=view.indptr)

    def to_coo(self) -> SparsePattern:
        """This pattern in COO form, nonzeros in the same order."""
        return SparsePattern(self.shape, self.col_indices, row_indices=self.row_ids)

    def clone(self) -> SparsePattern:
        """The same pattern in memory of its own."""
        major, cols = self.major_indices.clone(), self.col_indices.clone()
        if self.is_csr:
            return SparsePattern(self.shape, cols, crow_indices=major)
        return SparsePattern(self.shape, cols, row_indices=major)

    def alias(self) -> SparsePattern:
        """The same pattern by tensors of its own over this memory, which count the same changes."""
        major, cols = self.major_indices.detach(), self.col_indices.detach()
        if self.is_csr:
            return SparsePattern(self.shape, cols, crow_indices=major)
        return SparsePattern(self.shape, cols, row_indices=major)

    @property
    def is_canonical(self) -> bool:
        """Whether the columns of a CSR pattern ascend within each row, without duplicates."""
        return self.derive("is_canonical", self._is_canonical)

    @property
    def row_lengths(self) -> RowLengths:
        """Statistics of the nonzeros per row."""
        return self.derive("row_lengths", self._row_lengths)

    @property
    def fingerprint(self) -> str:
        """A digest of shape, form and indices: equal for equal patterns, across processes."""
        return self.derive("fingerprint", self._fingerprint)

    def derive(self, name: str, compute: Callable[[], T]) -> T:
        """compute(), remembered until torch changes an index tensor in place."""
        values = self._current().values
        if name not in values:
            values.setdefault(name, compute())  # another thread's, if it was quicker
            self.grown()
        value: T = values[name]
        return value

    def grown(self) -> None:
        """Notes that more is kept with this pattern now, so that a cache counts its bytes anew."""
        self._derived.growth += 1

    @property
    def growth(self) -> int:
        """A number that changes when more is kept with this pattern."""
        return self._derived.growth

    @property
    def held_bytes(self) -> int:
        """Bytes of the indices and of all that was prepared for them."""
        return memory_bytes(self.major_indices, self.col_indices, self._derived.values)

    def _current(self) -> _Derived:
        """What was derived from the indices as they are now."""
        versions = self.versions
        derived = self._derived
        if derived.versions != versions:
            self._check_lengths()
            # The aliases keep the memory, so that its address stays that of these indices.
            aliases = (self.major_indices.detach(), self.col_indices.detach())
            derived = _Derived(versions, aliases)
            self.__dict__["_derived"] = derived  # whole: another thread may be reading the old one
        if _CHECK_INDICES:
            self._check_uncounted(derived)
        return derived

    def _check_uncounted(self, derived: _Derived) -> None:
        fingerprint = self._fingerprint()
        if derived.values.setdefault("uncounted", fingerprint) != fingerprint:
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

    def _check(self) -> None:
        m, n = self.shape
        if self.crow_indices is not None:
            check_crow(self.crow_indices, self.nnz)
        else:
            check_range(self.major_indices, "row_indices", m, self.shape)
        check_range(self.col_indices, "col_indices", n, self.shape)

    def _row_ids(self) -> Tensor:
        self.check()
        crow = self.major_indices
        rows = torch.arange(self.shape[0], dtype=self.index_dtype, device=self.device)
        return rows.repeat_interleave(crow.diff(), output_size=self.nnz)

    def _by_row(self) -> CompressedView:
        self.check()
        if self.crow_indices is not None:
            return CompressedView(
                self.crow_indices.contiguous(), self.col_indices.contiguous(), None
            )
        rows = self.row_ids
        if bool((rows[1:] >= rows[:-1]).all()):
            return CompressedView(
                compress(rows, self.shape[0]), self.col_indices.contiguous(), None
            )
        return group(rows, self.col_indices, self.shape)

    def _by_column(self) -> CompressedView:
        self.check()
        return group(self.col_indices, self.row_ids, (self.shape[1], self.shape[0]))

    def _is_canonical(self) -> bool:
        rows, cols = self.row_ids, self.col_indices
        return bool(((rows[1:] > rows[:-1]) | (cols[1:] > cols[:-1])).all())

    def _row_lengths(self) -> RowLengths:
        return row_lengths(self.by_row)

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.shape} {self.is_csr} {self.index_dtype}".encode())
        for indices in (self.major_indices, self.col_indices):
            digest.update(as_array(indices.cpu().contiguous()).data)
        return digest.hexdigest()


def _rebuilt(
    shape: tuple[int, int], cols: Tensor, crow: Tensor | None, rows: Tensor | None
) -> SparsePattern:
    if crow is not None:
        return SparsePattern.from_csr(crow, cols, shape)
    return SparsePattern.from_coo(rows, cols, shape)
