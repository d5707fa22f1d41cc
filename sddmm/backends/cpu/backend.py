"""SDDMM on the CPU: the numba kernel of `kernel.py`, over equal chunks of nonzeros."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sddmm.backends.base import (
    MANY_CALLS,
    FirstRun,
    PreparedAttention,
    PreparedProduct,
)
from sddmm.backends.cpu.attention import CpuAttention
from sddmm.backends.cpu.dense import contiguous_array, contiguous_transpose
from sddmm.backends.cpu.openmp import for_chunks
from sddmm.backends.cpu.product import CpuProduct
from sddmm.dtypes import DTYPES
from sddmm.sparse.indices import as_array
from sddmm.sparse.views import CompressedView

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem
    from sddmm.sparse.pattern import SparsePattern

# Multiply-adds of a chunk: about 100 us, enough to pay for waking a thread.
_CHUNK_WORK = 2**20
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
        pattern.check()
        return CpuExecutor(pattern.by_row, problem)

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
    """What a problem says of the kernel's arguments, and the arrays of operands."""

    def __init__(self, problem: SddmmProblem) -> None:
        # numba has no half types on the CPU: operands are up-cast, sums are float32.
        self.dtype = dtype = DTYPES[problem.dtype].accumulator
        self._number = np.float64 if dtype == torch.float64 else np.float32
        self._no_factors = np.empty(0, self._number)
        self.width, self.chunk = tile_width(problem, dtype.itemsize), _TILED_CHUNK
        if self.width == 0:
            self.chunk = min(_TILED_CHUNK, max(256, _CHUNK_WORK // max(1, problem.k)))

    def arguments_by_head(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, sums: Tensor
    ) -> list[tuple[Any, ...]]:
        """The kernel's arguments from a to width, for each head. values: in the order of sums."""
        dtype, factors = self.dtype, self._no_factors
        if values is not None:
            factors = contiguous_array(values, dtype)
        arrays = contiguous_array(a, dtype), contiguous_transpose(b, dtype), sums.numpy()
        heads = (arrays,) if a.dim() == 2 else zip(*arrays, strict=True)
        number = self._number(alpha)
        return [(a, b, number, factors, out, self.width) for a, b, out in heads]


class CpuSingleRuns:
    """Runs on CSR patterns whose columns are checked while they are in cache for their products."""

    def __init__(self, problem: SddmmProblem) -> None:
        self._nnz, self._sampling = problem.nnz, _Sampling(problem)

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> bool:
        if run.is_launched:
            return False
        crow = as_array(pattern.major_indices.contiguous())
        if not (_kernels().crow_is_valid(crow, self._nnz) and self._sample(crow, pattern, run)):
            pattern.check()
            raise ValueError(f"{pattern!r} has indices outside its shape")
        run.is_launched = True
        return True

    def _sample(self, crow: Any, pattern: SparsePattern, run: FirstRun) -> bool:
        """Fill the result; False if a column is outside the matrix, and values are left out."""
        cols, sampling, out = as_array(pattern.col_indices.contiguous()), self._sampling, run.out
        kernel, nnz, chunk = _kernels().sample_if_valid, self._nnz, sampling.chunk
        sums = out
        if out.dtype != sampling.dtype:
            sums = torch.empty(out.shape, dtype=sampling.dtype, device="cpu")
        invalid: list[int] = []  # where chunks begin; a list changes atomically
        for arguments in sampling.arguments_by_head(*run.operands, sums):
            if nnz <= chunk:  # as for_chunks, without a function to call
                if not kernel(crow, cols, *arguments, 0, nnz):
                    return False
                continue

            def work(begin: int, end: int, arguments: tuple[Any, ...] = arguments) -> None:
                if not kernel(crow, cols, *arguments, begin, end):
                    invalid.append(begin)

            for_chunks(work, nnz, chunk)
        if sums is not out:
            out.copy_(sums)
        return not invalid


class CpuExecutor:
    """Runs the numba kernel over the nonzeros by row, and moves the sums to the pattern's order."""

    notes = ()

    def __init__(self, by_row: CompressedView, problem: SddmmProblem) -> None:
        self._perm, self._sampling = by_row.perm, _Sampling(problem)
        self._indptr = as_array(by_row.indptr.contiguous())
        self._indices = as_array(by_row.indices.contiguous())
        self._kernel = _kernels().sample_scaled

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        perm, dtype = self._perm, self._sampling.dtype
        sums = out
        if perm is not None or out.dtype != dtype:
            sums = torch.empty(out.shape, dtype=dtype, device="cpu")
        if values is not None and perm is not None:
            values = values[perm]
        for arguments in self._sampling.arguments_by_head(a, b, values, alpha, sums):
            self._sample(arguments)
        if perm is not None:
            out.index_copy_(-1, perm, sums.to(out.dtype))
        elif sums is not out:
            out.copy_(sums)

    def _sample(self, arguments: tuple[Any, ...]) -> None:
        kernel, indptr, indices = self._kernel, self._indptr, self._indices
        for_chunks(
            lambda begin, end: kernel(indptr, indices, *arguments, begin, end),
            indices.size, self._sampling.chunk,
        )  # fmt: skip


@functools.cache
def _kernels() -> Any:
    """The module of the kernels, imported at the first use: numba is optional, and slow to import.
    A statement to import takes a microsecond at every call."""
    from sddmm.backends.cpu import kernel

    return kernel


def tile_width(problem: SddmmProblem, itemsize: int) -> int:
    """Columns of a tile of B that stays in cache, or 0 where tiles do not pay."""
    width = max(1, _TILE_BYTES // max(1, problem.k * itemsize))
    if width * 2 >= problem.n:
        return 0
    run_work = problem.nnz / max(1, problem.m) * width / problem.n * problem.k
    reuse = min(_TILED_CHUNK, problem.nnz) / problem.n
    return width if run_work >= _TILED_RUN_WORK and reuse >= _TILED_REUSE else 0
