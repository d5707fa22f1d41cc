"""spmm_rows: products of patterns whose rows are all short.

Each row has a group of lanes, so that nothing must be searched or merged; but a long row would keep
its group busy when all others are done.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.base import Addend
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.product_rows import (
    LANE_BYTES,
    Access,
    RowAddresses,
    row_macros,
    slices_of,
)
from sddmm.backends.cuda.kernels.row_starts.host import starts_of_short_rows
from sddmm.backends.cuda.kernels.spmm_gather.ordering import weights_as_stored
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.products import Run
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES
from sddmm.problem import without_sizes

if TYPE_CHECKING:
    from sddmm.problem import SpmmProblem

MEAN_OF_SHORT = 16
"""The most nonzeros of a row, in the mean, where all may be short."""

# A group of lanes for each short row pays, on an H200, if the groups that run at a time take at
# most _FEW_TURNS; or if a row of X has at most _FEW_LANES lanes, rows have _LEAST_MEAN nonzeros in
# the mean, and weights are in S's order or those of one head.
_LEAST_MEAN, _FEW_TURNS, _FEW_LANES = 2, 3, 8
# The most nonzeros and rows that the kernel counts, by int: it counts a little further.
_MOST = 2**30
# The nonzeros of a group whose loads are in flight together.
_BATCH = 4


class Arguments(ctypes.Structure):
    """The parameters of spmm_rows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("dense", "beyond", "values", "factors", "out")),
        *((name, POINTER) for name in ("offsets", "cols", "perm")),
        *((name, LONG) for name in ("head_dense", "head_values", "head_out")),
        *((name, INT) for name in ("pitch_bytes", "pitch_beyond", "first_beyond")),
        *((name, INT) for name in ("m", "slices", "k", "own_blocks")),
        ("alpha", DOUBLE),
        *((name, POINTER) for name in ("addend", "out_rows")),
    ]


SPMM_ROWS = KernelSpec("spmm_rows", "spmm_rows", tuple(DTYPES), threads=128, min_blocks=8)


def launcher_of_short_rows(
    problem: SpmmProblem, nonzeros: Nonzeros, longest: int, device: Device
) -> Run | None:
    """What launches a product of nonzeros that are sorted by row; None unless that is worth it,
    and no row has more than `longest` nonzeros.

    May run before the analysis has checked the rows, as `starts_of_short_rows`.
    """
    if longest == 0 or not is_worth_it(problem, nonzeros.perm is not None, device):
        return None
    offsets = starts_of_short_rows(nonzeros.rows, problem.m, longest, device.index)
    return None if offsets is None else _Launcher(problem, nonzeros, offsets, device).run


def is_worth_it(problem: SpmmProblem, has_perm: bool, device: Device) -> bool:
    """Whether a group for each row takes less time than equal shares of nonzeros, if no row is
    long. Counts the groups of the variant of which most run at a time."""
    if problem.nnz > min(MEAN_OF_SHORT * problem.m, _MOST) or problem.m > _MOST:
        return False
    lanes, _, slices = slices_of(problem)
    at_once = device.sm_count * SPMM_ROWS.min_blocks * SPMM_ROWS.threads // lanes
    if problem.m * slices * (problem.heads or 1) <= _FEW_TURNS * at_once:
        return True
    reads_few = not has_perm or (problem.heads or 1) == 1
    return lanes <= _FEW_LANES and problem.nnz >= _LEAST_MEAN * problem.m and reads_few


class _Launcher:
    """Launches the kernel over fixed nonzeros."""

    def __init__(
        self, problem: SpmmProblem, nonzeros: Nonzeros, offsets: Tensor, device: Device
    ) -> None:
        self._problem, self._nonzeros, self._offsets = problem, nonzeros, offsets
        self._device = device
        slices = slices_of(problem)
        self._slices = slices.number
        self._parts = slices.number * (problem.heads or 1)
        self._blocks = ceil_div(problem.m, SPMM_ROWS.threads // slices.lanes)
        # Found again by the access at once: a problem takes long to hash.
        self._kernels: dict[Access, Kernel] = {}

    def run(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None, addend: Addend | None = None,
    ) -> None:  # fmt: skip
        """Launch on torch's current stream."""
        problem, nonzeros = self._problem, self._nonzeros
        at = RowAddresses.of(problem, dense, out, beyond, addend)
        kernel = self._kernels.get(at.access) or self._new_kernel(at.access)
        weights = weights_as_stored(values, factors, nonzeros.perm)
        # As many as run at a time; each goes on to further rows.
        blocks = min(self._blocks, self._device.sm_count * kernel.blocks_per_sm)
        kernel(  # in the order of Arguments
            blocks * self._parts, at.dense, at.beyond, weights.address, weights.factors,
            at.out, self._offsets.data_ptr(), nonzeros.cols.data_ptr(), weights.perm,
            at.head_dense, weights.head_stride, problem.m * problem.k,
            at.pitch_bytes, at.pitch_beyond, dense.shape[-2], problem.m, self._slices,
            problem.k, blocks, alpha, at.addend, at.out_rows,
        )  # fmt: skip

    def _new_kernel(self, access: Access) -> Kernel:
        kernel = load(
            loader.runtime, without_sizes(self._problem), access, self._nonzeros.perm is not None,
            self._device,
        )  # fmt: skip
        self._kernels[access] = kernel
        return kernel


@functools.lru_cache(maxsize=1024)
def load(
    runtime: loader.CudaRuntime,
    problem: SpmmProblem,
    access: Access,
    has_perm: bool,
    device: Device,
) -> Kernel:
    """The kernel. Cached by what the compiler is told: patterns of many sizes have the same."""
    # The others need more registers: of so many blocks a multiprocessor none spills.
    has_few_sums = problem.accumulator == torch.float32
    needs_few = device.capability >= (9, 0) and access == (LANE_BYTES, LANE_BYTES, False, False)
    needs_few = needs_few and has_few_sums and not problem.has_factors
    min_blocks = SPMM_ROWS.min_blocks if needs_few else 6 if has_few_sums else 4
    own = {**row_macros(problem, access, has_perm), "BATCH": _BATCH, "MIN_BLOCKS": min_blocks}
    return runtime.load_kernel(SPMM_ROWS, macros(own), Arguments, device.index)
