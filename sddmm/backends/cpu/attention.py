"""Sparse attention on the CPU: the numba kernels of `attention_kernel.py`, over chunks of nonzeros.

The scores of a chunk stay in cache, and no array has an entry for every nonzero. The forward is a
softmax of each row, or of each part of a row that chunks cut; the parts are merged in the order of
the chunks. The backward computes the weights again from the logarithms of the rows' sums: row by
row for the gradients of q and the bias, and column by column for those of k and v.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cpu.openmp import for_chunks
from sddmm.backends.cpu.rows import grouped_arrays
from sddmm.dropout import kept_factor, threshold

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem
    from sddmm.sparse.pattern import SparsePattern

# Multiply-adds of a chunk: some 200 us, so that the Python between chunks takes no time.
CHUNK_WORK = 2**21
# Chunks of all heads together, which bounds the memory of their parts.
_MAX_CHUNKS = 2**13


class _Grouped:
    """The nonzeros by row, or by column, and how they are cut into chunks of units."""

    def __init__(self, pattern: SparsePattern, problem: AttentionProblem) -> None:
        indptr, self.indices, self.perm = grouped_arrays(pattern)
        self.indptr = indptr.astype(np.int64, copy=False)  # one type fewer to compile for
        self.units = problem.nnz + pattern.shape[0]
        chunk = max(256, CHUNK_WORK // max(1, problem.d + problem.dv))
        self.chunk = max(chunk, ceil_div(self.units * problem.heads, _MAX_CHUNKS))
        self.chunks = ceil_div(self.units, self.chunk)


class _Chunk(NamedTuple):
    """One chunk of one head: its number, its units begin..end-1, its nonzeros first..last-1."""

    head: int
    number: int
    begin: int
    end: int
    first: int
    last: int


class CpuAttention:
    """Runs the kernels over the nonzeros by row and by column, those of all heads at once.

    The bounds of chunks depend on the problem alone: the same bits on any number of threads.
    """

    notes = ("the CPU's kernels, compiled by numba",)

    def __init__(self, pattern: SparsePattern, problem: AttentionProblem) -> None:
        self._problem = problem
        self._pattern = weakref.ref(pattern)  # which keeps this object: no cycle
        self._by_row = _Grouped(pattern, problem)
        self._by_column: _Grouped | None = None

    def prepare_backward(self) -> None:
        pattern = self._pattern()
        assert pattern is not None
        self._by_column = _Grouped(pattern.T, self._problem)

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu import attention_kernel as kernels
        from sddmm.backends.cpu.product_kernel import merge, multiply_chunk

        problem, by = self._problem, self._by_row
        call = _Call(problem, operands)
        sums = out
        if out.dtype != problem.accumulator:
            sums = torch.empty(out.shape, dtype=lse.dtype, device="cpu")
        results, logs = sums.numpy(), lse.numpy()
        parts = np.zeros((problem.heads, by.chunks, 2, problem.dv), logs.dtype)
        largest = np.full((problem.heads, by.chunks, 2), -np.inf, logs.dtype)
        part_sums = np.zeros(largest.shape, logs.dtype)

        def work(chunk: _Chunk) -> None:
            head, number, begin, end = chunk[:4]
            x = call.scores(by, chunk, call.q[head], call.k[head])
            kernels.subtract_largest(by.indptr, x, logs[head], largest[head, number], begin, end)
            _exponentiate(x)
            kept = call.kept(by, chunk)
            kernels.divide_by_sums(
                by.indptr, x, kept, logs[head], part_sums[head, number], begin, end
            )
            multiply_chunk(
                by.indptr, by.indices, x, call.v[head], call.one, results[head],
                parts[head, number], begin, end,
            )  # fmt: skip

        _for_chunks(by, problem.heads, work)
        for head in range(problem.heads):
            kernels.scale_parts(
                by.indptr, parts[head], largest[head], part_sums[head], logs[head], by.chunk
            )
            merge(by.indptr, parts[head], call.one, results[head], by.chunk)
        if sums is not out:
            out.copy_(sums)

    def backward(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        assert self._by_column is not None
        call = _BackwardCall(self._problem, operands, lse, grad_out)
        call.find_deltas(out, grad_lse)
        if gradients.q is not None or gradients.bias is not None:
            call.by_row(self._by_row, gradients.q, gradients.bias)
        if gradients.k is not None or gradients.v is not None:
            call.by_column(self._by_column, gradients.k, gradients.v)


class _Call:
    """The operands of one call as arrays that the kernels read, and what they compute of them."""

    def __init__(self, problem: AttentionProblem, operands: AttentionOperands) -> None:
        operands = operands.joined()
        self.problem, self.operands, dtype = problem, operands, problem.accumulator
        self.q, self.k, self.v = (
            rows_of_heads(x, dtype) for x in (operands.q, operands.k, operands.v)
        )
        self.bias: Any = None
        if operands.bias is not None:
            bias = operands.bias.to(dtype).contiguous().expand(problem.heads, -1)
            self.bias = bias.detach().numpy()
        self.number = np.dtype(str(dtype).removeprefix("torch.")).type
        self.one = self.number(1)
        self.nothing = np.empty(0, self.number)

    def scores(self, by: _Grouped, chunk: _Chunk, own: Any, other: Any) -> Any:
        """The scores of a chunk's nonzeros. own: q by row, k by column; other: the other."""
        bias = self.nothing if self.bias is None else self.bias[chunk.head]
        scale = self.number(self.operands.scale)
        return self._dot_products(by, chunk, own, other, self.problem.d, scale, bias)

    def _dot_products(
        self, by: _Grouped, chunk: _Chunk, own: Any, other: Any, d: int, scale: Any, bias: Any
    ) -> Any:
        from sddmm.backends.cpu.attention_kernel import dot_products

        x = np.empty(chunk.last - chunk.first, self.number)
        indices = by.indptr, by.indices, by.perm
        dot_products(*indices, own, other, d, scale, bias, x, chunk.begin, chunk.end)
        return x

    def kept(self, by: _Grouped, chunk: _Chunk) -> Any:
        """What dropout multiplies the weights of a chunk's nonzeros by; empty without dropout."""
        from sddmm.backends.cpu.attention_kernel import kept_factors

        seed, p = self.operands.seed, self.operands.dropout_p
        if seed is None:
            return self.nothing
        out = np.empty(chunk.last - chunk.first, self.number)
        words = seed.numpy().view(np.uint64)[0], np.uint64(chunk.head), np.uint64(threshold(p))
        kept_factors(by.perm, *words, self.number(kept_factor(p)), out, chunk.first)
        return out


class _BackwardCall(_Call):
    """The arrays of one backward."""

    def __init__(
        self, problem: AttentionProblem, operands: AttentionOperands, lse: Tensor, grad_out: Tensor
    ) -> None:
        super().__init__(problem, operands)
        self.grad_out = rows_of_heads(grad_out, problem.accumulator)
        self.lse = lse.numpy()
        self.delta = np.empty_like(self.lse)

    def find_deltas(self, out: Tensor, grad_lse: Tensor | None) -> None:
        from sddmm.backends.cpu.attention_kernel import row_deltas

        rows = max(256, CHUNK_WORK // max(1, self.problem.dv))
        results = rows_of_heads(out, self.problem.accumulator)
        for head in range(self.problem.heads):
            more = self.nothing if grad_lse is None else grad_lse[head].numpy()
            arrays = (self.grad_out[head], results[head], self.problem.dv, more, self.delta[head])

            def work(begin: int, end: int, arrays: tuple[Any, ...] = arrays) -> None:
                row_deltas(*arrays, begin, end)

            for_chunks(work, self.problem.m, rows)

    def by_row(self, by: _Grouped, grad_q: Tensor | None, grad_bias: Tensor | None) -> None:
        """Fill the gradients of q and the bias."""
        from sddmm.backends.cpu.attention_kernel import store_by_position

        sums = _Sums(self, by, grad_q, self.k, self.operands.scale)
        each: Tensor | None = None
        if grad_bias is not None:
            shape = (self.problem.heads, self.problem.nnz)
            each = torch.empty(shape, dtype=self.problem.accumulator, device="cpu")
            if grad_bias.dtype == each.dtype and grad_bias.dim() == 2:
                each = grad_bias
        stored = None if each is None else each.numpy()

        def work(chunk: _Chunk) -> None:
            head = chunk.head
            p = self._weights(by, chunk, self.q[head], self.k[head], True)
            ds = self._score_gradients(by, chunk, p, self.grad_out[head], self.v[head], True)
            if stored is not None:
                store_by_position(by.perm, ds, stored[head], chunk.first)
            sums.add(chunk, ds)

        _for_chunks(by, self.problem.heads, work)
        sums.finish()
        if grad_bias is not None and each is not None and each is not grad_bias:
            grad_bias.copy_(each if grad_bias.dim() == 2 else each.sum(0))

    def by_column(self, by: _Grouped, grad_k: Tensor | None, grad_v: Tensor | None) -> None:
        """Fill the gradients of k and v."""
        of_k = _Sums(self, by, grad_k, self.q, self.operands.scale)
        of_v = _Sums(self, by, grad_v, self.grad_out, 1.0)

        def work(chunk: _Chunk) -> None:
            head = chunk.head
            p = self._weights(by, chunk, self.k[head], self.q[head], False)
            if grad_k is not None:
                out = self.grad_out[head]
                of_k.add(chunk, self._score_gradients(by, chunk, p, self.v[head], out, False))
            if grad_v is not None:
                kept = self.kept(by, chunk)
                of_v.add(chunk, p * kept if kept.size else p)

        _for_chunks(by, self.problem.heads, work)
        of_k.finish()
        of_v.finish()

    def _weights(self, by: _Grouped, chunk: _Chunk, own: Any, other: Any, is_row: bool) -> Any:
        """The softmax of the scores of a chunk's nonzeros."""
        from sddmm.backends.cpu.attention_kernel import subtract_lse

        x = self.scores(by, chunk, own, other)
        lse = self.lse[chunk.head]
        subtract_lse(by.indptr, by.indices, x, lse, is_row, chunk.begin, chunk.end)
        _exponentiate(x)
        return x

    def _score_gradients(
        self, by: _Grouped, chunk: _Chunk, p: Any, own: Any, other: Any, is_row: bool
    ) -> Any:
        from sddmm.backends.cpu.attention_kernel import score_gradients

        g = self._dot_products(by, chunk, own, other, self.problem.dv, self.one, self.nothing)
        delta = self.delta[chunk.head]
        score_gradients(
            by.indptr, by.indices, p, g, self.kept(by, chunk), delta, is_row, chunk.begin,
            chunk.end,
        )  # fmt: skip
        return g


class _Sums:
    """A gradient as sums of weighted rows: nothing if it is not needed."""

    def __init__(
        self, call: _Call, by: _Grouped, gradient: Tensor | None, rows: list[Any], scale: float
    ) -> None:
        self._by, self._gradient, self._rows, self._scale = by, gradient, rows, call.number(scale)
        if gradient is None:
            return
        dtype, heads = call.problem.accumulator, call.problem.heads
        self._sums = gradient
        if gradient.dtype != dtype:
            self._sums = torch.empty(gradient.shape, dtype=dtype, device="cpu")
        self._out = self._sums.numpy()
        self._parts = np.zeros((heads, by.chunks, 2, gradient.shape[-1]), call.number)

    def add(self, chunk: _Chunk, weights: Any) -> None:
        """Sum a chunk's rows."""
        from sddmm.backends.cpu.product_kernel import multiply_chunk

        if self._gradient is not None:
            by, head = self._by, chunk.head
            multiply_chunk(
                by.indptr, by.indices, weights, self._rows[head], self._scale, self._out[head],
                self._parts[head, chunk.number], chunk.begin, chunk.end,
            )  # fmt: skip

    def finish(self) -> None:
        """Add the parts of rows that chunks cut."""
        from sddmm.backends.cpu.product_kernel import merge

        if self._gradient is None:
            return
        by = self._by
        for out, parts in zip(self._out, self._parts, strict=True):
            merge(by.indptr, parts, self._scale, out, by.chunk)
        if self._sums is not self._gradient:
            self._gradient.copy_(self._sums)


def rows_of_heads(x: Tensor, dtype: torch.dtype) -> list[Any]:
    """Each head of x as a C-contiguous array whose rows hold the columns of x, and may be longer.

    Where a row is followed by other memory, as in an (m, h, d) tensor seen as (h, m, d), the array
    claims it: nothing beyond the columns may be read. Other strides and dtypes are copied.
    """
    x = x.detach()
    rows, columns = x.shape[1:]
    is_long = x.stride(2) == 1 and x.stride(1) >= columns > 0
    if x.dtype != dtype or not is_long:
        x = x.to(dtype).contiguous()
    row = max(columns, x.stride(1)) if rows > 1 else columns
    size = x.element_size()
    return [
        np.lib.stride_tricks.as_strided(head.numpy(), (rows, row), (row * size, size)) for head in x
    ]


def _exponentiate(x: Any) -> None:
    """By numpy's vector instructions, of which numba knows none."""
    with np.errstate(all="ignore"):
        np.exp(x, out=x)


def _for_chunks(by: _Grouped, heads: int, work: Callable[[_Chunk], None]) -> None:
    """Work the chunks of all heads, on torch's number of threads."""
    from sddmm.backends.cpu.attention_kernel import nonzeros_before

    def chunk(index: int, _: int) -> None:
        head, number = divmod(index, by.chunks)
        begin = number * by.chunk
        end = min(by.units, begin + by.chunk)
        first, last = (nonzeros_before(by.indptr, unit) for unit in (begin, end))
        work(_Chunk(head, number, begin, end, first, last))

    for_chunks(chunk, heads * by.chunks, 1)
