"""Weights of several heads side by side, for reads in any order of nonzeros."""

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
from sddmm.dtypes import DTYPES

# The bytes that one load reads.
_LOAD_BYTES = 16


class Arguments(ctypes.Structure):
    """The parameters of weights_by_nonzero/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("values", "factors", "weights")),
        *((name, LONG) for name in ("head_values", "nnz")),
        ("heads", INT),
    ]


WEIGHTS_BY_NONZERO = KernelSpec(
    "weights_by_nonzero", "weights_by_nonzero", tuple(DTYPES), threads=256
)


@functools.lru_cache(maxsize=64)
def load(
    runtime: loader.CudaRuntime,
    values_dtype: torch.dtype,
    factors_dtype: torch.dtype,
    weights_dtype: torch.dtype,
    has_factors: bool,
    heads: int,
    device_index: int,
) -> Kernel:
    defines: dict[str, str | int | bool] = {
        "VALUE": DTYPES[values_dtype].cpp_name, "ELEMENT": DTYPES[factors_dtype].cpp_name,
        "WEIGHT": DTYPES[weights_dtype].cpp_name, "HAS_FACTORS": has_factors, "HEADS": heads,
    }  # fmt: skip
    return runtime.load_kernel(WEIGHTS_BY_NONZERO, macros(defines), Arguments, device_index)


def heads_together(heads: int, dtype: torch.dtype) -> int:
    """How many heads stand side by side: a power of two, of as many as there are or one load
    reads."""
    return min(_LOAD_BYTES // dtype.itemsize, 1 << (heads - 1).bit_length())


def put_side_by_side(
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
    kernel = load(
        loader.runtime, values.dtype, factors_dtype, weights.dtype, factors is not None, together,
        device_index,
    )  # fmt: skip
    kernel(  # in the order of Arguments
        ceil_div(nnz, WEIGHTS_BY_NONZERO.threads), values.data_ptr(), address(factors),
        weights.data_ptr(), values.stride(0), nnz, values.shape[0],
    )  # fmt: skip
