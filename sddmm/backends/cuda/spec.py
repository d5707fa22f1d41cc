"""What is known of a GPU kernel before it runs: static facts, and what it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gemm_core.runtime.compile import prefixed_macros
from gemm_core.runtime.device import Device, format_capability
from sddmm.dtypes import dtype_name, dtype_names, is_less_exact
from sddmm.problem import Problem

KERNEL_FOLDER = Path(__file__).parent / "kernels"

_INT32 = 2**31
# Warps look a few chunks behind the last nonzero before they see that there is none.
_MOST_NONZEROS = _INT32 - 2**12
# Above this, counting a pattern's nonzeros by tile takes too much memory; and the tiles of all
# heads are numbered in 32 bits.
_MOST_TILES = 2**28


@dataclass(frozen=True)
class KernelSpec:
    """One named variant of a kernel.

    source: its folder in kernels/. precision: what its arithmetic is, for float32. tile: rows and
    columns of a tile and elements of k at a time, for kernels that compute tiles. shared_bytes:
    dynamic, per block. min_blocks: blocks that share a multiprocessor. defines: macros without
    their prefix SDDMM_, beside those that follow from the problem.
    """

    name: str
    family: str
    source: str
    dtypes: tuple[torch.dtype, ...]
    threads: int
    precision: str = "ieee"
    tile: tuple[int, int, int] = (0, 0, 0)
    shared_bytes: int = 0
    min_blocks: int = 1
    min_capability: tuple[int, int] = (8, 0)
    max_capability: tuple[int, int] | None = None
    defines: Mapping[str, str | int | bool] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def path(self) -> Path:
        """The CUDA source."""
        return KERNEL_FOLDER / self.source / "kernel.cu"

    def refuses(self, problem: Problem, device: Device) -> str | None:
        """None if this kernel computes `problem` on `device`, else why not."""
        if device.capability < self.min_capability:
            return f"needs compute capability {format_capability(self.min_capability)}"
        if self.max_capability is not None and device.capability > self.max_capability:
            return f"is made of instructions that end with {format_capability(self.max_capability)}"
        if self.shared_bytes > device.shared_bytes:
            return f"needs {self.shared_bytes} bytes of shared memory, has {device.shared_bytes}"
        if problem.dtype not in self.dtypes:
            return f"computes {dtype_names(self.dtypes)}, not {dtype_name(problem.dtype)}"
        if is_less_exact(self.precision, problem.precision):
            return f"computes with precision {self.precision}, less than {problem.precision}"
        for name in ("m", "n", "k"):
            if getattr(problem, name) >= _INT32:
                return f"counts {name} in 32 bits, got {getattr(problem, name)}"
        if self.family == "tile_tma" and problem.k == 0:
            return "has nothing to multiply where k is 0"
        if self.family != "gather" and problem.nnz > _MOST_NONZEROS:
            return f"counts at most {_MOST_NONZEROS} nonzeros, got {problem.nnz}"
        tiles = (problem.heads or 1) * self.tiles(problem.m, problem.n)
        if tiles > _MOST_TILES:
            return f"counts at most {_MOST_TILES} tiles, got {tiles}"
        return None

    def tiles(self, m: int, n: int) -> int:
        """Tiles of an m x n matrix, empty ones too; 0 for kernels that compute none."""
        block_m, block_n, _ = self.tile
        return -(-m // block_m) * -(-n // block_n) if block_m else 0


def macros(values: Mapping[str, str | int | bool]) -> tuple[tuple[str, str], ...]:
    """Macros as C++ spells them."""
    return tuple(prefixed_macros("SDDMM_", values).items())
