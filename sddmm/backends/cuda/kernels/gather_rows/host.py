"""gather_rows: every warp has a row of a CSR pattern, and the pattern is checked meanwhile."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER, gather_macros
from sddmm.backends.cuda.kernels.row_gather.loads import (
    LINE_BYTES,
    LINE_LANES,
    LONGEST_PASS,
    SEGMENT_BYTES,
)
from sddmm.backends.cuda.spec import KernelSpec, Macros, macros
from sddmm.dtypes import DTYPES, INDEX_DTYPES
from sddmm.problem import without_sizes

if TYPE_CHECKING:
    from sddmm.backends.cuda.cost_model import DeviceModel
    from sddmm.problem import SddmmProblem

# The mean nonzeros of a row from which on rows are long: a warp has enough to do in one. And the
# same where there are so few waves of rows: each warp begins late by what its first loads take.
LONG_ROW = 64
_LONG_ROW_OF_FEW, _FEW_WAVES = 32, 3

# The warps that a multiprocessor holds. From nearly a wave of rows on, each warp takes a whole one;
# where there are fewer rows, warps take turns in one, so that all are near the same columns. Rows
# of a pattern as dense as this may be of a mask, some twice as long as others, which two waves
# even out.
_WARPS_PER_SM, _WAVE = 16, 0.9
_DENSE, _DENSE_WAVES = 0.1, 1.8
# A row is cut where it is so many times as long as the mean one, and has so many nonzeros, which is
# the least length of a piece too. Pieces are so much shorter than such rows, as the last of them
# would else end long after all others.
_CUT_ROW, _LEAST_CUT, _MOST_CUT, _CUTS = 2, 512, 2**30, 4
# The indices that a thread checks at once.
_CHECKED_PER_THREAD = 8
# The time of a nonzero of a mask, on an H200, in picoseconds: of any, and for 64 bytes of its rows:
# short ones, long ones of half types, of which registers hold fewer, and of other types.
_NONZERO_PS, _SHORT_SEGMENTS = 7.5, 4
_SHORT_PS, _LONG_HALF_PS, _LONG_PS = 2.7, 4.5, 3.8
# The bytes of rows that sixteen lanes load in one pass: 8,000 x 8,375 with 10 % in float32 took 514
# us so on an H200, and 572 in passes of 256 bytes.
_WHOLE_ROW = 1024
# The part of the first that each further head takes, as it finds the columns in L2.
_FURTHER_HEAD = 0.8


class Arguments(ctypes.Structure):
    """The parameters of gather_rows/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "partial_sums", "out")),
        *((name, POINTER) for name in ("crow_indices", "col_indices")),
        *((name, POINTER) for name in ("state", "next_state", "result")),
        *((name, LONG) for name in ("nnz", "pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("warps_per_piece", "pieces", "longest", "cut", "checkers")),
        *((name, INT) for name in ("heads", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


GATHER_ROWS = KernelSpec("gather_rows", "gather_rows", tuple(DTYPES), threads=128, min_blocks=4)


class Pieces(NamedTuple):
    """How the rows of a problem are divided among warps: the warps that take turns in a piece of a
    row, the pieces of a head, the length up to which a row is one piece, and the nonzeros at
    multiples of which others are cut."""

    warps_per_piece: int
    pieces: int
    longest: int
    cut: int


def serves(problem: SddmmProblem, device: Device, is_csr: bool, is_kept: bool) -> bool:
    """Whether patterns of this problem are gathered by rows, if they are gathered. is_kept: whether
    they are kept for later plans, which read an analysis."""
    if not is_csr or is_kept:
        return False
    waves = problem.m * (problem.heads or 1) / (_WARPS_PER_SM * device.sm_count)
    long_row = min(LONG_ROW, _LONG_ROW_OF_FEW) if waves <= _FEW_WAVES else LONG_ROW
    return problem.nnz >= long_row * problem.m


def mask_us(problem: SddmmProblem, model: DeviceModel) -> float:
    """The predicted time where neighbouring rows have the same columns."""
    segments = ceil_div(problem.k * problem.dtype.itemsize, SEGMENT_BYTES)
    segment_ps = _LONG_HALF_PS if DTYPES[problem.dtype].is_half else _LONG_PS
    if segments <= _SHORT_SEGMENTS:
        segment_ps = _SHORT_PS
    heads = problem.heads or 1
    nonzero_ps = _NONZERO_PS * (1 + _FURTHER_HEAD * (heads - 1)) + heads * segment_ps * segments
    return 1e-6 * problem.nnz * nonzero_ps / model.stores


def pieces_of(problem: SddmmProblem, device: Device) -> Pieces:
    """The pieces of a problem of long rows. Their warps are numbered in 32 bits: the values of more
    of them fill no GPU."""
    m, nnz, heads = problem.m, problem.nnz, problem.heads or 1
    waves = _DENSE_WAVES if nnz >= _DENSE * m * problem.n else _WAVE
    warps = 1
    while warps * m * heads < waves * _WARPS_PER_SM * device.sm_count and 32 * warps * m < nnz:
        warps *= 2
    longest = _LEAST_CUT
    while longest < min(_CUT_ROW * nnz / m, _MOST_CUT):
        longest *= 2
    cut = max(_LEAST_CUT, longest // _CUTS)
    return Pieces(warps, m + ceil_div(nnz, cut) - 1, longest, cut)


class Variant(NamedTuple):
    """One specialisation of the kernel, its number of blocks that gather, and of those that check
    the indices, if a launch does: as many as run at once, or fewer."""

    kernel: Kernel
    blocks: int
    checkers: int


def specialise(problem: SddmmProblem, pieces: Pieces, device: Device, step: int) -> Variant:
    """The kernel for operands whose rows start at multiples of `step` bytes."""
    kernel = _load(loader.runtime, without_sizes(problem), device, step)
    warps = pieces.warps_per_piece * pieces.pieces * (problem.heads or 1)
    blocks = ceil_div(warps, GATHER_ROWS.threads // 32)
    checkers = ceil_div(problem.nnz, GATHER_ROWS.threads * _CHECKED_PER_THREAD)
    return Variant(kernel, blocks, min(checkers, GATHER_ROWS.min_blocks * device.sm_count))


@functools.lru_cache(maxsize=1024)
def _load(runtime: loader.CudaRuntime, problem: SddmmProblem, device: Device, step: int) -> Kernel:
    return runtime.load_kernel(GATHER_ROWS, macros_of(problem, step), Arguments, device.index)


def macros_of(problem: SddmmProblem, step: int) -> Macros:
    """The macros of gather_rows: those of row_gather for long rows, as far as these suit rows of B
    that are often found in L1; and the type of indices."""
    k, dtype = problem.k, problem.dtype
    defines, _ = gather_macros(
        ROW_GATHER, k, dtype, problem.out_dtype, step, long_rows=True, several_waves=True
    )
    defines["INDEX"] = INDEX_DTYPES[problem.index_dtype]
    row_bytes, is_half = k * dtype.itemsize, DTYPES[dtype].is_half
    if step < 16 or row_bytes % LINE_BYTES or row_bytes <= LONGEST_PASS:
        return macros(defines)
    # Parts of more rows rather than whole rows: what a warp loads, others find soon after.
    defines |= {"LANES": LINE_LANES, "BATCHES": 8, "ONE_PASS": False, "NO_TAIL": True}
    defines |= {"PASS_BYTES": LINE_BYTES if is_half or row_bytes % 256 else 256}
    if row_bytes == _WHOLE_ROW:
        defines |= {"LANES": 16, "BATCHES": 4, "PASS_BYTES": _WHOLE_ROW, "ONE_PASS": True}
    return macros(defines)
