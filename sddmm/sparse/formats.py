"""Index tensors from arrays, and from sparse matrices and graphs of other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sddmm.cupy_arrays import from_cupy, is_cupy, make_cupy_wait
from sddmm.dtypes import INDEX_DTYPES
from sddmm.sparse.indices import BlockSize, checked_shape, compress, expand


class StoredIndices(NamedTuple):
    """The index tensors of one matrix: crow_indices if `is_csr`, else row_indices, as `major`.

    blocksize: the size of BSR's blocks, whose indices they are; None for the other forms.
    """

    major: Tensor
    cols: Tensor
    shape: tuple[int, int]
    is_csr: bool
    blocksize: BlockSize | None = None


def index_tensor(indices: Any, name: str) -> Tensor:
    """The 1-D int32 or int64 tensor of these indices, which errors call `name`."""
    tensor = indices if isinstance(indices, Tensor) else _as_tensor(indices, name)
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a dense 1-D tensor, got layout {tensor.layout}")
    if tensor.dtype not in INDEX_DTYPES:
        raise TypeError(f"{name} must be int32 or int64, got {tensor.dtype}")
    if tensor.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(tensor.shape)}")
    return tensor


def _as_tensor(indices: Any, name: str) -> Tensor:
    """A tensor with memory of its own, unless a library other than CuPy shares it by DLPack."""
    if is_cupy(indices):
        tensor = from_cupy(indices, name).clone()
        make_cupy_wait(tensor.device)
        return tensor
    try:
        if isinstance(indices, np.ndarray):
            return torch.tensor(np.ascontiguousarray(indices), device="cpu")
        if hasattr(indices, "__dlpack__"):
            return torch.utils.dlpack.from_dlpack(indices)
        return torch.as_tensor(indices, device="cpu")
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise TypeError(
            f"{name} must be a 1-D torch tensor or numpy array of int32 or int64, "
            f"got {type(indices).__name__}: {error}"
        ) from None


def torch_indices(S: Any) -> StoredIndices:
    """Copies of the indices of a torch sparse tensor, or the positions of a bool mask."""
    if not isinstance(S, Tensor):
        raise TypeError(f"S must be a torch tensor, got {type(S)}; see from_scipy, from_coo")
    if S.is_nested or S.is_meta:
        kind = "a nested tensor" if S.is_nested else "on meta, which holds no values"
        raise TypeError(
            f"S must be a sparse tensor or a 2-D mask with data, got one that is {kind}"
        )
    if S.dim() != 2 or (S.layout != torch.strided and S.dense_dim()):
        raise ValueError(f"S must be 2-D without dense dimensions, got shape {tuple(S.shape)}")
    shape = (S.shape[0], S.shape[1])
    if S.layout == torch.strided:
        return _mask_indices(S, shape)
    if S.layout == torch.sparse_coo:
        rows, cols = S._indices().clone()
        return StoredIndices(rows, cols, shape, False)
    if S.layout == torch.sparse_csr:
        return StoredIndices(S.crow_indices().clone(), S.col_indices().clone(), shape, True)
    if S.layout == torch.sparse_csc:
        rows = S.row_indices().clone()
        return StoredIndices(rows, expand(S.ccol_indices(), rows.numel()), shape, False)
    if S.layout == torch.sparse_bsr:
        crow, cols = S.crow_indices().clone(), S.col_indices().clone()
        return StoredIndices(crow, cols, shape, True, blocksize_of(S))
    raise TypeError(
        f"S has layout {S.layout}, blocks by column; give S.to_sparse_bsr({blocksize_of(S)})"
    )


def blocksize_of(S: Tensor) -> BlockSize:
    """The size of the blocks of a torch BSR or BSC tensor."""
    bm, bn = S.values().shape[-2:]
    return bm, bn


def scipy_indices(matrix: Any) -> StoredIndices:
    """Copies of the indices of a scipy.sparse or cupyx coo, csr or csc matrix or array."""
    kind = getattr(matrix, "format", None)
    if kind is None or not hasattr(matrix, "tocsr"):
        raise TypeError(f"matrix must be a scipy.sparse or cupyx matrix, got {type(matrix)}")
    if len(matrix.shape) != 2:
        raise ValueError(f"matrix must be 2-D, got shape {matrix.shape}")
    shape = checked_shape(matrix.shape)
    if kind == "coo":
        rows, cols = (index_tensor(x, "matrix's indices").clone() for x in (matrix.row, matrix.col))
        return StoredIndices(rows, cols, shape, False)
    if kind not in ("csr", "csc"):
        raise TypeError(f"matrix has format {kind}; convert it with matrix.tocsr()")
    indptr = index_tensor(matrix.indptr, "matrix's indptr").clone()
    indices = index_tensor(matrix.indices, "matrix's indices").clone()
    if kind == "csr":
        return StoredIndices(indptr, indices, shape, True)
    return StoredIndices(indices, expand(indptr, indices.numel()), shape, False)


def edge_indices(edge_index: Any, num_nodes: Any) -> StoredIndices:
    """The indices of a graph's adjacency matrix: row = source, column = target."""
    sizes = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    scalar = getattr(edge_index, "ndim", 2) == 0
    if scalar or not hasattr(edge_index, "__len__") or len(edge_index) != 2:
        got = f"shape {tuple(edge_index.shape)}" if hasattr(edge_index, "shape") else edge_index
        raise ValueError(f"edge_index must be (2, edges): sources, targets; got {got}")
    source, target = (
        index_tensor(x, f"edge_index[{i}], the {end}")
        for i, (x, end) in enumerate(zip(edge_index, ("sources", "targets"), strict=True))
    )
    try:
        shape = checked_shape(sizes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"num_nodes must be a size, or a pair of sizes: {error}") from None
    return StoredIndices(source, target, shape, False)


def _mask_indices(mask: Tensor, shape: tuple[int, int]) -> StoredIndices:
    if mask.dtype != torch.bool:
        raise TypeError(
            f"S is a dense tensor of {mask.dtype}; give the mask S != 0, or for an edge_index of "
            f"(source, target) use from_edge_index"
        )
    rows, cols = mask.nonzero(as_tuple=True)
    return StoredIndices(compress(rows, shape[0]), cols.contiguous(), shape, True)
