"""tile_wgmma: dense tiles by wgmma, whose operands TMA brings; blocks that stay for many tiles."""

from __future__ import annotations

import ctypes
import math

from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from gemm_core.runtime.tensor_map import TensorMap, fits, padded
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.tile import STARTS, work_of
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.loader import Bound, Launch, bound, rows_are_contiguous, types
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.problem import Problem

_CLUSTER = 2

# A warp looks ahead for a row's first nonzeros, so many at a time (LANES of sampled_warp.cuh), and
# no more often than its registers allow.
_LANES, _MOST_DEPTH = 8, 4


class Arguments(ctypes.Structure):
    """Of tile_wgmma.cu."""

    _fields_ = [
        ("a", TensorMap),
        ("b", TensorMap),
        *((name, POINTER) for name in ("values", "out", "cols", "order", "tiles")),
        *STARTS,
        ("head_out", LONG),
        ("alpha", DOUBLE),
        *((name, INT) for name in ("tile_count", "heads", "k")),
        *((f"unused{i}", INT) for i in range(7)),
    ]


def depth_of(nnz: int, rows: int) -> int:
    """How often to look ahead, so that it is enough for most of so many rows of tiles."""
    mean = nnz / max(1, rows)
    return min(_MOST_DEPTH, math.ceil((mean + 2 * math.sqrt(mean)) / _LANES) or 1)


def prepare(spec: KernelSpec, work: TileWork, problem: Problem, device: Device) -> Launch:
    heads = problem.heads or 1
    at_once = max(1, device.sm_count // _CLUSTER)
    clusters = min(-(-work.tiles.length * heads // _CLUSTER), at_once)
    block_m, block_n, block_k = spec.tile
    depth = depth_of(problem.nnz, work.tiles.length * block_m)
    fixed = {**types(problem), **spec.defines, "DEPTH": depth}
    kernels: dict[bool, Kernel] = {}

    def specialised(weighted: bool) -> Kernel:
        if weighted not in kernels:
            made = macros({**fixed, "WEIGHTED": weighted})
            kernels[weighted] = loader.runtime.load_kernel(spec, made, Arguments, device.index)
        return kernels[weighted]

    def bind(a: Tensor, b_t: Tensor) -> Bound:
        # The blocks of a cluster may bring what they share, the longer side, by halves.
        shares_a = block_m > block_n
        rows_a = block_m // _CLUSTER if shares_a else block_m
        rows_b = block_n if shares_a else block_n // _CLUSTER
        maps = {
            "a": loader.runtime.tensor_map(a, rows_a, block_k),
            "b": loader.runtime.tensor_map(b_t, rows_b, block_k),
        }

        def made(weighted: bool) -> Bound:
            return bound(specialised(weighted), clusters * _CLUSTER, {
                **maps, **work_of(work), "head_out": problem.nnz, "heads": heads, "k": problem.k,
            })  # fmt: skip

        by_weighted = {False: made(False)}

        def launch(values: int, out: int, alpha: float) -> None:
            weighted = values != 0
            if weighted not in by_weighted:
                by_weighted[weighted] = made(weighted)
            by_weighted[weighted](values, out, alpha)

        return launch

    return Launch(bind, lambda x: rows_are_contiguous(x) and fits(x), padded)
