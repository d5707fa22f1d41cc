"""tile_wgmma: dense tiles by wgmma, whose operands TMA brings; blocks that stay for many tiles."""

from __future__ import annotations

import ctypes

from torch import Tensor

from gemm_core.device import Device
from gemm_core.launch import DOUBLE, INT, LONG, POINTER
from gemm_core.tensor_map import TensorMap, fits, padded, tensor_map
from sddmm.families import Bound, Launch, address, bound, loaded, rows_are_contiguous, types
from sddmm.families.tile import bounds_of
from sddmm.partition import SortedRows, TileList
from sddmm.problem import Problem
from sddmm.spec import KernelSpec, macros


class Arguments(ctypes.Structure):
    """Of tile_wgmma.cu."""

    _fields_ = [
        ("a", TensorMap),
        ("b", TensorMap),
        *((name, POINTER) for name in ("values", "out", "cols", "order", "tiles", "bounds")),
        ("head_out", LONG),
        ("alpha", DOUBLE),
        *((name, INT) for name in ("tile_count", "heads", "blocks", "k")),
        *((f"unused{i}", INT) for i in range(12)),
    ]


def prepare(
    spec: KernelSpec, rows: SortedRows, tiles: TileList, problem: Problem, device: Device
) -> Launch:
    bounds = bounds_of(rows, tiles, problem.m, device)
    heads = problem.heads or 1
    blocks = min(tiles.length * heads, device.sm_count)
    kernel = loaded(spec, macros({**types(problem), **spec.defines}), Arguments, device.index)
    block_m, block_n, block_k = spec.tile

    def bind(a: Tensor, b_t: Tensor) -> Bound:
        return bound(
            kernel, blocks, a=tensor_map(a, block_m, block_k),
            b=tensor_map(b_t, block_n, block_k),
            cols=rows.cols.data_ptr(), order=address(rows.order), tiles=tiles.places.data_ptr(),
            bounds=bounds.data_ptr(), head_out=problem.nnz, tile_count=tiles.length, heads=heads,
            blocks=blocks, k=problem.k,
        )  # fmt: skip

    return Launch(bind, lambda x: rows_are_contiguous(x) and fits(x), padded)
