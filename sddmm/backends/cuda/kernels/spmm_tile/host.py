"""spmm_tile: products by dense tiles of weights, in half types and float32."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.addressing import fits_32bit_offsets
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import (
    LIST_TILES_LAUNCHES,
    Cost,
    DeviceModel,
    unaligned_factor,
)
from sddmm.backends.cuda.executor import address, row_pitch, rows_are_contiguous
from sddmm.backends.cuda.kernels.spmm_tile.stripes import Stripes, part_limit, stripes_of
from sddmm.backends.cuda.kernels.spmm_tile_sums import host as spmm_tile_sums
from sddmm.backends.cuda.kernels.spmm_tile_sums.host import FloatSums
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.products import ProductPlan
from sddmm.backends.cuda.spec import Layouts, macros
from sddmm.dtypes import DTYPES, HALF_DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.backends.cuda.facts import PatternFacts
    from sddmm.problem import SpmmProblem


class Arguments(ctypes.Structure):
    """The parameters of spmm_tile/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("values", "factors", "dense", "out", "partial")),
        *((name, POINTER) for name in ("perm", "lines", "columns", "parts")),
        *((name, LONG) for name in ("head_values", "head_dense", "pitch_dense")),
        *((name, INT) for name in ("part_count", "slices", "slots", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


class ProductRate(NamedTuple):
    """The speed of a kernel on an H200, in microseconds.

    tile_us: by which a tile keeps a multiprocessor busy, however few nonzeros it has. step_us: from
    tile to tile of one block. start_us: the time to the first tile, beyond that of any launch, and
    from the last. unaligned: by how much longer tiles take if rows of X start at multiples of 4
    bytes, and of 2, not of 16. full_us: by which a tile without zeros takes longer.
    """

    tile_us: float
    step_us: float
    start_us: float
    unaligned: tuple[float, float]
    full_us: float = 0.0


@dataclass(frozen=True, eq=False)
class SpmmTile(FloatSums):
    """Serves products whose sums are float32.

    rate: None: the kernel serves on request only. columns: those of X that a block multiplies.
    stages: the tiles of X in shared memory. float_weights: whether weights are float32 numbers, as
    values of float32 and products with factors are; else they are halves, as X.
    """

    rate: ProductRate | None = None
    columns: int = 64
    stages: int = 3
    float_weights: bool = False

    def refuses(self, problem: SpmmProblem, device: Device) -> str | None:
        reason = super().refuses(problem, device)
        if reason is not None:
            return reason
        has_halves = product_of(problem) == "HalfProduct"
        if not has_halves and not self.float_weights:
            return "has no bits for the products of two halves, nor for float32 values"
        if has_halves and self.float_weights:
            return "multiplies float32 weights, and these are halves"
        return None

    def cost_us(
        self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        counts = None if facts is None or self.rate is None else facts.tiles(self.tile[:2])
        if facts is None or counts is None or self.rate is None:
            return None
        in_order = facts.ascends or facts.ascends_by_column
        if not in_order or not (facts.distinct or facts.is_uniform):
            return None  # read through a permutation, or tile by tile of duplicates
        tiles, sm_count = counts.nonempty, model.device.sm_count
        count = tiles * ceil_div(problem.k, self.columns) * (problem.heads or 1)
        stripes = max(1, min(ceil_div(problem.m, SIDE), tiles))
        steps = min(part_limit(count, model.device), tiles / stripes)
        tile_us = self.rate.tile_us + self.rate.full_us * problem.nnz / max(1, tiles * SIDE**2)
        run_us = max(steps * self.rate.step_us, count * tile_us / sm_count)
        run_us *= unaligned_factor(self.rate.unaligned, problem.k * problem.dtype.itemsize)
        return Cost(
            2 * model.launch_us + self.rate.start_us + run_us, LIST_TILES_LAUNCHES * model.launch_us
        )

    def prepare(
        self, layouts: Layouts, problem: SpmmProblem, model: DeviceModel
    ) -> tuple[ProductPlan, ...]:
        work, by_column = layouts.distinct_tiles((SIDE, SIDE))
        slices = ceil_div(problem.k, self.columns)
        replicas = slices * (problem.heads or 1)
        stripes = stripes_of(work, (problem.m, problem.n), by_column, replicas, model.device)
        run = _Runner(self, stripes, work.perm, by_column, problem, model.device)
        return (ProductPlan(run, _accepts),)

    def load(self, problem: SpmmProblem, permuted: bool, by_column: bool, aligned: bool,
             device: Device) -> Kernel:  # fmt: skip
        """The kernel for operands of a problem."""
        # Otherwise the compiler needs more registers.
        usual = device.capability == (9, 0) and aligned and not permuted
        min_blocks = self.min_blocks if usual else self.min_blocks // 2
        defines: dict[str, Any] = {
            "ELEMENT": DTYPES[problem.dtype].cpp_name,
            "VALUE": DTYPES[problem.values_dtype].cpp_name,
            "OUTPUT": DTYPES[problem.out_dtype].cpp_name,
            "COLUMNS": self.columns, "PRODUCT": product_of(problem), "FACTORS": problem.has_factors,
            "PERMUTED": permuted, "BY_COLUMN": by_column, "ALIGNED": aligned,
            "STAGES": self.stages, "MIN_BLOCKS": min_blocks,
        }  # fmt: skip
        return loader.runtime.load_kernel(self, macros(defines), Arguments, device.index)


class _Runner:
    """Runs the product on operands at any address."""

    def __init__(
        self,
        spec: SpmmTile,
        stripes: Stripes,
        perm: Tensor | None,
        by_column: bool,
        problem: SpmmProblem,
        device: Device,
    ) -> None:
        self._spec, self._stripes, self._perm = spec, stripes, perm
        self._problem, self._by_column, self._device = problem, by_column, device
        self._slices = ceil_div(problem.k, spec.columns)
        self._blocks = stripes.parts.shape[0] * self._slices * (problem.heads or 1)
        self._kernel = functools.lru_cache(maxsize=2)(self._load)
        self._sums = None
        if stripes.slots:
            self._sums = spmm_tile_sums.load(problem.out_dtype, spec.columns, device.index)

    def _load(self, aligned: bool) -> Kernel:
        permuted = self._perm is not None
        return self._spec.load(self._problem, permuted, self._by_column, aligned, self._device)

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        problem, stripes, slices = self._problem, self._stripes, self._slices
        heads = problem.heads or 1
        head_dense = dense.stride(0) if dense.dim() == 3 else 0
        pitch = row_pitch(dense)
        bits = dense.data_ptr() | (pitch | head_dense) * dense.element_size()
        partial = None
        if stripes.slots:
            count = heads * slices * stripes.slots * SIDE * self._spec.columns
            what = "partial sums of rows of tiles"
            partial = new_memory(what, (count,), torch.float32, dense.device)
        self._kernel(bits % 16 == 0)(
            self._blocks, values.data_ptr(), address(factors), dense.data_ptr(), out.data_ptr(),
            address(partial), address(self._perm), stripes.lines.data_ptr(),
            stripes.columns.data_ptr(), stripes.parts.data_ptr(),
            values.stride(0) if values.dim() == 2 else 0, head_dense, pitch,
            stripes.parts.shape[0], slices, stripes.slots, problem.m, problem.n, problem.k, alpha,
        )  # fmt: skip
        if partial is not None and self._sums is not None:
            spmm_tile_sums.add_sums(
                self._sums, self._spec.columns, partial, stripes.shared, slices, stripes.slots,
                alpha, out,
            )  # fmt: skip


def _accepts(x: Tensor) -> bool:
    return rows_are_contiguous(x) and fits_32bit_offsets(x, row_pitch(x))


def product_of(problem: SpmmProblem) -> str:
    """How the kernel multiplies a tile without rounding a weight. Products of two bfloat16 may be
    subnormal floats, whose last bits no TF32 number holds."""
    if not DTYPES[problem.dtype].is_half or problem.values_dtype != problem.dtype:
        return "SimtProduct"
    if not problem.has_factors:
        return "HalfProduct"
    return "Tf32Product" if problem.dtype == torch.float16 else "SimtProduct"


def spmm_tile(
    name: str,
    columns: int,
    stages: int,
    min_blocks: int,
    rate: ProductRate | None,
    x_bytes: int = 2,
    weight_bytes: int = 2,
) -> SpmmTile:
    """A variant for so many columns of X at a time. x_bytes, weight_bytes: those of a number."""
    pitch = SIDE + 4 if weight_bytes == 4 else SIDE  # columns of float weights are padded
    return SpmmTile(
        name=name,
        source="spmm_tile",
        dtypes=HALF_DTYPES if x_bytes == 2 else (torch.float32,),
        threads=128,
        tile=(SIDE, SIDE, columns),
        shared_bytes=SIDE * (2 * pitch * weight_bytes + stages * columns * x_bytes) + 16,
        min_blocks=min_blocks,
        rate=rate,
        columns=columns,
        stages=stages,
        float_weights=weight_bytes == 4,
    )


# Rates are measured on an H200 of 132 multiprocessors.
_FLOAT_RATE = ProductRate(2.05, 2.4, 6, (1.0, 1.0), full_us=0.6)
SPMM_TILES = (
    spmm_tile("spmm_tile_32", 32, 3, 4, ProductRate(0.58, 0.8, 6, (1.0, 2.6))),
    spmm_tile("spmm_tile_64", 64, 3, 4, ProductRate(0.74, 1.25, 6, (1.2, 2.6))),
    spmm_tile("spmm_tile_128", 128, 3, 3, ProductRate(1.1, 1.8, 6, (1.3, 3.0))),
    spmm_tile("spmm_tile_exact_64", 64, 3, 3, ProductRate(2.75, 5, 6, (1.0, 2.6)), weight_bytes=4),
    spmm_tile("spmm_tile_float_64", 64, 2, 3, _FLOAT_RATE, x_bytes=4, weight_bytes=4),
)
