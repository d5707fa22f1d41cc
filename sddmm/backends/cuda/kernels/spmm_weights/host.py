"""Weights in the order of rows, for products that would read them through a permutation: by
spmm_weights, and those of several heads by weights_by_nonzero first."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES, common_accumulator
from sddmm.memory import new_memory


class Arguments(ctypes.Structure):
    """The parameters of spmm_weights/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("values", "factors", "perm", "weights")),
        *((name, LONG) for name in ("head_values", "count")),
        ("heads", INT),
    ]


class SideBySideArguments(ctypes.Structure):
    """The parameters of weights_by_nonzero/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("values", "factors", "weights")),
        *((name, LONG) for name in ("head_values", "nnz")),
        ("heads", INT),
    ]


_THREADS, _ITEMS = 256, 8
SPMM_WEIGHTS = KernelSpec("spmm_weights", "spmm_weights", tuple(DTYPES), threads=_THREADS)
WEIGHTS_BY_NONZERO = KernelSpec(
    "weights_by_nonzero", "weights_by_nonzero", tuple(DTYPES), threads=_THREADS
)
# The bytes of weights of a nonzero that one load reads.
_LOAD_BYTES = 16


@functools.lru_cache(maxsize=64)
def load(
    runtime: loader.CudaRuntime,
    values_dtype: torch.dtype,
    factors_dtype: torch.dtype,
    has_factors: bool,
    device_index: int,
    heads: int = 1,
) -> Kernel:
    """The kernel; heads: whose values stand side by side."""
    defines = _defines(values_dtype, factors_dtype, has_factors, heads) | {"ITEMS": _ITEMS}
    return runtime.load_kernel(SPMM_WEIGHTS, macros(defines), Arguments, device_index)


@functools.lru_cache(maxsize=64)
def load_side_by_side(
    runtime: loader.CudaRuntime,
    values_dtype: torch.dtype,
    factors_dtype: torch.dtype,
    has_factors: bool,
    heads: int,
    device_index: int,
) -> Kernel:
    """The kernel; heads: how many stand side by side."""
    defines = _defines(values_dtype, factors_dtype, has_factors, heads)
    return runtime.load_kernel(
        WEIGHTS_BY_NONZERO, macros(defines), SideBySideArguments, device_index
    )


def _defines(
    values_dtype: torch.dtype, factors_dtype: torch.dtype, has_factors: bool, heads: int
) -> dict[str, str | int | bool]:
    """The macros of both kernels."""
    return {
        "VALUE": DTYPES[values_dtype].cpp_name, "ELEMENT": DTYPES[factors_dtype].cpp_name,
        "WEIGHT": DTYPES[dtype_of(values_dtype, factors_dtype, has_factors)].cpp_name,
        "HAS_FACTORS": has_factors, "HEADS": heads,
    }  # fmt: skip


def dtype_of(
    values_dtype: torch.dtype, factors_dtype: torch.dtype, has_factors: bool
) -> torch.dtype:
    """The dtype of the weights: that of the values, or of the sums where they are products."""
    return common_accumulator(values_dtype, factors_dtype) if has_factors else values_dtype


def heads_together(heads: int, dtype: torch.dtype) -> int:
    """The number of heads whose weights are stored side by side: the largest power of two that is
    at most `heads`, and whose weights one load of 16 bytes reads."""
    return min(_LOAD_BYTES // dtype.itemsize, 1 << (heads.bit_length() - 1))


def order_weights(
    values: Tensor,
    factors: Tensor | None,
    factors_dtype: torch.dtype,
    perm: Tensor,
    weights: Tensor,
    device_index: int,
) -> None:
    """weights[h, i] = values[h, perm[i]], times factors[perm[i]], on torch's current stream.

    values: (heads, nnz) with last stride 1. perm: (count,) int32, contiguous. weights: (heads,
    count), contiguous, of `dtype_of`.
    """
    heads, count = weights.shape
    kernel = load(loader.runtime, values.dtype, factors_dtype, factors is not None, device_index)
    kernel(  # in the order of Arguments
        ceil_div(count, _THREADS * _ITEMS), values.data_ptr(), address(factors), perm.data_ptr(),
        weights.data_ptr(), values.stride(0), count, heads,
    )  # fmt: skip


def order_weights_of_heads(
    values: Tensor,
    factors: Tensor | None,
    factors_dtype: torch.dtype,
    perm: Tensor,
    weights: Tensor,
    device_index: int,
) -> None:
    """As `order_weights`, of all nonzeros: perm is (nnz,). Weights of `heads_together` heads at a
    time are stored side by side first, in memory of at most the size of `weights`, so that one load
    reads them all."""
    heads, count = weights.shape
    together = heads_together(heads, weights.dtype)
    by_nonzero = new_memory("weights by nonzero", (count, together), weights.dtype, values.device)
    kernel = load(loader.runtime, weights.dtype, factors_dtype, False, device_index, together)
    for first in range(0, heads, together):
        own = values[first : first + together]
        _put_side_by_side(own, factors, factors_dtype, by_nonzero, device_index)
        kernel(  # in the order of Arguments
            ceil_div(count, _THREADS * _ITEMS), by_nonzero.data_ptr(), 0, perm.data_ptr(),
            weights[first].data_ptr(), 0, count, own.shape[0],
        )  # fmt: skip


def _put_side_by_side(
    values: Tensor,
    factors: Tensor | None,
    factors_dtype: torch.dtype,
    weights: Tensor,
    device_index: int,
) -> None:
    """weights[i, h] = values[h, i], times factors[i], on torch's current stream; zero for heads
    that values lack.

    values: (heads, nnz) with last stride 1. weights: (nnz, HEADS), contiguous, where HEADS is that
    of `heads_together`.
    """
    nnz, together = weights.shape
    kernel = load_side_by_side(
        loader.runtime, values.dtype, factors_dtype, factors is not None, together, device_index
    )
    kernel(  # in the order of Arguments
        ceil_div(nnz, _THREADS), values.data_ptr(), address(factors),
        weights.data_ptr(), values.stride(0), nnz, values.shape[0],
    )  # fmt: skip
