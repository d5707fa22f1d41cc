"""SDDMM on the CPU: the numba kernel of `kernel.py`, over equal chunks of nonzeros."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sddmm.backends.base import (
    MANY_CALLS,
    FirstRun,
    PreparedAttention,
    PreparedProduct,
    by_head,
    resolve_lazy_view,
)
from sddmm.backends.cpu.attention import CpuAttention
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
# A tile pays when a row has this many nonzeros in it, on average.
_TILED_RUN = 4


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

    def run_once(self, pattern: SparsePattern, problem: SddmmProblem, run: FirstRun) -> bool:
        """A CSR pattern's columns are checked while they are in cache for their products."""
        if run.is_launched or not pattern.is_csr or pattern.blocksize is not None:
            return False
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu.kernel import crow_is_valid

        view = CompressedView(
            pattern.major_indices.contiguous(), pattern.col_indices.contiguous(), None
        )
        if crow_is_valid(as_array(view.indptr), problem.nnz):
            execute = CpuExecutor(view, problem, is_checked=False)
            execute(*run.operands, run.out)
            run.is_launched = not execute.found_invalid
        if not run.is_launched:
            pattern.check()
            raise ValueError(f"{pattern!r} has indices outside its shape")
        return True

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        if problem.device.type != "cpu":
            return f"the pattern is on {problem.device}"
        return None

    def prepare_product(
        self, pattern: SparsePattern, problem: SpmmProblem, calls: int = MANY_CALLS
    ) -> PreparedProduct:
        return CpuProduct(pattern, problem)

    def refuses_attention(self, problem: AttentionProblem) -> str | None:
        if problem.device.type != "cpu":
            return f"the pattern is on {problem.device}"
        return None

    def prepare_attention(
        self, pattern: SparsePattern, problem: AttentionProblem
    ) -> PreparedAttention:
        return CpuAttention(pattern, problem)


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
        width = tile_width(problem, dtype.itemsize)
        chunk = _TILED_CHUNK
        if width == 0:
            chunk = min(chunk, max(256, _CHUNK_WORK // max(1, problem.k)))
        self._indptr = as_array(by_row.indptr.contiguous())
        self._indices = as_array(by_row.indices.contiguous())
        self._width, self._chunk = width, chunk
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu.kernel import sample, sample_if_valid

        self._kernel = sample if is_checked else sample_if_valid

    @property
    def found_invalid(self) -> bool:
        """Whether a run has met a column outside the matrix, and left values out."""
        return self._invalid is not None and bool(self._invalid[0])

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        perm, dtype = self._perm, self._dtype
        direct = perm is None and values is None and out.dtype == dtype
        sums = out if direct else torch.empty(out.shape, dtype=dtype, device=out.device)
        for head in by_head(_rows(a, dtype), _rows(b.mT, dtype), sums):
            self._sample(head, alpha)
        if perm is not None:
            sums = torch.empty_like(sums).index_copy_(-1, perm, sums)
        if values is not None:
            sums = sums.mul_(values)
        if not direct:
            out.copy_(sums)

    def _sample(self, head: tuple[Tensor, Tensor, Tensor], alpha: float) -> None:
        a, b, out = (tensor.numpy() for tensor in head)
        arguments = (
            self._indptr, self._indices, a, b, a.dtype.type(alpha), out, self._width,
            *(() if self._invalid is None else (self._invalid,)),
        )  # fmt: skip
        kernel = self._kernel
        for_chunks(
            lambda begin, end: kernel(*arguments, begin, end), self._indices.size, self._chunk
        )


def tile_width(problem: SddmmProblem, itemsize: int) -> int:
    """Columns of a tile of B that stays in cache, or 0 where tiles do not pay."""
    width = max(1, _TILE_BYTES // max(1, problem.k * itemsize))
    if width * 2 >= problem.n:
        return 0
    nonzeros_per_run = problem.nnz / max(1, problem.m) * width / problem.n
    reuse = min(_TILED_CHUNK, problem.nnz) / problem.n
    return width if nonzeros_per_run >= _TILED_RUN and reuse >= _TILED_RUN else 0


def _rows(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy of the operand in the kernel's dtype, or the operand itself."""
    return resolve_lazy_view(operand.detach()).to(dtype).contiguous()
