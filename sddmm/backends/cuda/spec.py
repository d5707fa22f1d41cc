"""The protocol of GPU kernels, as the planner sees them, and the static facts of a kernel."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.compile import prefixed_macros
from gemm_core.runtime.device import Device, format_capability
from sddmm.dtypes import DTYPES, dtype_name, dtype_names, is_less_exact

if TYPE_CHECKING:
    from sddmm.backends.cuda.attention import AttentionPlan
    from sddmm.backends.cuda.cost_model import Cost, DeviceModel
    from sddmm.backends.cuda.executor import KernelPlan
    from sddmm.backends.cuda.facts import PatternFacts
    from sddmm.backends.cuda.layouts import Nonzeros, TileWork, WindowList
    from sddmm.backends.cuda.products import ProductPlan
    from sddmm.problem import AttentionProblem, Problem, SddmmProblem, SpmmProblem

# The type of an operator's problems, and of the launches that its kernels prepare.
P = TypeVar("P", bound="Problem", contravariant=True)
L = TypeVar("L", covariant=True)

KERNEL_FOLDER = Path(__file__).parent / "kernels"

_INT32 = 2**31
# Indices of nonzeros are 32 bits wide, and warps step a few groups past the last one.
MAX_NNZ = _INT32 - 2**12
# Above this, counting a pattern's nonzeros by tile takes too much memory; and the tiles of all
# heads are numbered in 32 bits.
_MAX_TILES = 2**28


class AnalysisRequest(NamedTuple):
    """A request for what one pass over a pattern collects beside the order of its nonzeros.

    block: rows and columns of a tile; the whole matrix if None. count_tiles: count the nonzeros of
    each tile. tile_row_offsets: collect where each row of every tile begins, in place of row ids
    unless `row_ids_too`.
    """

    block: tuple[int, int] | None = None
    count_tiles: bool = False
    tile_row_offsets: bool = False
    row_ids_too: bool = False

    def tile_count(self, shape: tuple[int, int]) -> int:
        """The number of tiles of a pattern of this shape, empty ones too."""
        if self.block is None:
            return 1 if shape[0] and shape[1] else 0
        return _count_tiles(shape, self.block)

    def offset_count(self, shape: tuple[int, int]) -> int:
        """The number of tile row offsets of a pattern of this shape."""
        block_m, block_n = (max(size, 1) for size in self.block or shape)
        return ceil_div(shape[0], block_m) * block_m * (ceil_div(shape[1], block_n) + 1)


ROW_IDS = AnalysisRequest()


class RowLayouts(Protocol):
    """The nonzeros of one pattern, which are all that some kernels read."""

    def by_row(self) -> Nonzeros:
        """The nonzeros in ascending order of their rows."""

    def windows(self, window: tuple[int, int]) -> WindowList:
        """The nonzeros by windows of so many rows and columns."""


class Layouts(RowLayouts, Protocol):
    """The arrays of one pattern that kernels read."""

    def tiles(self, block: tuple[int, int], min_nnz: int = 1) -> TileWork:
        """The tiles of this size that hold at least `min_nnz` nonzeros, and the nonzeros."""

    def distinct_tiles(self, block: tuple[int, int]) -> tuple[TileWork, bool]:
        """The non-empty tiles of this size, none with two nonzeros at one position, of the pattern
        or, where its nonzeros come by column, of its transpose; and whether of the transpose."""

    def outside_tiles(self, block: tuple[int, int], min_nnz: int) -> Nonzeros:
        """The nonzeros by row that are in no such tile."""

    def facts(self, count_tiles: bool = True) -> PatternFacts:
        """The facts of the pattern on which costs depend. count_tiles: else tiles have none."""


class OperatorKernel(Protocol[P, L]):
    """A kernel as the planner sees it; the planner knows no kernel by its name.

    P: the type of its operator's problems. L: the type of the launches that it prepares.
    """

    @property
    def name(self) -> str:
        """The name by which a caller may request this kernel."""

    @property
    def parts(self) -> tuple[OperatorKernel[P, L], ...]:
        """The kernels that this one is made of, if it has no source of its own."""

    def refuses(self, problem: P, device: Device) -> str | None:
        """None if this kernel computes `problem` on `device`, else the reason why not."""

    @property
    def tile_sizes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the tiles on whose counts its cost depends."""

    @property
    def needs_uniform(self) -> bool:
        """Whether it has a cost for uniform patterns alone, whatever else is counted."""

    def needs_ahead(self, problem: P, model: DeviceModel) -> AnalysisRequest | None:
        """What this kernel needs to be prepared while the analysis still runs; None if it cannot.

        Rows are then taken to ascend and, where tile row offsets are requested, columns within a
        row too; every tile is computed. What it launches meanwhile may read any indices: the
        analysis may find them out of range.
        """

    def cost_us(self, problem: P, facts: PatternFacts | None, model: DeviceModel) -> Cost | None:
        """The predicted microseconds of preparing this kernel and of running it.

        None without `facts` if it depends on them, and for a kernel that is never worth it.
        """

    def prepare(self, layouts: Layouts, problem: P, model: DeviceModel) -> tuple[L, ...]:
        """The launches that compute the problem, one after the other."""


GpuKernel: TypeAlias = "OperatorKernel[SddmmProblem, KernelPlan]"
"""A kernel of sddmm."""

ProductKernel: TypeAlias = "OperatorKernel[SpmmProblem, ProductPlan]"
"""A kernel of spmm."""

AttentionKernel: TypeAlias = "OperatorKernel[AttentionProblem, AttentionPlan]"
"""A kernel of sparse attention. `prepare` makes one plan."""


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """The static facts of one variant of a kernel; kernels of the registry derive from it.

    source: its folder in kernels/. precision: the arithmetic that it uses for float32. tile: rows
    and columns of a tile and elements of k at a time, for kernels that compute tiles. shared_bytes:
    dynamic, per block. min_blocks: blocks that share a multiprocessor. defines: macros without
    their prefix SDDMM_, beside those that follow from the problem. max_nnz: the most nonzeros that
    it can count. min_k, max_k: the least and the largest k that it computes. prefers_l1: whether
    rows that it loads may be found in L1 again, so that shared memory is to get no more than it
    needs.
    """

    name: str
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
    max_nnz: int = MAX_NNZ
    min_k: int = 0
    max_k: int | None = None
    prefers_l1: bool = False

    @property
    def path(self) -> Path:
        """The CUDA source."""
        return KERNEL_FOLDER / self.source / "kernel.cu"

    @property
    def parts(self) -> tuple[()]:
        return ()

    @property
    def tile_sizes(self) -> tuple[tuple[int, int], ...]:
        return (self.tile[:2],) if self.tile[0] else ()

    @property
    def needs_uniform(self) -> bool:
        return False

    def needs_ahead(self, problem: Any, model: DeviceModel) -> AnalysisRequest | None:
        """None: most kernels are prepared when the analysis is done."""
        return None

    def refuses(self, problem: Any, device: Device) -> str | None:
        """None if this kernel computes `problem` on `device`, else the reason why not.

        problem: one of the operator that the kernel is registered for; what all share is read.
        """
        reason = self.refuses_but_tiles(problem, device)
        if reason is not None or not self.tile[0]:
            return reason
        tiles = (problem.heads or 1) * _count_tiles((problem.m, problem.n), self.tile[:2])
        return f"counts at most {_MAX_TILES} tiles, got {tiles}" if tiles > _MAX_TILES else None

    def refuses_but_tiles(self, problem: Any, device: Device) -> str | None:
        """As `refuses`, however many tiles there are, empty ones too."""
        reason = refuses_kind(self, problem.dtype, problem.precision, device)
        if reason is not None:
            return reason
        if max(problem.m, problem.n, problem.k) >= _INT32:
            name = next(name for name in ("m", "n", "k") if getattr(problem, name) >= _INT32)
            return f"counts {name} in 32 bits, got {getattr(problem, name)}"
        if problem.k < self.min_k:
            return f"has nothing to multiply where k is {problem.k}"
        if self.max_k is not None and problem.k > self.max_k:
            return f"computes k of at most {self.max_k}, got {problem.k}"
        if problem.nnz > self.max_nnz:
            return f"counts at most {self.max_nnz} nonzeros, got {problem.nnz}"
        return None


@functools.lru_cache(maxsize=4096)
def refuses_kind(
    spec: KernelSpec, dtype: torch.dtype, precision: str, device: Device
) -> str | None:
    """The reason why a kernel computes no problem of this dtype and precision on a device. Cached,
    as every problem asks every kernel."""
    if device.capability < spec.min_capability:
        return f"needs compute capability {format_capability(spec.min_capability)}"
    if spec.max_capability is not None and device.capability > spec.max_capability:
        return f"is made of instructions that end with {format_capability(spec.max_capability)}"
    if spec.shared_bytes > device.shared_bytes:
        return f"needs {spec.shared_bytes} bytes of shared memory, has {device.shared_bytes}"
    if dtype not in spec.dtypes:
        return f"computes {dtype_names(spec.dtypes)}, not {dtype_name(dtype)}"
    if is_less_exact(spec.precision, precision):
        return f"computes with precision {spec.precision}, less than {precision}"
    return None


@functools.lru_cache(maxsize=4096)
def _count_tiles(shape: tuple[int, int], block: tuple[int, int]) -> int:
    """Cached, as every problem of a shape asks for the tiles of every kernel."""
    return ceil_div(shape[0], block[0]) * ceil_div(shape[1], block[1])


Macros = tuple[tuple[str, str], ...]
"""The macros of one specialisation of a kernel, as C++ spells them."""


def type_macros(dtype: torch.dtype, out_dtype: torch.dtype) -> dict[str, str]:
    """The macros of what every kernel reads and writes."""
    return {"ELEMENT": DTYPES[dtype].cpp_name, "OUTPUT": DTYPES[out_dtype].cpp_name}


def macros(values: Mapping[str, str | int | bool]) -> Macros:
    """Macros as C++ spells them, with this package's prefix."""
    return tuple(prefixed_macros("SDDMM_", values).items())
