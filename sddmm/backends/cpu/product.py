"""Products W X on the CPU: the numba kernels of `product_kernel.py`, over equal chunks of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.base import joined
from sddmm.backends.cpu.dense import contiguous_array
from sddmm.backends.cpu.openmp import for_chunks
from sddmm.backends.cpu.rows import grouped_arrays

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem
    from sddmm.sparse.pattern import SparsePattern

# Multiply-adds of a chunk: some 200 us, so that the Python between chunks takes no time. A nonzero
# takes as long as so many besides.
CHUNK_WORK, NONZERO_WORK = 2**21, 16


class CpuProduct:
    """Runs the numba kernel over the nonzeros by row, those of all heads at once.

    Partial sums of rows that chunks cut are added in the order of the chunks, whose bounds depend
    on the problem alone: the same bits on any number of threads.
    """

    notes = ("the CPU's kernel, compiled by numba",)

    def __init__(self, pattern: SparsePattern, problem: SpmmProblem) -> None:
        self._problem = problem
        self._indptr, self._indices, self._perm = grouped_arrays(pattern)
        self._units = problem.nnz + problem.m
        self._chunk = max(256, CHUNK_WORK // (NONZERO_WORK + problem.k))
        self._chunks = ceil_div(self._units, self._chunk)

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu.product_kernel import merge, multiply

        problem, chunks = self._problem, self._chunks
        dtype, heads = problem.accumulator, problem.heads or 1
        sums = out if out.dtype == dtype else torch.empty(out.shape, dtype=dtype, device="cpu")
        x = contiguous_array(joined(dense, beyond), dtype).reshape(heads, problem.n, problem.k)
        weights = contiguous_array(values, dtype).reshape(-1, problem.nnz)
        scale = np.empty(0, x.dtype) if factors is None else contiguous_array(factors, dtype)
        products = sums.detach().numpy().reshape(heads, problem.m, problem.k)
        parts = np.empty((heads, chunks, 2, problem.k), x.dtype)
        with np.errstate(over="ignore"):  # a larger alpha is infinite
            factor = x.dtype.type(alpha)

        def chunk(begin: int, _: int) -> None:
            head, number = divmod(begin, chunks)
            first = number * self._chunk
            multiply(
                self._indptr, self._indices, self._perm, weights[head % len(weights)], scale,
                x[head], factor, products[head], parts[head, number], first,
                min(self._units, first + self._chunk),
            )  # fmt: skip

        for_chunks(chunk, heads * chunks, 1)
        for head in range(heads if chunks > 1 else 0):
            merge(self._indptr, parts[head], factor, products[head], self._chunk)
        if sums is not out:
            out.copy_(sums)
