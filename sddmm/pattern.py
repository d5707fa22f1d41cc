"""The sparsity pattern of S: where the product is sampled, without values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

INDEX_DTYPES = (torch.int32, torch.int64)


class RowLengths(NamedTuple):
    """Nonzeros per row: the shortest, the mean and the longest row, and how many are empty."""

    shortest: int
    mean: float
    longest: int
    empty_rows: int


class Grouping(NamedTuple):
    """A pattern's nonzeros grouped by row (or by column), as compressed sparse storage.

    `compressed` has one more entry than there are groups; `minor` holds the other index of each
    nonzero; `order[i]` is the position in the pattern of the i-th grouped nonzero, or None when
    the pattern is stored in that order already.
    """

    compressed: Tensor
    minor: Tensor
    order: Tensor | None


@dataclass(frozen=True, eq=False, repr=False, init=False)
class SparsePattern:
    """Positions of the nonzeros of an m x n sparse matrix, in COO or CSR form.

    Make one with `from_coo` or `from_csr`. The order of the nonzeros is kept as given; COO may be
    unsorted and hold duplicates, each of which is a nonzero of its own. Index values are checked
    once, when a plan is first made (see `check`). `major_indices` are the crow_indices of CSR, the
    row_indices of COO.

    A pattern notices when its index tensors are changed in place (by torch's version counters)
    and derives everything anew. Changes that torch does not count, through a numpy array that
    shares the memory or to a tensor made in inference mode, cannot be seen.
    """

    shape: tuple[int, int]
    col_indices: Tensor
    crow_indices: Tensor | None
    row_indices: Tensor | None
    major_indices: Tensor
    is_csr: bool
    index_dtype: torch.dtype
    device: torch.device
    _derived: dict[str, tuple[tuple[int, ...], Any]]

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
            _derived={},
        )

    @classmethod
    def from_coo(cls, row_indices: Any, col_indices: Any, shape: tuple[int, int]) -> SparsePattern:
        """Pattern with nonzeros (row_indices[i], col_indices[i]) of an m x n matrix.

        row_indices, col_indices: 1-D int32 or int64, of equal length, dtype and device.
        shape: (m, n). Torch tensors are referenced, not copied; numpy arrays are accepted.
        """
        shape = _checked_shape(shape)
        rows = _index_tensor(row_indices, "row_indices")
        cols = _index_tensor(col_indices, "col_indices")
        _require_alike(rows, "row_indices", cols)
        if rows.numel() != cols.numel():
            raise ValueError(
                f"row_indices and col_indices must have one entry per nonzero each, "
                f"got {rows.numel()} and {cols.numel()}"
            )
        return cls(shape, cols, row_indices=rows)

    @classmethod
    def from_csr(cls, crow_indices: Any, col_indices: Any, shape: tuple[int, int]) -> SparsePattern:
        """Pattern whose row i holds the columns col_indices[crow_indices[i]:crow_indices[i + 1]].

        crow_indices: (m + 1,), col_indices: (nnz,), 1-D int32 or int64 of equal dtype and device.
        Columns need not be sorted within a row.
        """
        shape = _checked_shape(shape)
        crow = _index_tensor(crow_indices, "crow_indices")
        cols = _index_tensor(col_indices, "col_indices")
        _require_alike(crow, "crow_indices", cols)
        if crow.numel() != shape[0] + 1:
            raise ValueError(
                f"crow_indices must have m + 1 = {shape[0] + 1} entries for shape {shape}, "
                f"got {crow.numel()}"
            )
        return cls(shape, cols, crow_indices=crow)

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
        """Torch's in-place change counters of the index tensors that have one."""
        try:
            return self.major_indices._version, self.col_indices._version
        except RuntimeError:  # of a tensor made in inference mode
            both = self.major_indices, self.col_indices
            return tuple(tensor._version for tensor in both if not tensor.is_inference())

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
    def by_row(self) -> Grouping:
        """The nonzeros grouped by row. A pattern whose rows never fall keeps its order."""
        return self.derive("by_row", self._by_row)

    @property
    def by_column(self) -> Grouping:
        """The nonzeros grouped by column (the CSR form of the transpose), rows ascending."""
        return self.derive("by_column", self._by_column)

    def to_csr(self) -> SparsePattern:
        """This pattern in CSR form; nonzeros may move: `by_row.order` says where each came from."""
        if self.is_csr:
            return self
        grouping = self.by_row
        return SparsePattern(self.shape, grouping.minor, crow_indices=grouping.compressed)

    def to_coo(self) -> SparsePattern:
        """This pattern in COO form, nonzeros in the same order."""
        return SparsePattern(self.shape, self.col_indices, row_indices=self.row_ids)

    def clone(self) -> SparsePattern:
        """The same pattern in memory of its own."""
        major, cols = self.major_indices.clone(), self.col_indices.clone()
        if self.is_csr:
            return SparsePattern(self.shape, cols, crow_indices=major)
        return SparsePattern(self.shape, cols, row_indices=major)

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
        versions = self.versions
        known = self._derived.get(name)
        if known is None or known[0] != versions:
            known = self._derived[name] = (versions, compute())
        value: T = known[1]
        return value

    def _check(self) -> None:
        m, n = self.shape
        if self.crow_indices is not None:
            _check_crow(self.crow_indices, self.nnz)
        else:
            _check_range(self.major_indices, "row_indices", m, self.shape)
        _check_range(self.col_indices, "col_indices", n, self.shape)

    def _row_ids(self) -> Tensor:
        self.check()
        crow = self.major_indices
        rows = torch.arange(self.shape[0], dtype=self.index_dtype, device=self.device)
        return rows.repeat_interleave(crow.diff(), output_size=self.nnz)

    def _by_row(self) -> Grouping:
        self.check()
        if self.crow_indices is not None:
            return Grouping(self.crow_indices, self.col_indices, None)
        rows = self.row_ids
        if bool((rows[1:] >= rows[:-1]).all()):
            return Grouping(compress(rows, self.shape[0]), self.col_indices, None)
        return _group(rows, self.col_indices, self.shape)

    def _by_column(self) -> Grouping:
        self.check()
        return _group(self.col_indices, self.row_ids, (self.shape[1], self.shape[0]))

    def _row_lengths(self) -> RowLengths:
        lengths = self.by_row.compressed.diff()
        if lengths.numel() == 0:
            return RowLengths(0, 0.0, 0, 0)
        shortest, longest = (int(x) for x in lengths.aminmax())
        return RowLengths(shortest, self.nnz / lengths.numel(), longest, int((lengths == 0).sum()))

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.shape} {self.is_csr} {self.index_dtype}".encode())
        for indices in (self.major_indices, self.col_indices):
            digest.update(indices.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def compress(sorted_ids: Tensor, groups: int) -> Tensor:
    """Start of each group in ascending `sorted_ids`, and the end of the last: (groups + 1,)."""
    bounds = torch.arange(groups + 1, dtype=sorted_ids.dtype, device=sorted_ids.device)
    starts = torch.searchsorted(sorted_ids.contiguous(), bounds)
    return starts.to(sorted_ids.dtype) if sorted_ids.numel() < 2**31 else starts


def row_major(major: Tensor, minor: Tensor, shape: tuple[int, int]) -> Tensor:
    """What sorts by `major`, then by `minor`, stable among duplicates."""
    if shape[0] * shape[1] < 2**63:
        return torch.argsort(major.to(torch.int64) * shape[1] + minor, stable=True)
    order = torch.argsort(minor, stable=True)
    return order[torch.argsort(major[order], stable=True)]


def _group(major: Tensor, minor: Tensor, shape: tuple[int, int]) -> Grouping:
    """Group by `major`, ascending in `minor` within a group, stable among duplicates."""
    order = row_major(major, minor, shape)
    return Grouping(compress(major[order], shape[0]), minor[order], order)


def _checked_shape(shape: tuple[int, int]) -> tuple[int, int]:
    try:
        m, n = shape
        m, n = int(m), int(n)
    except (TypeError, ValueError):
        raise ValueError(f"shape must be two sizes (m, n), got {shape!r}") from None
    if m < 0 or n < 0:
        raise ValueError(f"shape must be two sizes >= 0, got {(m, n)}")
    return m, n


def _index_tensor(indices: Any, name: str) -> Tensor:
    tensor = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
    if tensor.dtype not in INDEX_DTYPES:
        raise TypeError(f"{name} must be int32 or int64, got {tensor.dtype}")
    if tensor.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(tensor.shape)}")
    return tensor


def _require_alike(major: Tensor, name: str, cols: Tensor) -> None:
    if major.device != cols.device:
        raise ValueError(
            f"{name} is on {major.device} and col_indices on {cols.device}; put both on one device"
        )
    if major.dtype != cols.dtype:
        raise TypeError(
            f"{name} is {major.dtype} and col_indices {cols.dtype}; give both the same dtype"
        )


def _check_range(indices: Tensor, name: str, bound: int, shape: tuple[int, int]) -> None:
    if indices.numel() == 0:
        return
    smallest, largest = (int(x) for x in indices.aminmax())
    if smallest >= 0 and largest < bound:
        return
    at = int(((indices < 0) | (indices >= bound)).to(torch.int8).argmax())
    valid = f"valid are 0..{bound - 1}" if bound else "none is valid"
    raise ValueError(
        f"{name}[{at}] is {int(indices[at])}; {valid}, as S has shape {shape[0]}x{shape[1]}"
    )


def _check_crow(crow: Tensor, nnz: int) -> None:
    if int(crow[0]) != 0:
        raise ValueError(f"crow_indices must start with 0, got {int(crow[0])}")
    falls = crow[1:] < crow[:-1]
    if bool(falls.any()):
        at = int(falls.to(torch.int8).argmax())
        raise ValueError(
            f"crow_indices must never fall, got {int(crow[at])} then {int(crow[at + 1])} "
            f"at positions {at} and {at + 1}"
        )
    if int(crow[-1]) != nnz:
        raise ValueError(f"crow_indices must end with nnz = {nnz}, got {int(crow[-1])}")
