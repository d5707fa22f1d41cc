"""The operands and parameters of the kernels whose operands TMA loads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gemm_core.ladder.spec import GemmProblem, KernelSpec, Tma
from gemm_core.runtime.tensor_map import NO_MAP, is_tma_readable, pad_for_tma, tensor_map

# TMA copies boxes whose rows have as many bytes as the swizzle repeats after, and stores boxes of
# 64 rows of C (epilogue_tma.cuh).
_BOX_ROW_BYTES, _STORED_ROWS = 128, 64


def readable_operands(problem: GemmProblem, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a and b, copied to rows at multiples of 16 bytes where TMA cannot read them."""
    stored_b = b if problem.b_layout == "kn" else b.T
    a = a if is_tma_readable(a) else pad_for_tma(a)
    stored_b = stored_b if is_tma_readable(stored_b) else pad_for_tma(stored_b)
    return a, stored_b if problem.b_layout == "kn" else stored_b.T


def tma_arguments(
    spec: KernelSpec,
    problem: GemmProblem,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    encode: Callable[[Tensor, int, int], bytes] = tensor_map,
) -> tuple[int | bytes, ...]:
    """The values of TmaParameters, for readable operands; `encode` makes a tensor map."""
    block_m, block_n, block_k = spec.tile
    tma = spec.tma or Tma()
    if problem.b_layout == "nk":
        map_b = encode(b.T, block_n // tma.cluster, block_k)
    else:
        # As WgmmaStage::PANEL_PARTS: as few boxes as give each block of a cluster as many.
        panels = block_n // _box_columns(problem.dtype)
        rows = block_k // (tma.cluster // math.gcd(panels, tma.cluster))
        map_b = encode(b, rows, _box_columns(problem.dtype))
    map_c = NO_MAP
    if spec.stores_by_tma(problem):
        map_c = encode(out, _STORED_ROWS, _box_columns(problem.out_dtype))
    return (
        encode(a, block_m, block_k), map_b, map_c, out.data_ptr(), out.stride(0),
        problem.m, problem.n, problem.k, *(0,) * 9,
    )  # fmt: skip


def _box_columns(dtype: torch.dtype) -> int:
    return _BOX_ROW_BYTES // dtype.itemsize
