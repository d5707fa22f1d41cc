"""Adding the partial sums of several blocks, row of tiles by row of tiles."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES, dtype_name

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem


class Arguments(ctypes.Structure):
    """The parameters of spmm_tile_sums/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("partial", "out", "shared_rows")),
        *((name, INT) for name in ("shared_count", "slices", "slots", "m", "k")),
        ("alpha", DOUBLE),
    ]


class FloatSums(KernelSpec):
    """A kernel that leaves partial sums of a product, in float32, to be added here."""

    def refuses_but_tiles(self, problem: SpmmProblem, device: Device) -> str | None:
        reason = super().refuses_but_tiles(problem, device)
        if reason is None and problem.accumulator == torch.float64:
            return f"sums in float32, and values are {dtype_name(problem.values_dtype)}"
        return reason


SPMM_TILE_SUMS = KernelSpec("spmm_tile_sums", "spmm_tile_sums", (), threads=128)


class SlotSums(NamedTuple):
    """The kernel for slots of `side` rows, of which a block adds `rows`."""

    kernel: Kernel
    side: int
    rows: int

    def add(
        self, partial: Tensor, shared_rows: Tensor, slices: int, slots: int, alpha: float,
        out: Tensor,
    ) -> None:  # fmt: skip
        """Add the slots of each row of tiles, on torch's current stream, and store them times
        alpha.

        partial: (heads, slices, slots, side, columns) float32. shared_rows: (count, 4) int32, the
        first row, the first slot, the number of slots, and the slots from one to the next. out:
        contiguous ([heads,] m, k).
        """
        shared, (m, k) = shared_rows.shape[0], out.shape[-2:]
        heads = out.shape[0] if out.dim() == 3 else 1
        groups = self.side // self.rows
        self.kernel(  # in the order of Arguments
            shared * groups * slices * heads, partial.data_ptr(), out.data_ptr(),
            shared_rows.data_ptr(), shared, slices, slots, m, k, alpha,
        )  # fmt: skip


def load(out_dtype: torch.dtype, columns: int, device_index: int, side: int = SIDE) -> SlotSums:
    """What adds sums for results of this dtype, of slices of so many columns, a multiple of 16."""
    rows = min(side, 1 << (4 * SPMM_TILE_SUMS.threads // columns).bit_length() - 1)
    defines: dict[str, str | int | bool] = {
        "OUTPUT": DTYPES[out_dtype].cpp_name, "COLUMNS": columns, "ROWS": rows, "SIDE": side,
    }  # fmt: skip
    spec = _of_threads(rows * columns // 4)
    kernel = loader.runtime.load_kernel(spec, macros(defines), Arguments, device_index)
    return SlotSums(kernel, side, rows)


@functools.cache
def _of_threads(threads: int) -> KernelSpec:
    return replace(SPMM_TILE_SUMS, threads=threads)
