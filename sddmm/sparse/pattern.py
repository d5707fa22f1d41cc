"""The sparsity pattern of S: the positions of its nonzeros, without values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sddmm.sparse import formats
from sddmm.sparse.compressed_values import bsr_tensor, csr_tensor
from sddmm.sparse.index_tensors import CHECK, Derived, DerivedKey, IndexTensors
from sddmm.sparse.indices import (
    BlockSize,
    check_crow,
    check_range,
    checked_blocksize,
    checked_shape,
    compress,
    crow_length,
    expand,
    expand_blocks,
    mutation_tracked,
    require_alike,
)
from sddmm.sparse.views import CompressedView, RowLengths, group, group_blocks, row_lengths

_ROW_IDS = DerivedKey[Tensor]("row_ids")
_BY_ROW = DerivedKey[CompressedView]("by_row")
_BY_COLUMN = DerivedKey[CompressedView]("by_column")
_TRANSPOSE = DerivedKey["SparsePattern"]("transpose")
_IS_CANONICAL = DerivedKey[bool]("is_canonical")
_ROW_LENGTHS = DerivedKey[RowLengths]("row_lengths")
_FINGERPRINT = DerivedKey[str]("fingerprint")
_BLOCKS = DerivedKey["SparsePattern"]("blocks")
_EXPANDED = DerivedKey["SparsePattern"]("expanded")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class SparsePattern(IndexTensors):
    """Positions of the nonzeros of an m x n sparse matrix, in COO, CSR or BSR form.

    Make one with `from_coo`, `from_csr` or `from_bsr`. The order of the nonzeros is kept as given;
    COO may be unsorted and hold duplicates, each of which is a nonzero of its own. Index values are
    checked once, when a plan is first made (see `check`). `major_indices` are the crow_indices of
    CSR and BSR (`is_csr`), the row_indices of COO. `blocksize`: of BSR, whose indices are those of
    the blocks; None for the other forms.

    Torch tensors whose changes torch counts are referenced: a pattern notices when they are changed
    in place and derives everything anew. All other memory is copied, and later changes of it are
    not the pattern's: numpy arrays, tensors over memory that torch did not allocate (from_numpy,
    DLPack, shared memory), tensors made in inference mode. A change that torch does not count, by
    an alias (`t.data`, DLPack, a storage; `t.numpy()` taken afterwards), cannot be seen, and what
    was derived before stays in use; with SDDMM_CHECK_INDICES=1 in the environment every use of a
    pattern compares its indices with a digest and raises RuntimeError for such a change.

    Copies and pickles hold the indices alone. Patterns are equal (`==`) if shape, form, index dtype
    and indices are, on whatever device, which waits for a GPU; so are their `fingerprint`s. Their
    hash is one of shape, form and dtype, so that a pattern stays a key of its dict while its
    indices change; many patterns of one shape in one dict are compared by content.

    A pattern moves with `to`, `cuda` and `cpu`, also as an attribute of a PyTorch Geometric `Data`
    (which collates patterns into a list). A Module takes tensors alone as buffers: give it a
    `PatternModule`.
    """

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
        rows = formats.index_tensor(row_indices, "row_indices")
        cols = formats.index_tensor(col_indices, "col_indices")
        require_alike(rows, "row_indices", cols)
        if rows.numel() != cols.numel():
            raise ValueError(
                f"row_indices and col_indices must have one entry per nonzero each, "
                f"got {rows.numel()} and {cols.numel()}"
            )
        if copy:
            rows, cols = mutation_tracked(rows), mutation_tracked(cols)
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
        crow = formats.index_tensor(crow_indices, "crow_indices")
        cols = formats.index_tensor(col_indices, "col_indices")
        require_alike(crow, "crow_indices", cols)
        if crow.numel() != shape[0] + 1:
            raise ValueError(
                f"crow_indices must have m + 1 = {shape[0] + 1} entries for shape {shape}, "
                f"got {crow.numel()}"
            )
        if copy:
            crow, cols = mutation_tracked(crow), mutation_tracked(cols)
        return cls(shape, cols, crow_indices=crow)

    @classmethod
    def from_bsr(
        cls,
        crow_indices: Any,
        col_indices: Any,
        blocksize: tuple[int, int],
        shape: tuple[int, int],
        *,
        copy: bool = True,
    ) -> SparsePattern:
        """Pattern of full bm x bn blocks: row i of blocks holds the blocks in columns of blocks
        col_indices[crow_indices[i]:crow_indices[i + 1]].

        crow_indices: (m / bm + 1,), col_indices: (blocks,), 1-D int32 or int64 of equal dtype and
        device. blocksize: (bm, bn), each >= 1, which divide the shape (m, n). Blocks need not be
        sorted within a row. The nonzeros are ordered block by block and row by row within a block,
        as the values of torch's BSR tensors: `values.view(-1, bm, bn)` are the blocks. GPU kernels
        compute whole blocks; all else reads `row_ids` and `col_ids`, made when first read. copy: as
        in `from_coo`.
        """
        shape = checked_shape(shape)
        blocksize = checked_blocksize(blocksize, shape)
        crow = formats.index_tensor(crow_indices, "crow_indices")
        cols = formats.index_tensor(col_indices, "col_indices")
        require_alike(crow, "crow_indices", cols)
        length = crow_length(shape, blocksize)
        if crow.numel() != length:
            raise ValueError(
                f"crow_indices must have m / bm + 1 = {length} entries for shape {shape} in blocks "
                f"of {blocksize}, got {crow.numel()}"
            )
        if copy:
            crow, cols = mutation_tracked(crow), mutation_tracked(cols)
        return cls(shape, cols, crow_indices=crow, blocksize=blocksize)

    @classmethod
    def from_torch(cls, S: Tensor) -> SparsePattern:
        """Pattern of a torch sparse COO, CSR, CSC or BSR tensor, or of a 2-D bool mask's true
        entries.

        The nonzeros keep the order of S's values; those of a CSC tensor become COO. The indices are
        copied, as torch does not count all changes of a sparse tensor's. Refuses BSC tensors.
        """
        return cls._from_stored(formats.torch_indices(S))

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparsePattern:
        """Pattern of a scipy.sparse (or cupyx) coo, csr or csc matrix or array, on its device.

        The nonzeros keep the order of `matrix.data`; those of a csc matrix become COO. The indices
        are copied.
        """
        return cls._from_stored(formats.scipy_indices(matrix))

    @classmethod
    def from_edge_index(cls, edge_index: Any, num_nodes: int | tuple[int, int]) -> SparsePattern:
        """Pattern of a graph's adjacency matrix: the source of an edge is the row, the target the
        column.

        edge_index: (2, edges), sources first, as in PyTorch Geometric, or the pair of tensors that
        DGL's `edges()` returns; the order of the edges is kept. num_nodes: of the graph, or the
        pair (sources, targets) of a bipartite one. So `sddmm(S, x, y.mT)` gives the dot product of
        x[source] and y[target] for every edge, and `spmm(S, x, values=w, transpose=True)` sums
        w * x[source] at every target, a layer's aggregation. `S.T` has the targets as rows.
        """
        return cls._from_stored(formats.edge_indices(edge_index, num_nodes))

    @classmethod
    def _from_stored(cls, stored: formats.StoredIndices) -> SparsePattern:
        if stored.blocksize is not None:
            return cls.from_bsr(stored.major, stored.cols, stored.blocksize, stored.shape)
        make = cls.from_csr if stored.is_csr else cls.from_coo
        return make(stored.major, stored.cols, stored.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparsePattern):
            return NotImplemented
        if self is other:
            return True
        kinds = ((x.shape, x.is_csr, x.blocksize, x.index_dtype, x.nnz) for x in (self, other))
        if len(set(kinds)) > 1:
            return False
        other = other.to(self.device)
        return torch.equal(self.col_indices, other.col_indices) and torch.equal(
            self.major_indices, other.major_indices
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.is_csr, self.blocksize, self.index_dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are of the indices; what was derived belongs to this memory alone."""
        return _rebuild, (
            self.shape, self.col_indices, self.crow_indices, self.row_indices, self.blocksize
        )  # fmt: skip

    def __repr__(self) -> str:
        m, n = self.shape
        return (
            f"SparsePattern({m}x{n}, nnz={self.nnz}, {self.form}, {self.index_dtype}, "
            f"{self.device})"
        )

    def check(self) -> None:
        """Raise ValueError if an index lies outside the shape or crow_indices fall."""
        self.derive(CHECK, self._check)

    @property
    def row_ids(self) -> Tensor:
        """The row of every nonzero, (nnz,), in the pattern's order."""
        if self.row_indices is not None:
            return self.row_indices
        if self.blocksize is not None:
            return self.expanded.major_indices
        return self.derive(_ROW_IDS, self._row_ids)

    @property
    def col_ids(self) -> Tensor:
        """The column of every nonzero, (nnz,), in the pattern's order."""
        return self.expanded.col_indices

    @property
    def blocks(self) -> SparsePattern:
        """The CSR pattern of a BSR pattern's blocks, each one nonzero, over the same indices."""
        if self.blocksize is None:
            raise ValueError(f"{self!r} has no blocks; make one with SparsePattern.from_bsr")
        return self.derive(_BLOCKS, self._blocks)

    @property
    def expanded(self) -> SparsePattern:
        """The COO pattern of a BSR pattern's nonzeros, in its order; others are their own."""
        return self if self.blocksize is None else self.derive(_EXPANDED, self._expanded)

    @property
    def by_row(self) -> CompressedView:
        """The nonzeros grouped by row. A pattern whose rows never fall keeps its order."""
        return self.derive(_BY_ROW, self._by_row)

    @property
    def by_column(self) -> CompressedView:
        """The nonzeros grouped by column (the CSR form of the transpose), rows ascending."""
        return self.derive(_BY_COLUMN, self._by_column)

    def to_csr(self) -> SparsePattern:
        """This pattern in CSR form; nonzeros may move: `by_row.perm` says where each came from."""
        if self.is_csr and self.blocksize is None:
            return self
        view = self.by_row
        return SparsePattern(self.shape, view.indices, crow_indices=view.indptr)

    def to_coo(self) -> SparsePattern:
        """This pattern in COO form, nonzeros in the same order."""
        return SparsePattern(self.shape, self.col_ids, row_indices=self.row_ids)

    def to_torch(self, values: Tensor) -> Tensor:
        """The torch sparse COO, CSR or BSR tensor of this pattern with these values, (nnz,), in
        order.

        Differentiable in the values. A CSR or BSR tensor shares the memory of indices and values
        that are contiguous, a COO tensor copies the indices.
        """
        if not isinstance(values, Tensor) or tuple(values.shape) != (self.nnz,):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values)
            raise ValueError(f"values must be a tensor of shape ({self.nnz},), got {got}")
        if values.device != self.device:
            raise ValueError(f"values are on {values.device} and the pattern on {self.device}")
        self.check()
        if self.crow_indices is not None:
            # cuSPARSE reads no strides, and torch hands it addresses alone.
            crow, cols = self.crow_indices.contiguous(), self.col_indices.contiguous()
            if self.blocksize is not None:
                return bsr_tensor(crow, cols, self.shape, self.blocksize, values)
            return csr_tensor(crow, cols, self.shape, values.contiguous())
        return torch.sparse_coo_tensor(
            torch.stack([self.major_indices, self.col_indices]), values, self.shape,
            device=self.device, is_coalesced=self._is_coalesced(), check_invariants=False,
        )  # fmt: skip

    @property
    def T(self) -> SparsePattern:
        """The pattern of the transpose, in COO form, with the nonzeros in the same order.

        Take it again after a change of the indices in place.
        """
        return self.derive(_TRANSPOSE, self._transpose)

    @property
    def is_canonical(self) -> bool:
        """Whether columns ascend within each row, without duplicates, where the rows never fall."""
        return self.derive(_IS_CANONICAL, self._is_canonical)

    @property
    def row_lengths(self) -> RowLengths:
        """Statistics of the nonzeros per row."""
        return self.derive(_ROW_LENGTHS, self._row_lengths)

    @property
    def fingerprint(self) -> str:
        """A digest of shape, form and indices: equal for equal patterns, across processes."""
        return self.derive(_FINGERPRINT, self.compute_fingerprint)

    def _check(self) -> None:
        m, n = self.shape
        if self.blocksize is not None:
            check_crow(self.major_indices, self.col_indices.numel(), "the number of blocks")
            columns = n // self.blocksize[1]
            check_range(self.col_indices, "col_indices", columns, self.shape, self.blocksize)
            return
        if self.crow_indices is not None:
            check_crow(self.crow_indices, self.nnz)
        else:
            check_range(self.major_indices, "row_indices", m, self.shape)
        check_range(self.col_indices, "col_indices", n, self.shape)

    def _row_ids(self) -> Tensor:
        self.check()
        return expand(self.major_indices, self.nnz)

    def _blocks(self) -> SparsePattern:
        assert self.blocksize is not None
        (m, n), (bm, bn) = self.shape, self.blocksize
        return SparsePattern((m // bm, n // bn), self.col_indices, crow_indices=self.crow_indices)

    def _expanded(self) -> SparsePattern:
        assert self.blocksize is not None
        self.check()
        rows, cols = expand_blocks(self.major_indices, self.col_indices, self.blocksize, self.shape)
        return SparsePattern(self.shape, cols, row_indices=rows)

    def _by_row(self) -> CompressedView:
        self.check()
        if self.blocksize is not None:
            return group_blocks(self.major_indices, self.col_ids, self.blocksize)
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
        return group(self.col_ids, self.row_ids, (self.shape[1], self.shape[0]))

    def _transpose(self) -> SparsePattern:
        m, n = self.shape
        return SparsePattern((n, m), self.row_ids, row_indices=self.col_ids)

    def _is_coalesced(self) -> bool:
        return self.by_row.perm is None and self.is_canonical

    def _is_canonical(self) -> bool:
        rows, cols = self.row_ids, self.col_ids
        return bool(((rows[1:] > rows[:-1]) | (cols[1:] > cols[:-1])).all())

    def _row_lengths(self) -> RowLengths:
        return row_lengths(self.by_row)


def _rebuild(
    shape: tuple[int, int],
    cols: Tensor,
    crow: Tensor | None,
    rows: Tensor | None,
    blocksize: BlockSize | None,
) -> SparsePattern:
    if blocksize is not None:
        return SparsePattern.from_bsr(crow, cols, blocksize, shape)
    if crow is not None:
        return SparsePattern.from_csr(crow, cols, shape)
    return SparsePattern.from_coo(rows, cols, shape)
