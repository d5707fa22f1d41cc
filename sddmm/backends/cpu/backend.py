"""SDDMM on the CPU: the numba kernel of `cpu_kernel.py` over equal chunks of nonzeros."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sddmm.backends.cpu.openmp import for_chunks
from sddmm.dtypes import DTYPES
from sddmm.operands import by_head, plain
from sddmm.problem import Problem
from sddmm.sparse.indices import as_array
from sddmm.sparse.pattern import SparsePattern

if TYPE_CHECKING:
    from sddmm.backends import Execute

# Multiply-adds of a chunk: about 100 us, enough to pay for waking a thread.
_CHUNK_WORK = 2**20
# Nonzeros of a chunk that is walked in tiles: enough to reuse a tile of B.
_TILED_CHUNK = 2**16
# Bytes of B that a tile keeps in cache: half of a 2 MB L2.
_TILE_BYTES = 2**20
# A tile pays when a row has this many nonzeros in it, on average.
_TILED_RUN = 4


class CpuBackend:
    name = "cpu"

    def available(self) -> str | None:
        if find_spec("numba") is None:
            return "numba is not installed (pip install 'sddmm[cpu]')"
        return None

    def refuses(self, problem: Problem) -> str | None:
        if problem.device.type != "cpu":
            return f"the pattern is on {problem.device}"
        return None

    def prepare(self, pattern: SparsePattern, problem: Problem) -> Execute:
        grouping = pattern.by_row
        cols = as_array(grouping.minor.contiguous())
        # numba has no half types on the CPU: operands are up-cast, sums are float32.
        dtype = DTYPES[problem.dtype].accumulator
        width = tile_width(problem, dtype.itemsize)
        chunk = _TILED_CHUNK
        if width == 0:
            chunk = min(chunk, max(256, _CHUNK_WORK // max(1, problem.k)))
        crow = as_array(grouping.compressed.contiguous())
        # Imported here: numba is optional, and slow to import.
        from sddmm.backends.cpu.kernel import sample

        def execute(a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor) -> None:
            direct = grouping.order is None and values is None and out.dtype == dtype
            sums = out if direct else torch.empty(out.shape, dtype=dtype, device=out.device)
            for head in by_head(_rows(a, dtype), _rows(b.mT, dtype), sums):
                _sample(sample, crow, cols, head, alpha, width, chunk)
            if grouping.order is not None:
                sums = torch.empty_like(sums).index_copy_(-1, grouping.order, sums)
            if values is not None:
                sums = sums.mul_(values)
            if not direct:
                out.copy_(sums)

        return execute


def tile_width(problem: Problem, itemsize: int) -> int:
    """Columns of a tile of B that stays in cache, or 0 where tiles do not pay."""
    width = max(1, _TILE_BYTES // max(1, problem.k * itemsize))
    if width * 2 >= problem.n:
        return 0
    nonzeros_per_run = problem.nnz / max(1, problem.m) * width / problem.n
    reuse = min(_TILED_CHUNK, problem.nnz) / problem.n
    return width if nonzeros_per_run >= _TILED_RUN and reuse >= _TILED_RUN else 0


def _sample(
    kernel: Any,
    crow: Any,
    cols: Any,
    head: tuple[Tensor, Tensor, Tensor],
    alpha: float,
    width: int,
    chunk: int,
) -> None:
    a, b, out = (tensor.numpy() for tensor in head)
    arguments = (crow, cols, a, b, a.dtype.type(alpha), out, width)
    for_chunks(lambda begin, end: kernel(*arguments, begin, end), cols.size, chunk)


def _rows(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """The operand as the kernel reads it: of this dtype, and contiguous."""
    return plain(operand.detach()).to(dtype).contiguous()
