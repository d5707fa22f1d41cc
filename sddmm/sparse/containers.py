"""Conversion of S, in any supported container, to a pattern and values, and of results back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sddmm.cache import CACHE
from sddmm.cupy_arrays import from_cupy, make_cupy_wait, to_cupy
from sddmm.dtypes import INDEX_DTYPES
from sddmm.operands import from_numpy, identity, to_numpy
from sddmm.sparse.index_tensors import belong_together
from sddmm.sparse.indices import SIZE_LIMIT
from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.torch_tensors import (
    KINDS,
    Parts,
    check_gradient_order,
    pattern_and_values,
)

if TYPE_CHECKING:
    from sddmm.prepared import SeenTensor


class SparseInput:
    """The pattern of S, its values (or None), and the function that wraps new values like S.

    `transposed`: the pattern is that of S's transpose (S is CSC), in the same order of nonzeros.
    `is_scipy`: S is a scipy or cupyx matrix, which holds no gradients and no half types, and whose
    memory, which the pattern is over, may change unseen.
    `is_cupyx`: that memory is CuPy's, whose stream waits for what reads it (`cupy_arrays.py`).
    `new_tensor`: what is noted of S, if it is a torch sparse tensor that comes for the first time,
    and whose own indices, which the pattern is then over, serve the call.
    `source`: the pattern over a sparse tensor's own indices, whose counted changes say when to
    compare them again; None where the changes of `pattern` itself are counted.
    """

    transposed = False
    is_scipy = False
    source: SparsePattern | None = None
    is_cupyx = False

    def __init__(
        self,
        pattern: SparsePattern,
        values: Tensor | None,
        wrap: Callable[[Tensor], Any],
        new_tensor: SeenTensor | None = None,
    ) -> None:
        self.pattern, self.values, self.wrap, self.new_tensor = pattern, values, wrap, new_tensor

    def stable_pattern(self) -> SparsePattern:
        """The pattern for what outlives the call: of its own memory, if changes go unseen."""
        return self.pattern.clone() if self.is_scipy else self.pattern


def parse_sparse(
    S: Any, use_cache: bool = True, is_sampled_at_once: bool = False, reads_values: bool = True
) -> SparseInput:
    """The pattern and the values of S, which may be of any supported kind.

    is_sampled_at_once: whether nothing reads the pattern after this call. A torch sparse tensor's
    own indices then serve the first call.
    use_cache: whether the cached pattern of the very same indices, which may have plans already,
    may take the place of a SparsePattern or a tuple.
    reads_values: else a CSR tensor's values may be left out.
    """
    if isinstance(S, Tensor):
        return _from_torch(S, is_sampled_at_once, reads_values)
    if isinstance(S, SparsePattern):
        return SparseInput(CACHE.of_pattern(S) if use_cache else S, None, identity)
    if isinstance(S, tuple) and len(S) == 3:
        if use_cache and isinstance(S[0], Tensor) and isinstance(S[1], Tensor):
            return SparseInput(CACHE.of_tensors(_coo_pattern(*S)), None, identity)
        return SparseInput(SparsePattern.from_coo(*S), None, identity)
    package = type(S).__module__.partition(".")[0]
    if package in ("scipy", "cupyx") and getattr(S, "format", None) in ("coo", "csr", "csc"):
        return _from_scipy_like(S)
    raise TypeError(f"S must be {KINDS}; got {_described(S, package)}")


def to_container(
    sparse: SparseInput | Parts, values: Tensor, to_output: Callable[[Tensor], Any]
) -> Any:
    """The values in S's kind; for a pattern, or with heads, bare, as to_output converts them."""
    if sparse.wrap is identity:
        return to_output(values)
    if to_output is to_cupy or (isinstance(sparse, SparseInput) and sparse.is_cupyx):
        make_cupy_wait(values.device)
    return sparse.wrap(values) if values.dim() == 1 else to_output(values)


def _described(S: Any, package: str) -> str:
    """The end of an error message: the type of S, and how to convert S to a supported one."""
    if isinstance(getattr(S, "format", None), str):
        return f"a {package} matrix of format {S.format}; convert it with S.tocsr()"
    if isinstance(S, (tuple, list)):
        return f"a {type(S).__name__} of {len(S)}; a COO tuple has two index tensors and a shape"
    if hasattr(S, "to_torch_sparse_csr_tensor"):  # torch_sparse's SparseTensor
        return f"{type(S)}; convert it with S.to_torch_sparse_csr_tensor()"
    if hasattr(S, "edge_index"):  # PyTorch Geometric's Data
        return f"{type(S)}; give SparsePattern.from_edge_index(S.edge_index, S.num_nodes)"
    if hasattr(S, "edges") and hasattr(S, "num_nodes"):  # DGL's graphs
        return f"{type(S)}; give SparsePattern.from_edge_index(S.edges(), S.num_nodes())"
    if hasattr(S, "dtype") and hasattr(S, "shape"):
        return (
            f"{type(S)} of shape {tuple(S.shape)}; give a mask as a torch tensor to "
            f"SparsePattern.from_torch, an edge_index to SparsePattern.from_edge_index"
        )
    return repr(type(S))


def _coo_pattern(rows: Tensor, cols: Tensor, shape: Any) -> SparsePattern:
    """`SparsePattern.from_coo` without a copy, in less time for what is right at a glance."""
    if (
        rows.layout == cols.layout == torch.strided
        and rows.dim() == cols.dim() == 1
        and cols.dtype in INDEX_DTYPES
        and type(shape) is tuple
        and len(shape) == 2
        and type(shape[0]) is type(shape[1]) is int
        and 0 <= shape[0] < SIZE_LIMIT
        and 0 <= shape[1] < SIZE_LIMIT
        and belong_together(rows, cols, cols.numel())
    ):
        return SparsePattern(shape, cols, row_indices=rows)
    return SparsePattern.from_coo(rows, cols, shape, copy=False)


def _from_torch(S: Tensor, is_sampled_at_once: bool, reads_values: bool) -> SparseInput:
    pattern, values, wrap = pattern_and_values(S, reads_values)
    # A CPU sorts COO nonzeros, which the second call should not repeat.
    runs_as_stored = pattern.is_csr or pattern.device.type != "cpu"
    is_sampled_at_once = is_sampled_at_once and S.grad_fn is None and runs_as_stored
    cached, new_tensor = CACHE.of_sparse(pattern, S, is_sampled_at_once)
    if new_tensor is not None:
        return SparseInput(pattern, values, wrap, new_tensor)
    if S.grad_fn is not None:
        check_gradient_order(S, cached)
    sparse = SparseInput(cached, values, wrap)
    sparse.source = pattern
    return sparse


def _from_scipy_like(S: Any) -> SparseInput:
    """The input of a scipy.sparse or cupyx matrix, which name their parts alike; shares memory."""
    if len(S.shape) != 2:
        raise ValueError(f"S must be a 2-D sparse matrix or array, got shape {S.shape}")
    on_gpu = type(S).__module__.startswith("cupyx")
    tensor = from_cupy if on_gpu else from_numpy

    def wrap(values: Tensor) -> Any:
        new = to_cupy(values) if on_gpu else to_numpy(values)
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
    sparse = SparseInput(pattern, values, wrap)
    sparse.transposed, sparse.is_scipy, sparse.is_cupyx = S.format == "csc", True, on_gpu
    return sparse
