"""tile_*: dense tiles by tensor cores, of which the sampled entries are stored."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gemm_core.runtime.addressing import fits_32bit_offsets
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.layouts import SortedRows, TileList, TileStarts, TileWork
from sddmm.backends.cuda.loader import (
    Bound,
    Launch,
    address,
    alignment,
    bound,
    pitch_of,
    placed,
    rows_are_contiguous,
    types,
)
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.problem import Problem

# The members of TileStarts (tile_starts.cuh).
STARTS = (
    ("starts", POINTER),
    ("by_tile", LONG),
    ("by_tile_row", LONG),
    ("by_tile_column", INT),
    ("by_row", INT),
)


class Arguments(ctypes.Structure):
    """Of every tile kernel (tile_kernel.cuh)."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "cols", "order", "tiles")),
        *STARTS,
        *((name, LONG) for name in ("pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("tile_count", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


class BoundsArguments(ctypes.Structure):
    """Of tile_bounds.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("crow", "cols", "tiles", "bounds")),
        *((name, INT) for name in ("tile_count", "m", "block_m", "block_n")),
    ]


BOUNDS = KernelSpec("tile_bounds", "tile", "tile_bounds", (), threads=256)


def listed_starts(rows: SortedRows, tiles: TileList, m: int, device: Device) -> TileStarts:
    """Of the tiles of a list alone."""
    count, (block_m, block_n) = tiles.length, tiles.block
    starts = torch.empty(count, block_m, 2, dtype=torch.int32, device=rows.cols.device)
    loader.runtime.load_kernel(BOUNDS, (), BoundsArguments, device.index)(
        -(-count * block_m // BOUNDS.threads), rows.crow.data_ptr(), rows.cols.data_ptr(),
        tiles.places.data_ptr(), starts.data_ptr(), count, m, block_m, block_n,
    )  # fmt: skip
    return TileStarts(starts, 2 * block_m, 0, 0, 2)


def work_of(work: TileWork) -> dict[str, int]:
    """The parameters that say what tiles there are, and where their nonzeros, by name."""
    starts = work.starts
    return {
        "cols": work.cols.data_ptr(),
        "order": address(work.order),
        "tiles": work.tiles.places.data_ptr(),
        "tile_count": work.tiles.length,
        "starts": starts.starts.data_ptr(),
        "by_tile": starts.by_tile,
        "by_tile_row": starts.by_tile_row,
        "by_tile_column": starts.by_tile_column,
        "by_row": starts.by_row,
    }


def prepare(spec: KernelSpec, work: TileWork, problem: Problem, device: Device) -> Launch:
    blocks = work.tiles.length * (problem.heads or 1)
    block_m, block_n, block_k = spec.tile
    fixed = {
        **types(problem), **spec.defines, "BLOCK_M": block_m, "BLOCK_N": block_n,
        "BLOCK_K": block_k, "MIN_BLOCKS": spec.min_blocks,
    }  # fmt: skip
    kernels: dict[bool, Kernel] = {}

    def bind(a: Tensor, b_t: Tensor) -> Bound:
        aligned = alignment(a, b_t) == 16
        kernel = kernels.get(aligned)
        if kernel is None:
            made = macros({**fixed, "ALIGNED_A": aligned, "ALIGNED_B": aligned})
            kernel = kernels[aligned] = loader.runtime.load_kernel(
                spec, made, Arguments, device.index
            )
        return bound(kernel, blocks, {
            **placed(a, b_t), **work_of(work), "head_out": problem.nnz, "m": problem.m,
            "n": problem.n, "k": problem.k,
        })  # fmt: skip

    return Launch(bind, _fits)


def _fits(x: Tensor) -> bool:
    return rows_are_contiguous(x) and fits_32bit_offsets(x, pitch_of(x))
