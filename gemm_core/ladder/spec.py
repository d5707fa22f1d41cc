"""GEMM problems and kernels as plain values."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.compile import prefixed_macros
from gemm_core.runtime.device import Device, format_capability
from gemm_core.runtime.launch import INT, LONG, POINTER, parameter_macros
from gemm_core.runtime.tensor_map import TensorMap

PRECISIONS = ("ieee", "tf32x3", "tf32")
"""The arithmetics for float32 operands, from the most to the least exact.

ieee: float32 products. tf32x3: each operand is the sum of two TF32 numbers, which gives about
float32's accuracy. tf32: each operand is rounded to the nearest TF32 number, with a fraction of 10
bits; numbers from 3.4020e38 on may become infinite by it. In tf32x3 finite operands stay finite,
however large. In both, infinities and NaN reach the products that they reach in float32; numbers
below 2^-126 may count as zero. A product of finite numbers that overflows float32 is infinite, or
NaN in tf32x3.
"""

LAYOUTS_OF_B = ("kn", "nk")
"""B is stored as k rows of n elements, or as n rows of k, the transpose of a contiguous tensor."""

# Parameters of a GEMM kernel: a, b, c, m, n, k and the row pitches of a, b, c in elements.
PARAMETERS = (POINTER, POINTER, POINTER, INT, INT, INT, LONG, LONG, LONG)


class TmaParameters(ctypes.Structure):
    """The parameters of a kernel whose operands TMA loads (wgmma_gemm.cuh: WgmmaArguments)."""

    _fields_ = [
        *((name, TensorMap) for name in ("a", "b", "c")),
        ("out", POINTER),
        ("pitch_c", LONG),
        *((name, INT) for name in ("m", "n", "k")),
        *((f"unused{i}", INT) for i in range(9)),
    ]


KERNEL_FOLDER = Path(__file__).parent / "kernels"

# C++ types of accumulators and of elements in the device headers.
_ACCUMULATORS = {"fp32": "float", "fp16": "f16"}
ELEMENTS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "float"}


@dataclass(frozen=True)
class GemmProblem:
    """The sizes, dtypes and memory layout of C (m, n) = A (m, k) B (k, n). Hashable.

    A and C are row-major with a row pitch. b_layout: one of LAYOUTS_OF_B. aligned_a, aligned_b:
    every stored row starts at a multiple of 16 bytes. c_vec2_aligned: every row of C starts at a
    multiple of two elements; aligned_c: of 16 bytes. fits_32bit_offsets: the stored rows of A, and
    those of B, start less than 2^24 bytes apart. accumulate: "fp32" or "fp16". precision, for
    float32: the least exact of PRECISIONS to accept.
    """

    m: int
    n: int
    k: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    b_layout: str
    aligned_a: bool
    aligned_b: bool
    c_vec2_aligned: bool
    accumulate: str = "fp32"
    precision: str = "ieee"
    fits_32bit_offsets: bool = True
    aligned_c: bool = False


@dataclass(frozen=True)
class Tma:
    """What sets the kernels apart whose operands TMA loads.

    cluster: blocks of neighbouring tile rows that share the loads of B. split_k: blocks of a
    cluster that share a tile, each with a part of k. is_persistent: the grid fills the GPU once,
    and its blocks compute one tile after the other. stores: TMA stores C where its rows are
    aligned.
    """

    cluster: int = 1
    split_k: int = 1
    is_persistent: bool = False
    stores: bool = False


@dataclass(frozen=True)
class KernelSpec:
    """Static facts of one kernel variant, and the one predicate that says what it serves.

    source: file in kernels/. defines: macros without their prefix GEMM_, beside those that follow
    from the tile and the problem. accumulates: the accumulator types it offers. precision: its
    arithmetic. b_layouts: the layouts of B that it reads. full_tiles_only: it has no bounds checks.
    uses_32bit_offsets: it addresses the elements of a tile, of at most 256 rows, by 32-bit offsets.
    min_blocks: blocks that share a multiprocessor. tma: set if TMA loads the operands. h200_tflops:
    the rate measured on an H200 with the GPU full, by which `choose` ranks; None if it has not been
    measured, in which case the kernel serves by name only.
    """

    name: str
    source: str
    tile: tuple[int, int, int]
    threads: int
    dtypes: tuple[torch.dtype, ...]
    accumulates: tuple[str, ...] = ("fp32",)
    precision: str = "ieee"
    b_layouts: tuple[str, ...] = LAYOUTS_OF_B
    full_tiles_only: bool = False
    uses_32bit_offsets: bool = False
    min_blocks: int = 1
    shared_bytes: int = 0
    min_capability: tuple[int, int] = (8, 0)
    max_capability: tuple[int, int] | None = None
    raster_group: int = 1
    tma: Tma | None = None
    h200_tflops: float | None = None
    defines: Mapping[str, str | int | bool] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def refuses(self, problem: GemmProblem, device: Device) -> str | None:
        """None if this kernel computes `problem` on `device`, else why not."""
        oldest, newest, capability = self.min_capability, self.max_capability, device.capability
        got = f"got {format_capability(capability)}"
        if capability < oldest:
            return f"needs compute capability {format_capability(oldest)}, {got}"
        if newest is not None and capability > newest:
            last = format_capability(newest)
            return f"is made of instructions that end with compute capability {last}, {got}"
        if self.shared_bytes > device.shared_bytes:
            needed, got = str(self.shared_bytes), str(device.shared_bytes)
            return f"needs {needed} bytes of shared memory a block, {got} are there"
        if problem.dtype not in self.dtypes:
            return f"computes {_names(self.dtypes)}, not {_names((problem.dtype,))}"
        if problem.out_dtype not in ELEMENTS:
            return f"stores {_names(tuple(ELEMENTS))}, not {_names((problem.out_dtype,))}"
        if problem.accumulate not in self.accumulates:
            return f"accumulates in {', '.join(self.accumulates)}, not in {problem.accumulate}"
        if PRECISIONS.index(self.precision) > PRECISIONS.index(problem.precision):
            return f"computes with precision {self.precision}, less than {problem.precision}"
        if problem.b_layout not in self.b_layouts:
            served = "".join(layout[0] for layout in self.b_layouts)
            return f"needs b stored as rows of {served}, got rows of {problem.b_layout[0]}"
        if self.uses_32bit_offsets and not problem.fits_32bit_offsets:
            return "needs rows of a and of b that start less than 2^24 bytes apart"
        if self.full_tiles_only and not _has_full_tiles_only(problem, self.tile):
            m, n, k = self.tile
            return (
                f"needs m, n, k that are multiples of {m}, {n}, {k} and rows that start at "
                f"multiples of 16 bytes"
            )
        if self.blocks(problem) >= 2**31:
            return f"has more blocks than a grid, {self.blocks(problem)}"
        return None

    def blocks(self, problem: GemmProblem) -> int:
        """The number of blocks that compute a tile of C or a part of one."""
        tma = self.tma or Tma()
        tile_rows = ceil_div(ceil_div(problem.m, self.tile[0]), tma.cluster) * tma.cluster
        return tile_rows * ceil_div(problem.n, self.tile[1]) * tma.split_k

    def grid(self, problem: GemmProblem, device: Device) -> int:
        """The length of the one-dimensional grid."""
        blocks = self.blocks(problem)
        if self.tma is None or not self.tma.is_persistent:
            return blocks
        return min(blocks, device.sm_count // self.tma.cluster * self.tma.cluster)

    @property
    def parameters(self) -> tuple[Any, ...] | type[ctypes.Structure]:
        """The C types of the kernel's parameters, or the struct that it takes."""
        return PARAMETERS if self.tma is None else TmaParameters

    def stores_by_tma(self, problem: GemmProblem) -> bool:
        """Whether TMA stores C, of 16-bit elements: its rows begin and end at 16-byte multiples.

        TMA stores 16 bytes at a time, also past the end of a row.
        """
        stores = self.tma is not None and self.tma.stores
        rows_fit = problem.aligned_c and problem.n % 8 == 0
        return stores and rows_fit and problem.out_dtype.itemsize == 2

    def macros(self, problem: GemmProblem) -> dict[str, str]:
        """All macros that the source needs for `problem`, by their full names."""
        block_m, block_n, block_k = self.tile
        values: dict[str, str | int | bool] = {
            "ELEMENT": ELEMENTS[problem.dtype],
            "OUTPUT": ELEMENTS[problem.out_dtype],
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "THREADS": self.threads,
            "MIN_BLOCKS": self.min_blocks,
            "SHARED_BYTES": self.shared_bytes,
            "ACCUMULATOR": _ACCUMULATORS[problem.accumulate],
            "RASTER_GROUP": self.raster_group,
            "B_ROWS_ARE_N": problem.b_layout == "nk",
            "ALIGNED_A": problem.aligned_a,
            "ALIGNED_B": problem.aligned_b,
            "C_VEC2_ALIGNED": problem.c_vec2_aligned,
            **self.defines,
        }
        if self.tma is not None:
            values |= {
                "CLUSTER": self.tma.cluster,
                "SPLIT_K": self.tma.split_k,
                "STORES_BY_TMA": self.stores_by_tma(problem),
            }
            for unread in ("ALIGNED_A", "ALIGNED_B", "ACCUMULATOR"):
                del values[unread]  # else the same code would be compiled twice
        return {**prefixed_macros("GEMM_", values), **parameter_macros(self.parameters)}


def raster(block: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """The (tile row, tile column) that a block computes: the twin of raster.cuh."""
    band = block // (group * tiles_n)
    first = band * group
    height = min(group, tiles_m - first)
    within = block - first * tiles_n
    return first + within % height, within // height


def _has_full_tiles_only(problem: GemmProblem, tile: tuple[int, int, int]) -> bool:
    sizes = (problem.m, problem.n, problem.k)
    aligned = problem.aligned_a and problem.aligned_b
    return aligned and all(size % part == 0 for size, part in zip(sizes, tile, strict=True))


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
