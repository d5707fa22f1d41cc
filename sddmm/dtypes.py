"""The dtypes of operands, values and indices: the one table of what depends on a dtype."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import torch


class Dtype(NamedTuple):
    """The facts of one dtype of operands and values.

    cpp_name: its name in the kernels. accumulator: the dtype in which sums of its products are
    kept. unit_roundoff: the relative error of rounding to it. is_half: whether it takes 16 bits.
    """

    cpp_name: str
    accumulator: torch.dtype
    unit_roundoff: float
    is_half: bool = False


DTYPES: dict[torch.dtype, Dtype] = {
    torch.float16: Dtype("gemm_core::f16", torch.float32, 2.0**-11, is_half=True),
    torch.bfloat16: Dtype("gemm_core::bf16", torch.float32, 2.0**-8, is_half=True),
    torch.float32: Dtype("float", torch.float32, 2.0**-24),
    torch.float64: Dtype("double", torch.float64, 2.0**-53),
}
HALF_DTYPES = tuple(dtype for dtype, facts in DTYPES.items() if facts.is_half)

# The dtypes of indices, with their names in the kernels.
INDEX_DTYPES: dict[torch.dtype, str] = {torch.int32: "int", torch.int64: "gemm_core::i64"}

# The arithmetic of float32 products, the most exact first, with the relative error that rounding
# both operands adds to a product; 3xTF32 keeps about 21 bits.
PRECISIONS: dict[str, float] = {"ieee": 0.0, "tf32x3": 2.0**-20, "tf32": 2.0**-10}


def is_less_exact(precision: str, other: str) -> bool:
    """Whether arithmetic of this precision may round more than that of the other."""
    return PRECISIONS[precision] > PRECISIONS[other]


@functools.cache  # as every product asks several times
def common_accumulator(dtype: torch.dtype, other: torch.dtype) -> torch.dtype:
    """The dtype in which sums of products of two dtypes are kept."""
    return torch.promote_types(DTYPES[dtype].accumulator, DTYPES[other].accumulator)


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as messages print it."""
    return str(dtype).removeprefix("torch.")


def dtype_names(dtypes: Iterable[torch.dtype]) -> str:
    """The dtypes as messages list them."""
    return ", ".join(map(dtype_name, dtypes))
