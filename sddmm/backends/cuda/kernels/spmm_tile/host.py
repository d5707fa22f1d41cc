"""spmm_tile: products by dense tiles of weights, in half types and float32."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, replace
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
from sddmm.backends.cuda.kernels.spmm_tile.stripes import (
    Cut,
    Stripes,
    stripes_of,
    stripes_of_blocks,
)
from sddmm.backends.cuda.kernels.spmm_tile_sums import host as spmm_tile_sums
from sddmm.backends.cuda.kernels.spmm_tile_sums.host import FloatSums
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.products import ProductPlan
from sddmm.backends.cuda.spec import Layouts, macros
from sddmm.dtypes import DTYPES, HALF_DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.backends.cuda.facts import PatternFacts
    from sddmm.backends.cuda.layouts import Nonzeros
    from sddmm.problem import SpmmProblem
    from sddmm.sparse.indices import BlockSize


class Arguments(ctypes.Structure):
    """The parameters of spmm_tile/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("values", "factors", "dense", "out", "partial")),
        *((name, POINTER) for name in ("perm", "lines", "columns", "parts")),
        *((name, LONG) for name in ("head_values", "head_dense", "pitch_dense")),
        *((name, INT) for name in ("part_count", "slices", "slots", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


# The part of a tile's time that does not depend on the columns of X, on an H200. 48 columns take
# about as long as 64: threads load three elements one by one.
_ANY_WIDTH = 0.3


class ProductRate(NamedTuple):
    """The speed of a kernel on an H200, in microseconds.

    tile_us, part_us: by which a tile keeps a multiprocessor busy, however few nonzeros it has, and
    a part beside its tiles. step_us: from tile to tile of one block. start_us: the time to the
    first tile, beyond that of any launch, and from the last. unaligned: by how much longer tiles
    take if rows of X start at multiples of 4 bytes, and of 2, not of 16. full_us: by which a tile
    without zeros takes longer. all_full: the part of this time that tiles take where all are full.
    """

    tile_us: float
    step_us: float
    start_us: float
    unaligned: tuple[float, float]
    full_us: float = 0.0
    part_us: float = 0.0
    all_full: float = 1.0


class Slices(NamedTuple):
    """How the columns of X are cut: those of a slice, and the number of slices."""

    columns: int
    number: int


@dataclass(frozen=True, eq=False, kw_only=True)
class SpmmTile(FloatSums):
    """Serves products whose sums are float32.

    rate: its speed. cut: how rows of tiles are cut for blocks to compute. columns: those of X that
    a block multiplies at most, and step: a number that divides them. stages: the tiles of X in
    shared memory. float_weights: whether weights are float32 numbers, as values of float32 and
    products with factors are; else they are halves, as X.
    """

    rate: ProductRate
    cut: Cut
    columns: int
    step: int
    stages: int
    float_weights: bool

    @property
    def side(self) -> int:
        """The rows, and the columns, of a tile."""
        return self.tile[0]

    def slices_of(self, problem: SpmmProblem) -> Slices:
        """How the columns of X are cut: into as few slices as possible, all alike."""
        number = ceil_div(problem.k, self.columns)
        steps = ceil_div(problem.k, max(1, number) * self.step)
        return Slices(max(1, steps) * self.step, number)

    def refuses_but_tiles(self, problem: SpmmProblem, device: Device) -> str | None:
        reason = super().refuses_but_tiles(problem, device)
        if reason is not None:
            return reason
        has_halves = has_half_weights(problem)
        if not has_halves and not self.float_weights:
            return "has no bits for the products of two halves, nor for float32 values"
        if has_halves and self.float_weights:
            return "multiplies float32 weights, and these are halves"
        return None

    def refuses_blocks(
        self, problem: SpmmProblem, blocksize: BlockSize, device: Device
    ) -> str | None:
        """As `refuses`, for a block pattern, of which no tile without nonzeros is counted."""
        if blocksize[0] % self.side or blocksize[1] % self.side:
            bm, bn = blocksize
            return f"multiplies tiles of {self.side} rows and columns, and blocks are {bm}x{bn}"
        return self.refuses_but_tiles(problem, device)

    def cost_us(
        self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        counts = None if facts is None else facts.tiles(self.tile[:2])
        if facts is None or counts is None:
            return None
        in_order = facts.ascends or facts.ascends_by_column
        if not in_order or not (facts.distinct or facts.is_uniform):
            return None  # read through a permutation, or tile by tile of duplicates
        rate, tiles, sm_count = self.rate, counts.nonempty, model.device.sm_count
        columns, slices = self.slices_of(problem)
        replicas = slices * (problem.heads or 1)
        stripes = max(1, min(ceil_div(problem.m, self.side), tiles))
        limit = self.cut.limit(replicas * tiles, replicas * stripes, sm_count)
        parts, mean = replicas * max(stripes, tiles / limit), tiles / stripes
        positions = max(1, tiles * self.side**2)
        as_wide = 1 << (columns - 1).bit_length()
        width = _ANY_WIDTH + (1 - _ANY_WIDTH) * as_wide / self.columns
        tile_us = width * (rate.tile_us + rate.full_us * problem.nnz / positions)
        busy_us = replicas * tiles * tile_us + parts * rate.part_us
        run_us = max(min(limit, mean) * width * rate.step_us, busy_us / sm_count)
        if positions == problem.nnz:
            run_us *= rate.all_full
        run_us *= unaligned_factor(rate.unaligned, problem.k * problem.dtype.itemsize)
        launches = 2 if 2 * mean > limit else 1  # some are twice as long, and cut
        return Cost(
            launches * model.launch_us + rate.start_us + run_us,
            LIST_TILES_LAUNCHES * model.launch_us,
        )

    def prepare(
        self, layouts: Layouts, problem: SpmmProblem, model: DeviceModel
    ) -> tuple[ProductPlan, ...]:
        work, by_column = layouts.distinct_tiles((self.side, self.side))
        replicas = self.slices_of(problem).number * (problem.heads or 1)
        shape = problem.m, problem.n
        stripes = stripes_of(work, shape, by_column, replicas, self.cut, model.device)
        run = _Runner(self, stripes, work.perm, by_column, problem, model.device)
        return (ProductPlan(run, _accepts),)

    def prepare_blocks(
        self, blocks: Nonzeros, offsets: Tensor, blocksize: BlockSize, problem: SpmmProblem,
        by_column: bool, device: Device,
    ) -> ProductPlan:  # fmt: skip
        """The launches for blocks that are made of whole tiles; see `block_lines`."""
        replicas = self.slices_of(problem).number * (problem.heads or 1)
        stripes = stripes_of_blocks(
            blocks, offsets, blocksize, self.side, by_column, replicas, self.cut, device
        )
        return ProductPlan(_Runner(self, stripes, None, by_column, problem, device), _accepts)

    def load(
        self, problem: SpmmProblem, permuted: bool, by_column: bool, aligned: bool,
        device: Device, is_full: bool = False,
    ) -> Kernel:  # fmt: skip
        """The kernel for operands of a problem. aligned: all rows of X start at multiples of 16
        bytes; is_full: all tiles are full, and their lines do so too."""
        # Otherwise the compiler needs more registers.
        usual = device.capability == (9, 0) and aligned and not permuted
        min_blocks = self.min_blocks if usual else self.min_blocks // 2
        defines: dict[str, Any] = {
            "ELEMENT": DTYPES[problem.dtype].cpp_name,
            "VALUE": DTYPES[problem.values_dtype].cpp_name,
            "OUTPUT": DTYPES[problem.out_dtype].cpp_name,
            "COLUMNS": self.slices_of(problem).columns, "PRODUCT": product_of(problem, self.side),
            "FACTORS": problem.has_factors, "PERMUTED": permuted, "BY_COLUMN": by_column,
            "ALIGNED": aligned, "STAGES": self.stages, "FULL": is_full, "MIN_BLOCKS": min_blocks,
        }  # fmt: skip
        spec = _for_full_tiles(self) if is_full else self
        return loader.runtime.load_kernel(spec, macros(defines), Arguments, device.index)


@functools.cache
def _for_full_tiles(spec: SpmmTile) -> SpmmTile:
    """With memory for as many tiles of half weights as of X, and not for two."""
    more = (spec.stages - 2) * spec.side**2 * 2
    return replace(spec, shared_bytes=spec.shared_bytes + more)


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
        self._slices = slices = spec.slices_of(problem)
        self._blocks = stripes.parts.shape[0] * slices.number * (problem.heads or 1)
        self._has_full_tiles = (
            not spec.float_weights
            and perm is None
            and 0 < stripes.columns.numel() * spec.side**2 == problem.nnz
        )
        self._kernels: dict[tuple[bool, bool], Kernel] = {}
        self._sums = None
        if stripes.slots:
            self._sums = spmm_tile_sums.load(
                problem.out_dtype, slices.columns, device.index, spec.side
            )

    def _kernel(self, aligned: bool, is_full: bool) -> Kernel:
        kernel = self._kernels.get((aligned, is_full))
        if kernel is None:
            permuted = self._perm is not None
            self._kernels[aligned, is_full] = kernel = self._spec.load(
                self._problem, permuted, self._by_column, aligned, self._device, is_full
            )
        return kernel

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor
    ) -> None:
        problem, stripes, (columns, slices) = self._problem, self._stripes, self._slices
        heads = problem.heads or 1
        head_dense = dense.stride(0) if dense.dim() == 3 else 0
        pitch = row_pitch(dense)
        bits = dense.data_ptr() | (pitch | head_dense) * dense.element_size()
        partial = None
        if stripes.slots:
            count = heads * slices * stripes.slots * self._spec.side * columns
            what = "partial sums of rows of tiles"
            partial = new_memory(what, (count,), torch.float32, dense.device)
        # Where all tiles are full, all rows have multiples of a tile's columns, so that lines of
        # halves start at multiples of 16 bytes if the first does.
        head_values = values.stride(0) if values.dim() == 2 else 0
        is_full = self._has_full_tiles and (values.data_ptr() | 2 * head_values) % 16 == 0
        self._kernel(bits % 16 == 0, is_full)(
            self._blocks, values.data_ptr(), address(factors), dense.data_ptr(), out.data_ptr(),
            address(partial), address(self._perm), stripes.lines.data_ptr(),
            stripes.columns.data_ptr(), stripes.parts.data_ptr(),
            head_values, head_dense, pitch,
            stripes.parts.shape[0], slices, stripes.slots, problem.m, problem.n, problem.k, alpha,
        )  # fmt: skip
        if partial is not None and self._sums is not None:
            self._sums.add(partial, stripes.shared, slices, stripes.slots, alpha, out)


def _accepts(x: Tensor) -> bool:
    return rows_are_contiguous(x) and fits_32bit_offsets(x, row_pitch(x))


def has_half_weights(problem: SpmmProblem) -> bool:
    """Whether weights are halves as X; else they have more bits."""
    is_half = DTYPES[problem.dtype].is_half and problem.values_dtype == problem.dtype
    return is_half and not problem.has_factors


def product_of(problem: SpmmProblem, side: int) -> str:
    """How the kernel multiplies a tile without rounding a weight. Products of two bfloat16 may be
    subnormal floats, whose last bits no TF32 number holds."""
    if side < SIDE:
        return f"{'Half' if has_half_weights(problem) else 'Simt'}Product{side}"
    if has_half_weights(problem):
        return "HalfProduct"
    are_float16 = problem.values_dtype == problem.dtype == torch.float16
    return "Tf32Product" if are_float16 else "SimtProduct"


def spmm_tile(
    name: str, side: int, columns: int, stages: int, cut: Cut, rate: ProductRate,
    x_bytes: int = 2, weight_bytes: int = 2,
) -> SpmmTile:  # fmt: skip
    """A variant for tiles of `side` rows and columns, and so many columns of X at a time.

    Four warps multiply a tile of 64 rows, one a smaller one. x_bytes, weight_bytes: those of a
    number.
    """
    pitch = side + 4 if weight_bytes == 4 else side  # columns of float weights are padded
    step = columns  # others are cut by what the kernel multiplies at a time
    if weight_bytes == 4 and side < SIDE:
        step = 16
    elif weight_bytes == x_bytes == 4:
        step = 32
    by_warp = 12 if side > 16 else 20 if weight_bytes == 2 else 16  # as registers allow
    return SpmmTile(
        name=name,
        source="spmm_tile",
        dtypes=HALF_DTYPES if x_bytes == 2 else (torch.float32,),
        threads=128 if side == SIDE else 32,
        tile=(side, side, columns),
        shared_bytes=side * (2 * pitch * weight_bytes + stages * columns * x_bytes) + 16,
        min_blocks=cut.resident if side == SIDE else by_warp,
        rate=rate,
        cut=cut,
        columns=columns,
        step=step,
        stages=stages,
        float_weights=weight_bytes == 4,
    )


# Rates are measured on an H200 of 132 multiprocessors.
_FLOAT_RATE = ProductRate(2.05, 2.4, 6, (1.0, 1.0), full_us=0.4)
_RATE_16_32 = ProductRate(0.038, 0.45, 4, (1.15, 2.0), 0.012, part_us=0.15, all_full=0.36)
_RATE_16_64 = ProductRate(0.052, 0.5, 4, (1.35, 2.0), 0.035, part_us=0.25, all_full=0.32)
_RATE_32_64 = ProductRate(0.27, 0.7, 4, (1.35, 2.0), 0.08, part_us=0.4, all_full=0.3)
_RATE_16_FLOAT = ProductRate(0.135, 0.65, 4, (1.0, 1.0), 0.025, part_us=0.15)
SPMM_TILES = (
    spmm_tile(
        "spmm_tile_32", 64, 32, 3, Cut(3, 12, 4, 8),
        ProductRate(0.45, 0.8, 4, (1.35, 2.6), all_full=0.55),
    ),
    spmm_tile(
        "spmm_tile_64", 64, 64, 3, Cut(4, 12, 4, 8),
        ProductRate(0.7, 1.2, 4, (1.6, 2.6), all_full=0.8),
    ),
    spmm_tile(
        "spmm_tile_128", 64, 128, 3, Cut(3, 12, 3, 8),
        ProductRate(1.0, 1.8, 9, (1.6, 3.0), all_full=1.2),
    ),
    spmm_tile(
        "spmm_tile_exact_64", 64, 64, 3, Cut(2, 12, 3, 8), ProductRate(2.75, 5, 6, (1.0, 2.6)),
        weight_bytes=4,
    ),
    spmm_tile("spmm_tile_float_64", 64, 64, 2, Cut(2, 12, 3, 8), _FLOAT_RATE, 4, 4),
    spmm_tile("spmm_tile16_32", 16, 32, 3, Cut(6, 16, 12, 12), _RATE_16_32),
    spmm_tile("spmm_tile16_64", 16, 64, 3, Cut(6, 16, 12, 12), _RATE_16_64),
    spmm_tile("spmm_tile32_64", 32, 64, 3, Cut(4, 12, 6, 6), _RATE_32_64),
    spmm_tile("spmm_tile16_exact_64", 16, 64, 2, Cut(6, 16, 12, 8), _RATE_16_FLOAT, 2, 4),
    spmm_tile("spmm_tile16_float_64", 16, 64, 2, Cut(6, 16, 12, 8), _RATE_16_FLOAT, 4, 4),
)  # fmt: skip
