"""Checks, sorting and compression of index tensors."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

BlockSize = tuple[int, int]
"""The rows and the columns of every block of a block pattern."""

# Numpy's names of the dtypes of indices.
_TYPE_STRINGS = {torch.int32: np.dtype(np.int32).str, torch.int64: np.dtype(np.int64).str}

# Torch counts sizes in signed 64 bits.
SIZE_LIMIT = 2**63


def compress(sorted_ids: Tensor, groups: int) -> Tensor:
    """Start of each group in ascending `sorted_ids`, and the end of the last: (groups + 1,)."""
    bounds = torch.arange(groups + 1, dtype=sorted_ids.dtype, device=sorted_ids.device)
    starts = torch.searchsorted(sorted_ids.contiguous(), bounds)
    return starts.to(sorted_ids.dtype) if sorted_ids.numel() < 2**31 else starts


def expand(indptr: Tensor, nnz: int) -> Tensor:
    """The group of each of nnz elements, (nnz,): the inverse of `compress`."""
    ids = torch.arange(indptr.numel() - 1, dtype=indptr.dtype, device=indptr.device)
    return ids.repeat_interleave(indptr.diff(), output_size=nnz)


def row_major(major: Tensor, minor: Tensor, shape: tuple[int, int]) -> Tensor:
    """The permutation that sorts by `major`, then by `minor`; duplicates keep their order."""
    if shape[0] * shape[1] < 2**63:
        return torch.argsort(major.to(torch.int64) * shape[1] + minor, stable=True)
    order = torch.argsort(minor, stable=True)
    return order[torch.argsort(major[order], stable=True)]


def crow_length(shape: tuple[int, int], blocksize: BlockSize | None = None) -> int:
    """The entries of crow_indices: one for each row, or row of blocks, and one more."""
    return shape[0] // (1 if blocksize is None else blocksize[0]) + 1


def stored_nnz(cols: Tensor, blocksize: BlockSize | None = None) -> int:
    """The nonzeros of a pattern with these col_indices: one each, or a block each."""
    return cols.numel() if blocksize is None else cols.numel() * blocksize[0] * blocksize[1]


def expand_blocks(
    crow: Tensor, cols: Tensor, blocksize: BlockSize, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The row and the column of every nonzero of a block pattern, both (nnz,).

    Block by block, row by row within a block. In 64 bits where 32 hold the blocks' indices alone.
    """
    bm, bn = blocksize
    if max(shape) > 2**31:
        crow, cols = crow.to(torch.int64), cols.to(torch.int64)
    rows = expand(crow, cols.numel())
    down = torch.arange(bm, dtype=cols.dtype, device=cols.device)
    across = torch.arange(bn, dtype=cols.dtype, device=cols.device)
    size = (cols.numel(), bm, bn)
    row_ids = (rows[:, None] * bm + down)[:, :, None].expand(size)
    col_ids = (cols[:, None] * bn + across)[:, None, :].expand(size)
    return row_ids.reshape(-1), col_ids.reshape(-1)


def counts_changes(tensor: Tensor) -> bool:
    """Whether torch counts every change of this tensor's memory, except by aliases taken later.

    It does not for memory that it did not allocate, whose storage it cannot resize, for memory
    shared between processes, and for tensors made in inference mode.
    """
    if tensor.is_inference():
        return False
    storage = tensor.untyped_storage()
    return storage.resizable() and not (tensor.is_cpu and storage.is_shared())


def as_array(tensor: Tensor) -> Any:
    """The numpy array over the memory of a CPU tensor of indices, for reading.

    Unlike `tensor.numpy()` it leaves the tensor as it is: torch would take its memory for shared.
    np.from_dlpack does so too, in twice the time.
    """
    return np.asarray(_Memory(tensor))


class _Memory:
    """A CPU tensor's memory by numpy's array interface; arrays over it keep it, and so the tensor.

    https://numpy.org/doc/stable/reference/arrays.interface.html
    """

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        size, strides = tensor.itemsize, None
        if not tensor.is_contiguous():
            strides = tuple(stride * size for stride in tensor.stride())
        self.__array_interface__ = {
            "version": 3,
            "typestr": _TYPE_STRINGS[tensor.dtype],
            "shape": tensor.shape,
            "strides": strides,
            "data": (tensor.data_ptr(), False),
        }


def mutation_tracked(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it if torch does not count all changes of its memory."""
    if is_dynamo_compiling():  # which follows the tensors itself
        return tensor
    return tensor if counts_changes(tensor) else tensor.clone()


def checked_shape(shape: Any) -> tuple[int, int]:
    unordered = isinstance(shape, (str, bytes, set, frozenset, dict))
    if unordered or not hasattr(shape, "__len__") or len(shape) != 2:
        raise ValueError(f"shape must be two sizes (m, n), got {shape!r}")
    return _checked_size(shape[0], shape), _checked_size(shape[1], shape)


def _checked_size(size: Any, shape: Any) -> int:
    try:
        exact = operator.index(size)
    except TypeError:
        raise TypeError(f"shape must be two integers (m, n), got {shape!r}") from None
    if exact < 0:
        raise ValueError(f"shape must be two sizes >= 0, got {shape!r}")
    if exact >= SIZE_LIMIT:
        raise ValueError(f"shape must be two sizes below {SIZE_LIMIT}, got {shape!r}")
    return exact


def checked_blocksize(blocksize: Any, shape: tuple[int, int]) -> BlockSize:
    """The rows and columns of a block, which must divide the shape."""
    unordered = isinstance(blocksize, (str, bytes, set, frozenset, dict))
    if unordered or not hasattr(blocksize, "__len__") or len(blocksize) != 2:
        raise ValueError(f"blocksize must be two sizes (bm, bn), got {blocksize!r}")
    sizes = []
    for size in blocksize:
        try:
            sizes.append(operator.index(size))
        except TypeError:
            raise TypeError(f"blocksize must be two integers (bm, bn), got {blocksize!r}") from None
        if isinstance(size, bool) or sizes[-1] < 1:
            raise ValueError(f"blocksize must be two sizes >= 1, got {blocksize!r}")
    bm, bn = sizes
    if shape[0] % bm or shape[1] % bn:
        raise ValueError(
            f"blocksize {bm}x{bn} does not divide the shape {shape[0]}x{shape[1]}; pad the matrix, "
            f"or give smaller blocks"
        )
    return bm, bn


def require_alike(major: Tensor, name: str, cols: Tensor) -> None:
    if major.device != cols.device:
        raise ValueError(
            f"{name} is on {major.device} and col_indices on {cols.device}; put both on one device"
        )
    if cols.device.type == "meta":
        raise ValueError(
            f"{name} and col_indices are on meta, which holds no values; put them on cpu or cuda "
            f"(torch.ops.sddmm.sddmm gives the shape of a result on meta)"
        )
    if major.dtype != cols.dtype:
        raise TypeError(
            f"{name} is {major.dtype} and col_indices {cols.dtype}; give both the same dtype"
        )


def check_range(
    indices: Tensor,
    name: str,
    bound: int,
    shape: tuple[int, int],
    blocksize: BlockSize | None = None,
) -> None:
    if indices.numel() == 0:
        return
    smallest, largest = (int(x) for x in indices.aminmax())
    if smallest >= 0 and largest < bound:
        return
    at = int(((indices < 0) | (indices >= bound)).to(torch.int8).argmax())
    valid = f"valid are 0..{bound - 1}" if bound else "none is valid"
    blocks = "" if blocksize is None else f" in blocks of {blocksize[0]}x{blocksize[1]}"
    raise ValueError(
        f"{name}[{at}] is {int(indices[at])}; {valid}, as S has shape {shape[0]}x{shape[1]}{blocks}"
    )


def check_crow(crow: Tensor, entries: int, entries_name: str = "nnz") -> None:
    """entries: the number of col_indices, which errors call `entries_name`."""
    if int(crow[0]) != 0:
        raise ValueError(f"crow_indices must start with 0, got {int(crow[0])}")
    falls = crow[1:] < crow[:-1]
    if bool(falls.any()):
        at = int(falls.to(torch.int8).argmax())
        raise ValueError(
            f"crow_indices must never fall, got {int(crow[at])} then {int(crow[at + 1])} "
            f"at positions {at} and {at + 1}"
        )
    if int(crow[-1]) != entries:
        raise ValueError(
            f"crow_indices must end with {entries_name} = {entries}, got {int(crow[-1])}"
        )
