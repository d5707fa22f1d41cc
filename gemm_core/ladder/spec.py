"""Problems and kernels as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gemm_core.runtime.compile import prefixed_macros
from gemm_core.runtime.device import Device, format_capability

PRECISIONS = ("ieee", "tf32x3", "tf32")
"""What float32 may be multiplied as, from the most to the least exact.

ieee: as float32. tf32x3: as the sum of two numbers of TF32, about float32's accuracy. tf32: as one,
rounded to nearest, with 10 bits of its fraction. In both finite numbers stay finite, however large;
infinities and NaN reach the products that they reach in float32; numbers below 2^-126 may count as
zero. A product of finite numbers that overflows float32 is infinite, or NaN in tf32x3.
"""

KERNEL_FOLDER = Path(__file__).parent / "kernels"

# Names in the device headers: of the types of elements, and of sums.
_ACCUMULATORS = {"fp32": "float", "fp16": "f16"}
ELEMENTS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "float"}


@dataclass(frozen=True)
class GemmProblem:
    """C (m, n) = A (m, k) B (k, n), as it lies in memory. Hashable.

    A and C are row-major with a row pitch. b_rows: "n" if B is stored as n rows of k (the
    transpose of a contiguous tensor), "k" if as k rows of n. aligned_a, aligned_b: every stored
    row starts at a multiple of 16 bytes. paired_c: every row of C starts at a multiple of two
    elements. near_rows: the stored rows of A, and those of B, start less than 2^24 bytes apart.
    accumulate: "fp32" or "fp16"; precision, for float32: the least exact of PRECISIONS to accept.
    """

    m: int
    n: int
    k: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    b_rows: str
    aligned_a: bool
    aligned_b: bool
    paired_c: bool
    accumulate: str = "fp32"
    precision: str = "ieee"
    near_rows: bool = True


@dataclass(frozen=True)
class KernelSpec:
    """One named variant of one family: static facts, and the one predicate of what it serves.

    source: file in kernels/. defines: macros without their prefix GEMM_, beside those that follow
    from the tile and the problem. accumulates: the types of sum it can form; precision: what its
    arithmetic is. b_rows: the storages of B that it reads. whole_tiles: it has no guards.
    near_rows: it computes addresses inside a tile, of at most 256 rows, in 32 bits.
    min_blocks: blocks that share a multiprocessor. rate: TFLOP/s that it reaches on an H200 with
    the GPU full, by which `choose` ranks.
    """

    name: str
    source: str
    tile: tuple[int, int, int]
    threads: int
    dtypes: tuple[torch.dtype, ...]
    accumulates: tuple[str, ...] = ("fp32",)
    precision: str = "ieee"
    b_rows: str = "kn"
    whole_tiles: bool = False
    near_rows: bool = False
    min_blocks: int = 1
    shared_bytes: int = 0
    min_capability: tuple[int, int] = (8, 0)
    max_capability: tuple[int, int] | None = None
    raster_group: int = 1
    rate: float = 1.0
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
        if problem.b_rows not in self.b_rows:
            return f"needs b stored as rows of {self.b_rows}, got rows of {problem.b_rows}"
        if self.near_rows and not problem.near_rows:
            return "needs rows of a and of b that start less than 2^24 bytes apart"
        if self.whole_tiles and not _whole(problem, self.tile):
            m, n, k = self.tile
            return (
                f"needs m, n, k that are multiples of {m}, {n}, {k} and rows that start at "
                f"multiples of 16 bytes"
            )
        if self.blocks(problem) >= 2**31:
            return f"has more blocks than a grid, {self.blocks(problem)}"
        return None

    def blocks(self, problem: GemmProblem) -> int:
        """Tiles of C: the length of the one-dimensional grid."""
        return -(-problem.m // self.tile[0]) * -(-problem.n // self.tile[1])

    def macros(self, problem: GemmProblem) -> dict[str, str]:
        """All macros of the source for `problem`, by full name."""
        block_m, block_n, block_k = self.tile
        values: dict[str, str | int | bool] = {
            "ELEMENT": ELEMENTS[problem.dtype],
            "OUTPUT": ELEMENTS[problem.out_dtype],
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "THREADS": self.threads,
            "MIN_BLOCKS": self.min_blocks,
            "ACCUMULATOR": _ACCUMULATORS[problem.accumulate],
            "RASTER_GROUP": self.raster_group,
            "B_ROWS_ARE_N": problem.b_rows == "n",
            "ALIGNED_A": problem.aligned_a,
            "ALIGNED_B": problem.aligned_b,
            "PAIRED_C": problem.paired_c,
            **self.defines,
        }
        return prefixed_macros("GEMM_", values)


def raster(block: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """(tile row, tile column) of a block: the twin of raster.cuh."""
    band = block // (group * tiles_n)
    first = band * group
    height = min(group, tiles_m - first)
    within = block - first * tiles_n
    return first + within % height, within // height


def _whole(problem: GemmProblem, tile: tuple[int, int, int]) -> bool:
    sizes = (problem.m, problem.n, problem.k)
    aligned = problem.aligned_a and problem.aligned_b
    return aligned and all(size % part == 0 for size, part in zip(sizes, tile, strict=True))


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
