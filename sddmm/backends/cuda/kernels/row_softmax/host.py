"""row_softmax: a block computes the rows that begin in its share of nonzeros, of one head.

Rows longer than a share are cut. A second launch, made only where a pattern has such rows, merges
the largest values and the sums of their parts.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.softmax_shares.host import SHARE, share_rows
from sddmm.backends.cuda.layouts import int32
from sddmm.backends.cuda.pattern_layouts import AheadLayouts, PatternLayouts
from sddmm.backends.cuda.spec import MAX_NNZ, ROW_IDS, KernelSpec, macros
from sddmm.dtypes import DTYPES
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.row_groups import RowGroups, groups_of_sorted, row_groups

if TYPE_CHECKING:
    from gemm_core.runtime.device import Device
    from sddmm.sparse.pattern import SparsePattern

_THREADS = 128
# Bytes of a row that a lane holds in registers, as float32 or float64.
_ROW_BYTES = 64
# The padded values of two shares, and a number for each warp.
_SHARED_WORDS = 2 * SHARE + 2 * SHARE // 32 + _THREADS // 32
# Blocks of a launch, and rows and columns that the layouts of COO count in 32 bits.
_INT32 = 2**31

ROW_SOFTMAX = {
    dtype: KernelSpec(
        "row_softmax", "row_softmax", (dtype,), threads=_THREADS,
        shared_bytes=_SHARED_WORDS * DTYPES[dtype].accumulator.itemsize,
    )
    for dtype in DTYPES
}  # fmt: skip


class Arguments(ctypes.Structure):
    """The parameters of row_softmax/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("x", "g", "out", "starts", "perm", "shares", "parts")),
        *((name, LONG) for name in ("head_x", "head_g", "head_out", "share_count")),
        ("heads", INT),
    ]


class Shares(NamedTuple):
    """The arrays of a pattern that the kernel reads (see Arguments in kernel.cu), all int32.

    shares: (share_count, 8), a SoftmaxShare each. cuts_rows: whether a row is longer than a share.
    """

    starts: Tensor
    shares: Tensor
    perm: Tensor | None
    cuts_rows: bool

    @property
    def share_count(self) -> int:
        return self.shares.shape[0]


_SHARES = DerivedKey[Shares]("shares of row_softmax")


class GpuRowSoftmax:
    """Serves every dtype where kernels can be compiled and launched."""

    def serves(self, pattern: SparsePattern, values: Tensor) -> bool:
        runtime = loader.runtime
        if runtime.unavailable() is not None or runtime.refuses(pattern.device) is not None:
            return False
        blocks = ceil_div(pattern.nnz, SHARE) * _heads(values)
        return pattern.nnz <= MAX_NNZ and blocks < _INT32

    def forward(self, pattern: SparsePattern, values: Tensor) -> Tensor:
        return _compute(pattern, values, None)

    def backward(self, pattern: SparsePattern, p: Tensor, grad: Tensor) -> Tensor:
        return _compute(pattern, p, grad)


def _compute(pattern: SparsePattern, x: Tensor, g: Tensor | None) -> Tensor:
    runtime = loader.runtime
    index = pattern.device.index
    device = runtime.device(runtime.current_device() if index is None else index)
    if device.index != runtime.current_device():
        with torch.cuda.device(device.index):  # the driver launches in this context
            return _compute(pattern, x, g)
    shares = pattern.derive(_SHARES, lambda: _shares(pattern, device))
    x, g = _rows_contiguous(x), None if g is None else _rows_contiguous(g)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    heads = _heads(x)
    parts = None
    if shares.cuts_rows:
        accumulator = DTYPES[x.dtype].accumulator
        parts = torch.empty(heads, shares.share_count, 4, dtype=accumulator, device=x.device)
    for merges in (False, True) if shares.cuts_rows else (False,):
        kernel = load(
            runtime, x.dtype, g is not None, merges, shares.perm is not None, device.index
        )
        kernel(
            shares.share_count * heads, x.data_ptr(), address(g), out.data_ptr(),
            shares.starts.data_ptr(), address(shares.perm), shares.shares.data_ptr(),
            address(parts), _head_stride(x), 0 if g is None else _head_stride(g), pattern.nnz,
            shares.share_count, heads,
        )  # fmt: skip
    return out


@functools.lru_cache(maxsize=64)
def load(
    runtime: loader.CudaRuntime,
    dtype: torch.dtype,
    backward: bool,
    merges: bool,
    permuted: bool,
    device_index: int,
) -> Kernel:
    """The kernel for one launch of one function."""
    facts = DTYPES[dtype]
    defines = macros({
        "ELEMENT": facts.cpp_name, "BACKWARD": backward, "MERGES": merges, "PERMUTED": permuted,
        "SHARE": SHARE, "ITEMS": _ROW_BYTES // facts.accumulator.itemsize,
    })  # fmt: skip
    return runtime.load_kernel(ROW_SOFTMAX[dtype], defines, Arguments, device_index)


def _shares(pattern: SparsePattern, device: Device) -> Shares:
    starts, perm = _groups(pattern, device)
    starts, perm = int32(starts), None if perm is None else int32(perm)
    # This waits for all: the next call may come on another stream.
    shares, cuts_rows = share_rows(starts, pattern.nnz, device)
    return Shares(starts, shares, perm, cuts_rows)


def _groups(pattern: SparsePattern, device: Device) -> RowGroups:
    """The rows of a pattern that is checked by the analysis, which other kernels' plans share, as
    they do the order of COO."""
    if pattern.blocksize is not None or max(pattern.shape) >= _INT32:
        return row_groups(pattern)
    if not pattern.is_csr:
        nonzeros = PatternLayouts(pattern, device).by_row()
        return groups_of_sorted(nonzeros.rows, nonzeros.perm)
    layouts = AheadLayouts(pattern, device, ROW_IDS)
    try:  # any crow_indices will do while the analysis has not checked them
        starts: Tensor = torch.unique_consecutive(pattern.major_indices)
    finally:
        layouts.wait()
    return RowGroups(starts, None)


def _heads(values: Tensor) -> int:
    return values.shape[0] if values.dim() == 2 else 1


def _head_stride(values: Tensor) -> int:
    return values.stride(0) if values.dim() == 2 else 0


def _rows_contiguous(values: Tensor) -> Tensor:
    return values if values.stride(-1) == 1 or values.shape[-1] == 1 else values.contiguous()
