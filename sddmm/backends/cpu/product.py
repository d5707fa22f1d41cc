"""Products W X on the CPU: the numba kernels of `product_kernel.py`, over equal chunks of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cpu.dense import contiguous_array
from sddmm.backends.cpu.openmp import for_chunks
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.indices import as_array
from sddmm.sparse.views import CompressedView

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem
    from sddmm.sparse.pattern import SparsePattern

# Multiply-adds of a chunk: some 200 us, so that the Python between chunks takes no time.
CHUNK_WORK = 2**21

_GROUPED = DerivedKey[CompressedView]("nonzeros by row for the CPU's products")


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
        self._chunk = max(256, CHUNK_WORK // max(1, problem.k))
        self._chunks = ceil_div(self._units, self._chunk)

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu.product_kernel import merge, multiply

        problem, chunks = self._problem, self._chunks
        dtype, heads = problem.accumulator, problem.heads or 1
        sums = out if out.dtype == dtype else torch.empty(out.shape, dtype=dtype, device="cpu")
        x = contiguous_array(dense, dtype).reshape(heads, problem.n, problem.k)
        weights = contiguous_array(values, dtype).reshape(-1, problem.nnz)
        scale = np.empty(0, x.dtype) if factors is None else contiguous_array(factors, dtype)
        products = sums.detach().numpy().reshape(heads, problem.m, problem.k)
        parts = np.empty((heads, chunks, 2, problem.k), x.dtype)
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


def grouped_arrays(pattern: SparsePattern) -> tuple[Any, Any, Any]:
    """The start of each row, and the columns and the positions in the pattern of its nonzeros, row
    by row. The positions are empty where the pattern is in that order. Kept with the pattern."""
    view = pattern.derive(_GROUPED, lambda: _grouped(pattern))
    perm = np.empty(0, np.uint64) if view.perm is None else _unsigned(view.perm)
    return as_array(view.indptr), _unsigned(view.indices), perm


def _unsigned(indices: Tensor) -> Any:
    """The array of indices, which are checked, in a type whose numbers numba need not test for
    being negative."""
    return as_array(indices).view(f"u{indices.itemsize}")


def _grouped(pattern: SparsePattern) -> CompressedView:
    """The nonzeros by row, in any order within a row."""
    if pattern.is_csr:
        return pattern.by_row
    rows, cols = pattern.row_ids, pattern.col_ids
    if bool((rows[1:] >= rows[:-1]).all()):
        return pattern.by_row
    from sddmm.backends.cpu.product_kernel import group_by_row

    pattern.check()
    indptr = torch.zeros(pattern.shape[0] + 1, dtype=torch.int64, device="cpu")
    indices = torch.empty_like(cols)
    perm = torch.empty(cols.shape, dtype=torch.int64, device="cpu")
    group_by_row(*(as_array(x.contiguous()) for x in (rows, cols, indptr, indices, perm)))
    return CompressedView(indptr, indices, perm)
