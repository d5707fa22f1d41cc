"""The softmax over the nonzeros of each row: the choice of who computes it, and torch's way.

All implementations take a pattern and its values, ([heads,] nnz) in the pattern's order, and return
a new contiguous tensor of their shape and dtype. They compute in float32, or float64 for float64,
round once, and give the same bits on every run.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sddmm.backends.base import resolve_lazy_view
from sddmm.backends.cpu.softmax import CpuRowSoftmax
from sddmm.backends.cuda.kernels.row_softmax.host import GpuRowSoftmax
from sddmm.dtypes import DTYPES
from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.row_groups import row_groups


class RowSoftmax(Protocol):
    """One way to compute both functions."""

    def serves(self, pattern: SparsePattern, values: Tensor) -> bool:
        """Whether it can compute values of this shape and dtype here."""

    def forward(self, pattern: SparsePattern, values: Tensor) -> Tensor:
        """exp(value - largest of the row) over its sum in the row."""

    def backward(self, pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
        """p * (grad - sum of p * grad in the row): the gradient where `forward` returned p."""


class TorchRowSoftmax:
    """Serves everything, by torch's reductions of segments: many passes over the values."""

    def serves(self, pattern: SparsePattern, values: Tensor) -> bool:
        return True

    def forward(self, pattern: SparsePattern, values: Tensor) -> Tensor:
        rows = _Segments(pattern)
        x = rows.grouped(values)
        x = (x - rows.reduce(x, "max")).exp_()
        return rows.restored(x / rows.reduce(x, "sum"), values)

    def backward(self, pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
        rows = _Segments(pattern)
        x, g = rows.grouped(p), rows.grouped(grad)
        return rows.restored(x * (g - rows.reduce(x * g, "sum")), p)


class _Segments:
    """The rows of a pattern as segments of arrays (nnz, heads), which torch reduces in order."""

    def __init__(self, pattern: SparsePattern) -> None:
        groups = row_groups(pattern)
        self._perm, self._lengths = groups.perm, groups.starts.diff()

    def grouped(self, values: Tensor) -> Tensor:
        """The values row by row, (nnz, heads), in the dtype of their sums."""
        x = values if self._perm is None else values[..., self._perm]
        return x.to(DTYPES[values.dtype].accumulator).reshape(-1, values.shape[-1]).mT.contiguous()

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        """The largest value or the sum of each nonzero's row, like x."""
        rows = torch.segment_reduce(x, reduction, lengths=self._lengths, axis=0, unsafe=True)
        return rows.repeat_interleave(self._lengths, dim=0, output_size=x.shape[0])

    def restored(self, x: Tensor, values: Tensor) -> Tensor:
        """Results in the order, the shape and the dtype of `values`."""
        result = x.mT.reshape(values.shape).to(values.dtype).contiguous()
        if self._perm is None:
            return result
        return torch.empty_like(result).index_copy_(-1, self._perm, result)


ROW_SOFTMAX: tuple[RowSoftmax, ...] = (GpuRowSoftmax(), CpuRowSoftmax(), TorchRowSoftmax())
"""The first that serves computes."""


def row_softmax(pattern: SparsePattern, values: Tensor) -> Tensor:
    """The softmax of the values over each row."""
    if values.numel() == 0:
        pattern.check()
        return torch.empty_like(values, memory_format=torch.contiguous_format)
    values = resolve_lazy_view(values)
    return _implementation(pattern, values).forward(pattern, values)


def row_softmax_backward(pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the values whose softmax is p, from that of p."""
    if p.numel() == 0:
        pattern.check()
        return torch.empty_like(p, memory_format=torch.contiguous_format)
    p, grad = resolve_lazy_view(p), resolve_lazy_view(grad)
    return _implementation(pattern, p).backward(pattern, p, grad)


def _implementation(pattern: SparsePattern, values: Tensor) -> RowSoftmax:
    return next(way for way in ROW_SOFTMAX if way.serves(pattern, values))
