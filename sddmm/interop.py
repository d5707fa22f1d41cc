"""The containers that S may be, and how a result becomes the same kind again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.csr_values import csr_tensor
from sddmm.operands import from_numpy, to_numpy, unchanged
from sddmm.pattern import SparsePattern
from sddmm.pattern_cache import PATTERNS

KINDS = (
    "a torch sparse COO or CSR tensor, a scipy.sparse or cupyx coo, csr or csc matrix or array, "
    "a SparsePattern, or the tuple (row_indices, col_indices, shape)"
)


class Sampling(NamedTuple):
    """What S says: its pattern, its values (or None), and how to wrap new values like S.

    `transposed`: the pattern is that of S's transpose (S is CSC), in the same order of nonzeros.
    `foreign`: S is a scipy or cupyx matrix, which holds no gradients and no half types.
    `tracked`: the pattern may outlive the call: its memory cannot change unseen.
    `source`: the pattern over a sparse tensor's own indices, whose counted changes tell when to
    look at them again; None where `pattern` itself tells.
    """

    pattern: SparsePattern
    values: Tensor | None
    wrap: Callable[[Any], Any]
    transposed: bool = False
    foreign: bool = False
    tracked: bool = True
    source: SparsePattern | None = None

    def kept(self) -> SparsePattern:
        """The pattern for what outlives the call: of its own memory, if changes go unseen."""
        return self.pattern if self.tracked else self.pattern.clone()


def read(S: Any, known: bool = True) -> Sampling:
    """The sampling that S, of any supported kind, stands for.

    known: whether a SparsePattern or a tuple may stand for a remembered pattern of the very same
    indices, whose plans were made before.
    """
    if isinstance(S, SparsePattern):
        if not known:
            return Sampling(S, None, unchanged)
        # Asked once, as asking takes microseconds. S must not hold itself: it would not be freed.
        other = S.derive("same", lambda: _other_than(S, PATTERNS.of_pattern(S)))
        return Sampling(S if other is None else other, None, unchanged)
    if isinstance(S, Tensor):
        return _from_torch(S)
    if isinstance(S, tuple) and len(S) == 3:
        if known and isinstance(S[0], Tensor) and isinstance(S[1], Tensor):
            pattern = PATTERNS.of_tensors(SparsePattern.from_coo(*S, copy=False))
            return Sampling(pattern, None, unchanged)
        return Sampling(SparsePattern.from_coo(*S), None, unchanged)
    package = type(S).__module__.partition(".")[0]
    if package in ("scipy", "cupyx") and getattr(S, "format", None) in ("coo", "csr", "csc"):
        return _from_scipy_like(S)
    raise TypeError(f"S must be {KINDS}; got {_described(S, package)}")


def _described(S: Any, package: str) -> str:
    """What S is, and how to make something of it that is taken."""
    if hasattr(S, "format"):
        return f"a {package} matrix of format {S.format}; convert it with S.tocsr()"
    if isinstance(S, (tuple, list)):
        return f"a {type(S).__name__} of {len(S)}; a COO tuple has two index tensors and a shape"
    return repr(type(S))


def _other_than(S: SparsePattern, pattern: SparsePattern) -> SparsePattern | None:
    return None if pattern is S else pattern


def _from_torch(S: Tensor) -> Sampling:
    if S.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise TypeError(f"S must be {KINDS}; got {_other_layout(S)}")
    if S.dim() != 2 or S.dense_dim():
        raise ValueError(
            f"S must be a 2-D sparse tensor without dense dimensions, got shape {tuple(S.shape)}; "
            f"call once for each matrix of a batch, or give operands with heads over one matrix"
        )
    shape = (S.shape[0], S.shape[1])
    if S.layout == torch.sparse_coo:
        if S.requires_grad and not S.is_coalesced():
            raise ValueError(
                "S is an uncoalesced COO tensor that requires grad, which torch cannot "
                "differentiate; coalesce it, or multiply the values in yourself (scale=False)"
            )
        # Coalescing would sort and merge: S's own order and duplicates stay.
        indices = S._indices()
        values = S.values() if S.is_coalesced() else S._values()
        pattern = SparsePattern.from_coo(indices[0], indices[1], shape, copy=False)
        coalesced = S.is_coalesced()

        def wrap_coo(new: Tensor) -> Tensor:
            return torch.sparse_coo_tensor(
                indices, new, shape,
                device=new.device, is_coalesced=coalesced, check_invariants=False,
            )  # fmt: skip

        return Sampling(PATTERNS.of_sparse(pattern, S), values, wrap_coo, source=pattern)
    crow, cols = S.crow_indices(), S.col_indices()
    pattern = SparsePattern.from_csr(crow, cols, shape, copy=False)
    kept = PATTERNS.of_sparse(pattern, S)
    if S.grad_fn is not None and not kept.is_canonical:
        raise ValueError(
            "S is a CSR tensor made of values that require grad, with unsorted columns or "
            "duplicates, whose gradient torch returns in another order; sort its columns, or "
            "multiply the values in yourself (scale=False)"
        )

    def wrap_csr(new: Tensor) -> Tensor:
        return csr_tensor(new, crow, cols, shape)

    return Sampling(kept, S.values(), wrap_csr, source=pattern)


def _other_layout(S: Tensor) -> str:
    """What a torch tensor of a layout that is not taken is, and what to give instead."""
    if S.layout != torch.strided:
        return f"a torch tensor of layout {S.layout}; convert it with S.to_sparse_csr()"
    if S.dim() == 2 and S.shape[0] == 2 and not S.is_floating_point():
        return (
            "a dense 2 x E tensor of integers; if it is an edge_index, give the tuple "
            "(edge_index[0], edge_index[1], (m, n)), whose first entry are the rows"
        )
    return "a dense torch tensor; convert a mask with S.to_sparse_csr()"


def _from_scipy_like(S: Any) -> Sampling:
    """scipy.sparse and cupyx.scipy.sparse share their names; dlpack shares the memory."""
    if len(S.shape) != 2:
        raise ValueError(f"S must be a 2-D sparse matrix or array, got shape {S.shape}")
    on_gpu = type(S).__module__.startswith("cupyx")

    def tensor(array: Any, name: str) -> Tensor:
        return torch.utils.dlpack.from_dlpack(array) if on_gpu else from_numpy(array, name)

    def wrap(new: Any) -> Any:
        if isinstance(new, Tensor):
            new = _to_cupy(new) if on_gpu else to_numpy(new)
        # Copies, as in scipy's own arithmetic: their matrices are changed in place at times.
        if S.format == "coo":
            result = type(S)((new, (S.row.copy(), S.col.copy())), shape=S.shape)
            result.has_canonical_format = S.has_canonical_format
            return result
        return type(S)((new, S.indices.copy(), S.indptr.copy()), shape=S.shape)

    values = tensor(S.data, "S")
    if S.format == "coo":
        rows, cols = (tensor(x, "S's indices") for x in (S.row, S.col))
        pattern = SparsePattern.from_coo(rows, cols, S.shape, copy=False)
    else:
        shape = S.shape[::-1] if S.format == "csc" else S.shape
        crow, cols = (tensor(x, "S's indices") for x in (S.indptr, S.indices))
        pattern = SparsePattern.from_csr(crow, cols, shape, copy=False)
    transposed = S.format == "csc"
    return Sampling(pattern, values, wrap, transposed, foreign=True, tracked=False)


def _to_cupy(values: Tensor) -> Any:
    import cupy

    return cupy.from_dlpack(values.detach())
