"""spmm_tile: products by dense tiles of weights, in half types; weights may be more exact."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gemm_core.runtime.addressing import fits_32bit_offsets
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel, ceil_div
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import address, row_pitch, rows_are_contiguous
from sddmm.backends.cuda.kernels.spmm_tile.stripes import Stripes, stripes_of
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.products import ProductPlan
from sddmm.backends.cuda.spec import KernelSpec, Layouts, macros
from sddmm.dtypes import DTYPES, HALF_DTYPES, dtype_name

if TYPE_CHECKING:
    from sddmm.backends.cuda.facts import PatternFacts
    from sddmm.problem import SpmmProblem

_STAGES = 3


class Arguments(ctypes.Structure):
    """The parameters of spmm_tile/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("values", "factors", "dense", "out", "partial")),
        *((name, POINTER) for name in ("perm", "lines", "columns", "parts")),
        *((name, LONG) for name in ("head_values", "head_dense", "pitch_dense")),
        *((name, INT) for name in ("part_count", "slices", "slots", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


class SumsArguments(ctypes.Structure):
    """The parameters of spmm_tile_sums/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("partial", "out", "shared_rows")),
        *((name, INT) for name in ("shared_count", "slices", "slots", "m", "k")),
        ("alpha", DOUBLE),
    ]


SUMS = KernelSpec("spmm_tile_sums", "spmm_tile_sums", (), threads=128)


@dataclass(frozen=True, eq=False)
class SpmmTile(KernelSpec):
    """Serves half types whose sums are float32.

    columns: those of X that a block multiplies. exact_weights: whether weights are float32 numbers,
    as values of float32 or products with factors are; else they are of X's dtype.
    """

    columns: int = 64
    exact_weights: bool = False

    def refuses(self, problem: SpmmProblem, device: Device) -> str | None:
        reason = super().refuses(problem, device)
        if reason is not None:
            return reason
        if problem.values_dtype not in (problem.dtype, torch.float32):
            return (
                f"multiplies {dtype_name(problem.dtype)} by values of that dtype or float32, "
                f"not {dtype_name(problem.values_dtype)}"
            )
        needs_float = problem.has_factors or problem.values_dtype != problem.dtype
        if needs_float and not self.exact_weights:
            return "has no bits for the products of two halves, nor for float32 values"
        if self.exact_weights and not needs_float:
            return "splits float32 weights, and these are halves"
        return None

    def needs_ahead(self, problem: SpmmProblem, model: DeviceModel) -> None:
        return None

    def cost_us(
        self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        return None

    def prepare(
        self, layouts: Layouts, problem: SpmmProblem, model: DeviceModel
    ) -> tuple[ProductPlan, ...]:
        work, by_column = layouts.distinct_tiles((SIDE, SIDE))
        slices = ceil_div(problem.k, self.columns)
        replicas = slices * (problem.heads or 1)
        stripes = stripes_of(work, problem.m, by_column, replicas, model.device)
        run = _Runner(self, stripes, work.perm, by_column, problem, model.device)
        return (ProductPlan(run, _accepts),)

    def load(self, problem: SpmmProblem, permuted: bool, by_column: bool, aligned: bool,
             device: Device) -> Kernel:  # fmt: skip
        """The kernel for operands of a problem."""
        terms = 0
        if self.exact_weights:
            terms = 2 if problem.values_dtype == problem.dtype else 3
        # The compiler needs more registers before Hopper, and for a permutation.
        min_blocks = self.min_blocks - (permuted or device.capability < (9, 0))
        defines: dict[str, Any] = {
            "ELEMENT": DTYPES[problem.dtype].cpp_name,
            "VALUE": DTYPES[problem.values_dtype].cpp_name,
            "OUTPUT": DTYPES[problem.out_dtype].cpp_name,
            "COLUMNS": self.columns, "TERMS": terms, "FACTORS": problem.has_factors,
            "PERMUTED": permuted, "BY_COLUMN": by_column, "ALIGNED": aligned,
            "STAGES": _STAGES, "MIN_BLOCKS": min_blocks,
        }  # fmt: skip
        return loader.runtime.load_kernel(self, macros(defines), Arguments, device.index)

    def load_sums(self, problem: SpmmProblem, device: Device) -> Kernel:
        """The kernel that adds partial sums."""
        defines: dict[str, Any] = {
            "OUTPUT": DTYPES[problem.out_dtype].cpp_name, "COLUMNS": self.columns,
            "ROWS": 4 * SUMS.threads // self.columns,
        }  # fmt: skip
        return loader.runtime.load_kernel(SUMS, macros(defines), SumsArguments, device.index)


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
        self._sums = spec.load_sums(problem, device) if stripes.slots else None

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
            partial = torch.empty(count, dtype=torch.float32, device=dense.device)
        self._kernel(bits % 16 == 0)(
            self._blocks, values.data_ptr(), address(factors), dense.data_ptr(), out.data_ptr(),
            address(partial), address(self._perm), stripes.lines.data_ptr(),
            stripes.columns.data_ptr(), stripes.parts.data_ptr(),
            values.stride(0) if values.dim() == 2 else 0, head_dense, pitch,
            stripes.parts.shape[0], slices, stripes.slots, problem.m, problem.n, problem.k, alpha,
        )  # fmt: skip
        if partial is not None and self._sums is not None:
            shared = stripes.shared.shape[0]
            groups = SIDE * self._spec.columns // (4 * SUMS.threads)
            self._sums(
                shared * groups * slices * heads, partial.data_ptr(), out.data_ptr(),
                stripes.shared.data_ptr(), shared, slices, stripes.slots, problem.m, problem.k,
                alpha,
            )  # fmt: skip


def _accepts(x: Tensor) -> bool:
    return rows_are_contiguous(x) and fits_32bit_offsets(x, row_pitch(x))


def spmm_tile(columns: int, min_blocks: int, exact_weights: bool = False) -> SpmmTile:
    """A variant for so many columns of X at a time."""
    tile_bytes = SIDE * SIDE * (4 if exact_weights else 2)
    return SpmmTile(
        name=f"spmm_tile_{'exact_' if exact_weights else ''}{columns}",
        source="spmm_tile",
        dtypes=HALF_DTYPES,
        threads=128,
        tile=(SIDE, SIDE, columns),
        shared_bytes=2 * tile_bytes + _STAGES * SIDE * columns * 2 + 16,
        min_blocks=min_blocks,
        columns=columns,
        exact_weights=exact_weights,
    )


SPMM_TILES = (
    spmm_tile(64, min_blocks=4),
    spmm_tile(128, min_blocks=3),
    spmm_tile(64, min_blocks=3, exact_weights=True),
)
