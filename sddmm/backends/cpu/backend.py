"""SDDMM on the CPU: the numba kernel of `kernel.py`, over equal chunks of nonzeros."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sddmm.backends.base import (
    MANY_CALLS,
    CsrSampler,
    FirstRun,
    Operands,
    PreparedAttention,
    PreparedProduct,
    resolve_lazy_view,
)
from sddmm.backends.cpu.attention import CpuAttention
from sddmm.backends.cpu.dense import contiguous_array, contiguous_transpose, memory_of
from sddmm.backends.cpu.openmp import float_word, for_compiled_chunks
from sddmm.backends.cpu.product import CpuProduct
from sddmm.backends.cpu.rows import by_row
from sddmm.dtypes import DTYPES, dtype_name
from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.views import CompressedView

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem

# Multiply-adds of a chunk: some 50 us, enough to pay for waking a thread.
_CHUNK_WORK = 2**18
# Nonzeros of a chunk that is walked in tiles: enough to reuse a tile of B.
_TILED_CHUNK = 2**16
# Bytes of B that a tile keeps in cache: half of a 2 MB L2.
_TILE_BYTES = 2**20
# Each row of a tile of B is read this many times by a chunk, or more; else tiles do not pay.
_TILED_REUSE = 4
# Nor do they if a row has less to do in a tile, on average, counted in multiply-adds.
_TILED_RUN_WORK = 2**12


class CpuBackend:
    """Serves every dtype on the CPU where numba is installed."""

    name = "cpu"
    plans_by_calls = False
    kernels = ()

    def available(self) -> str | None:
        if find_spec("numba") is None:
            return "numba is not installed (pip install 'sddmm[cpu]')"
        if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
            return "numba compiles nothing (NUMBA_DISABLE_JIT)"
        return None

    def refuses(self, problem: SddmmProblem) -> str | None:
        if problem.device.type != "cpu":
            return f"the pattern is on {problem.device}"
        return None

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        first_run: FirstRun | None = None,
    ) -> CpuExecutor:
        return CpuExecutor(by_row(pattern), problem)

    def single_runs(
        self, problem: SddmmProblem, is_csr: bool, is_kept: bool
    ) -> CpuSingleRuns | None:
        return CpuSingleRuns(problem) if is_csr and problem.blocksize is None else None

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        if problem.device.type != "cpu":
            return f"the pattern is on {problem.device}"
        return None

    def prepare_product(
        self, pattern: SparsePattern, problem: SpmmProblem, transpose: bool = False
    ) -> PreparedProduct:
        return CpuProduct(pattern.T if transpose else pattern, problem)

    def refuses_attention(self, problem: AttentionProblem) -> str | None:
        if problem.device.type != "cpu":
            return f"the pattern is on {problem.device}"
        return None

    def prepare_attention(
        self, pattern: SparsePattern, problem: AttentionProblem
    ) -> PreparedAttention:
        return CpuAttention(pattern, problem)


class _Sampling:
    """Runs of one problem on a pattern's nonzeros by row."""

    def __init__(self, problem: SddmmProblem, offset_dtype: torch.dtype) -> None:
        """offset_dtype: that of the crow_indices."""
        from sddmm.backends.cpu.kernel import kernels_at  # numba is optional, and slow to import

        # numba has no half types on the CPU: operands are up-cast, sums are float32.
        self._dtype = dtype = DTYPES[problem.dtype].accumulator
        self._up_casts, self._rounds = problem.dtype != dtype, problem.out_dtype != dtype
        types = (offset_dtype, problem.index_dtype, dtype)
        self._types = [getattr(np, dtype_name(x)) for x in types]
        self._kernels = kernels_at(*self._types)
        m, n, k, nnz = problem.m, problem.n, problem.k, problem.nnz
        width, self._chunk = tile_width(problem, dtype.itemsize), _TILED_CHUNK
        if width == 0:
            self._chunk = min(_TILED_CHUNK, max(256, _CHUNK_WORK // max(1, k)))
        self._sizes = (m, n, k, nnz, width, 0, nnz)
        self._heads = range(1 if problem.heads is None else problem.heads)
        self._sample = self._kernels.sample_chunk if nnz <= self._chunk else self._sample_chunks
        self._head_bytes = [size * dtype.itemsize for size in (m * k, n * k, nnz)]
        self._strides = _strides_to_read(problem)

    def __call__(
        self,
        crow: Tensor,
        cols: Tensor,
        operands: Operands,
        out: Tensor,
        is_checked: bool,
    ) -> bool:
        """Fill `out` in the order of cols, which values have too. Both index tensors, and out, are
        contiguous.

        is_checked: whether indices are known to be valid; else the result says whether they are.
        """
        a, b, values, alpha = operands
        dtype, (strides_a, strides_b, strides_values) = self._dtype, self._strides
        if self._up_casts:
            a, b = resolve_lazy_view(a).to(dtype), resolve_lazy_view(b).to(dtype)
            values = None if values is None else resolve_lazy_view(values).to(dtype)
        sums = torch.empty(out.shape, dtype=dtype, device="cpu") if self._rounds else out
        # What owns the memory, which may be a copy's, is kept until the kernel returns.
        a_at, _own_a = memory_of(a, strides_a, contiguous_array)
        b_at, _own_b = memory_of(b, strides_b, contiguous_transpose)
        factors_at, _own_factors = 0, None
        if values is not None:
            factors_at, _own_factors = memory_of(values, strides_values, contiguous_array)
        crow_at, cols_at, sums_at = crow.data_ptr(), cols.data_ptr(), sums.data_ptr()
        a_bytes, b_bytes, sums_bytes = self._head_bytes
        is_valid = True
        for _ in self._heads:
            is_valid = self._sample(
                crow_at, cols_at, a_at, b_at, factors_at, sums_at, alpha, is_checked, *self._sizes
            )
            if not is_valid:
                break
            is_checked = True
            a_at, b_at, sums_at = a_at + a_bytes, b_at + b_bytes, sums_at + sums_bytes
        if sums is not out:
            out.copy_(sums)
        return is_valid

    def _sample_chunks(self, *arguments: Any) -> bool:
        """`sample_chunk` with these arguments, by chunks on several threads."""
        from sddmm.backends.cpu.kernel import sample_chunks_at

        crow_at, alpha, is_checked, m, nnz = arguments[0], *arguments[6:9], arguments[-1]
        if not (is_checked or self._kernels.check_crow(crow_at, m, nnz)):
            return False
        words = (*arguments[:6], float_word(alpha), *arguments[7:-2])
        is_whole = for_compiled_chunks(sample_chunks_at(*self._types), words, nnz, self._chunk)
        if is_checked and not is_whole:
            raise MemoryError("a thread found no memory for its part of the product")
        return is_whole


# It holds no tensors, and serves every pattern of a problem.
_sampling = functools.lru_cache(maxsize=1024)(_Sampling)


def _strides_to_read(problem: SddmmProblem) -> tuple[tuple[int, ...], ...]:
    """The strides of a, b and values that the kernels read; of others they read copies."""
    m, n, k = problem.m, problem.n, problem.k
    if problem.heads is None:
        return (k, 1), (1, k), (1,)
    return (m * k, k, 1), (n * k, 1, k), (1,)


class CpuSingleRuns(CsrSampler):
    """Runs on CSR patterns whose columns are checked while they are in cache for their products."""

    def __init__(self, problem: SddmmProblem) -> None:
        self._sampling = _sampling(problem, problem.index_dtype)
        self._shape, self._out_shape = (problem.m, problem.n), problem.values_shape()
        # Its method makes tensors like it in two thirds of the time of torch.empty.
        self._prototype = torch.empty(0, dtype=problem.out_dtype, device=problem.device)

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> bool:
        if run.is_launched:
            return False
        self.sample(pattern.major_indices, pattern.col_indices, run.operands, run.out)
        run.is_launched = True
        return True

    def sample(
        self, crow: Tensor, cols: Tensor, operands: Operands, out: Tensor | None = None
    ) -> Tensor:
        if out is None:
            out = self._prototype.new_empty(*self._out_shape)
        if not self._sampling(crow.contiguous(), cols.contiguous(), operands, out, False):
            pattern = SparsePattern(self._shape, cols, crow_indices=crow)
            pattern.check()
            raise ValueError(f"{pattern!r} has indices outside its shape")
        return out


class CpuExecutor:
    """Samples the nonzeros by row, and moves the values to the pattern's order."""

    notes = ()

    def __init__(self, view: CompressedView, problem: SddmmProblem) -> None:
        self._by_row, self._sampling = view, _sampling(problem, view.indptr.dtype)

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        crow, cols, perm = self._by_row
        if perm is None:
            self._sampling(crow, cols, (a, b, values, alpha), out, True)
            return
        ordered = torch.empty_like(out)
        values = None if values is None else values[perm]
        self._sampling(crow, cols, (a, b, values, alpha), ordered, True)
        out.index_copy_(-1, perm, ordered)


def tile_width(problem: SddmmProblem, itemsize: int) -> int:
    """Columns of a tile of B that stays in cache, or 0 where tiles do not pay."""
    width = max(1, _TILE_BYTES // max(1, problem.k * itemsize))
    if width * 2 >= problem.n:
        return 0
    run_work = problem.nnz / max(1, problem.m) * width / problem.n * problem.k
    reuse = min(_TILED_CHUNK, problem.nnz) / problem.n
    return width if run_work >= _TILED_RUN_WORK and reuse >= _TILED_REUSE else 0
