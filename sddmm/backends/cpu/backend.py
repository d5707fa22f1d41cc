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
from sddmm.backends.cpu.dense import contiguous_array
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


class CpuSingleRuns:
    """Runs on CSR patterns whose columns are checked while they are in cache for their products."""

    def __init__(self, problem: SddmmProblem) -> None:
        self._problem = problem

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> bool:
        if run.is_launched:
            return False
        view = CompressedView(pattern.major_indices, pattern.col_indices, None)
        execute = CpuExecutor(view, self._problem, is_checked=False)
        if _kernels().crow_is_valid(execute.indptr, self._problem.nnz):
            execute(*run.operands, run.out)
            run.is_launched = not execute.found_invalid
        if not run.is_launched:
            pattern.check()
            raise ValueError(f"{pattern!r} has indices outside its shape")
        return True


class CpuExecutor:
    """Runs the numba kernel over the nonzeros by row, and moves the sums to the pattern's order."""

    notes = ()

    def __init__(
        self, by_row: CompressedView, problem: SddmmProblem, is_checked: bool = True
    ) -> None:
        self._perm = by_row.perm
        self._invalid = None if is_checked else np.zeros(1, np.bool_)
        # numba has no half types on the CPU: operands are up-cast, sums are float32.
        self._dtype = dtype = DTYPES[problem.dtype].accumulator
        self._width, self._chunk = tile_width(problem, dtype.itemsize), _TILED_CHUNK
        if self._width == 0:
            self._chunk = min(_TILED_CHUNK, max(256, _CHUNK_WORK // max(1, problem.k)))
        self.indptr = as_array(by_row.indptr.contiguous())
        self._indices = as_array(by_row.indices.contiguous())
        self._kernel = _kernels().sample_scaled if is_checked else _kernels().sample_if_valid

    @property
    def found_invalid(self) -> bool:
        """Whether a run has met a column outside the matrix, and left values out."""
        return self._invalid is not None and bool(self._invalid[0])

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        perm, dtype = self._perm, self._dtype
        sums = out
        if perm is not None or out.dtype != dtype:
            sums = torch.empty(out.shape, dtype=dtype, device="cpu")
        if values is not None and perm is not None:
            values = values[perm]
        arrays = contiguous_array(a, dtype), contiguous_array(b.mT, dtype), sums.numpy()
        factors = np.empty(0, arrays[0].dtype)
        if values is not None:
            factors = contiguous_array(values, dtype)
        heads: Any = (arrays,) if a.dim() == 2 else zip(*arrays, strict=True)
        for head in heads:
            self._sample(head, factors, alpha)
        if perm is not None:
            out.index_copy_(-1, perm, sums.to(out.dtype))
        elif sums is not out:
            out.copy_(sums)

    def _sample(self, head: tuple[Any, Any, Any], factors: Any, alpha: float) -> None:
        a, b, out = head
        arguments = (
            self.indptr, self._indices, a, b, a.dtype.type(alpha), factors, out, self._width,
            *(() if self._invalid is None else (self._invalid,)),
        )  # fmt: skip
        kernel = self._kernel
        for_chunks(
            lambda begin, end: kernel(*arguments, begin, end), self._indices.size, self._chunk
        )


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
