"""The softmax over each row on the CPU, by the numba kernels of `softmax_kernel.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sddmm.backends.cpu.backend import CpuBackend
from sddmm.backends.cpu.openmp import for_chunks
from sddmm.dtypes import DTYPES
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.indices import as_array
from sddmm.sparse.row_groups import row_groups

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern

# Nonzeros of a chunk: their exponentials stay in cache, and they take some 50 us, enough to pay for
# waking a thread.
_CHUNK = 2**14

_CHUNK_ROWS = DerivedKey[Tensor]("the first row of each chunk of the CPU's softmax")
_BACKEND = CpuBackend()


class CpuRowSoftmax:
    """Serves every dtype on the CPU where numba is installed."""

    def serves(self, pattern: SparsePattern, values: Tensor) -> bool:
        return pattern.device.type == "cpu" and _BACKEND.available() is None

    def forward(self, pattern: SparsePattern, values: Tensor) -> Tensor:
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu.softmax_kernel import divide_by_sums, subtract_largest

        def softmax(starts: Any, perm: Any, x: Any, out: Any, begin: int, end: int) -> None:
            powers = np.empty(starts[end] - starts[begin], x.dtype)
            subtract_largest(starts, perm, x, powers, begin, end)
            with np.errstate(all="ignore"):
                np.exp(powers, out=powers)  # by vector instructions, of which numba knows none
            divide_by_sums(starts, perm, powers, out, begin, end)

        return _by_chunks(pattern, softmax, values)

    def backward(self, pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
        from sddmm.backends.cpu.softmax_kernel import gradient

        return _by_chunks(pattern, gradient, p, grad)


def _by_chunks(pattern: SparsePattern, compute: Callable[..., None], *inputs: Tensor) -> Tensor:
    """The result of compute(starts, perm, *inputs, out, begin, end) for all rows and heads."""
    groups = row_groups(pattern)
    chunk_rows = pattern.derive(_CHUNK_ROWS, lambda: groups.shares(_CHUNK)).tolist()
    # numba has no half types on the CPU: they are widened, and results are rounded once.
    dtype = DTYPES[inputs[0].dtype].accumulator
    wide = [x.to(dtype).contiguous() for x in inputs]
    out = torch.empty_like(wide[0])
    starts = as_array(groups.starts)
    perm = np.empty(0, np.int64) if groups.perm is None else as_array(groups.perm)
    heads = [tensor.view(-1, pattern.nnz).unbind() for tensor in (*wide, out)]
    for head in zip(*heads, strict=True):
        arrays = [tensor.numpy() for tensor in head]

        def chunk(begin: int, end: int, arrays: list[Any] = arrays) -> None:
            compute(starts, perm, *arrays, chunk_rows[begin], chunk_rows[end])

        for_chunks(chunk, len(chunk_rows) - 1, 1)
    return out.to(inputs[0].dtype)
