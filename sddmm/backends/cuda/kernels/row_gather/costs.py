"""What gathering costs, and in how many slices of k it is done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gemm_core.arithmetic import ceil_div, loads_of_16_bytes
from sddmm.backends.cuda.kernels.row_gather.loads import (
    LEAST_PASS_BYTES,
    LINE_BYTES,
    SEGMENT_BYTES,
    by_lines,
)
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from gemm_core.runtime.device import Device
    from sddmm.backends.cuda.cost_model import DeviceModel
    from sddmm.backends.cuda.facts import PatternFacts
    from sddmm.problem import SddmmProblem

L2_FRACTION = 0.8
"""The fraction of L2 that operands can be expected to fill."""
# The bytes of a row that a warp reads at a time, and how often a row must be read before slices
# that stay in L2 pay.
_SLICE_BYTES, _MIN_REUSE = 512, 4


LINES_GROUP = 16
"""The nonzeros that a warp mostly computes at once where eight lanes load a row."""


class _Rates(NamedTuple):
    """What depends on the lanes that load a row; the times fitted to an H200."""

    # The time of the instructions that load a row of an operand, in picoseconds: of any row, and
    # of each 64 bytes, of half types and of others, which have fewer products.
    load_ps: float
    half_segment_ps: float
    segment_ps: float
    # Nonzeros that a warp mostly computes at once, of which those of several rows load rows of A
    # too, unless each row has a multiple of them, as with 32 nearest neighbours; and by how much
    # that lengthens them.
    group: int
    several_rows: float
    # See loads_from_l2; and by which part twice the bytes of _NEAR_BYTES increase these loads.
    l2_loads: tuple[float, float]
    beyond_l1: float
    # Whether a uniform pattern's loads find rows of B in L1 that the multiprocessor has loaded.
    l1_hits: bool


_L2_LOADS = 0.48, 1.7
_FOUR_LANES = _Rates(3.4, 4.5, 3.9, 32, 0.35, _L2_LOADS, 0.1, False)
_EIGHT_LANES = _Rates(2.8, 4.4, 4.1, LINES_GROUP, 0.42, (0.22, 0.86), 0.13, True)
# The power of the loads of 16 bytes by which these lengthen a row's; and the picoseconds by which a
# value of S lengthens a nonzero.
_MORE_LOADS, _VALUE_PS = 0.6, 1.3
# The parts per nonzero up to which rows are taken to be about equally long; the columns of a part;
# and the bytes of the rows of B that one row of the pattern reads, up to which its neighbours find
# them in L1.
_EVEN_PARTS, NEAR_COLUMNS, _NEAR_BYTES = 0.8, 64, 50e3
# What fits the loads that L1 saves on uniform patterns: the most nonzeros of a multiprocessor among
# which columns occur again, the most of a group, how many loads each saves, also where rows of the
# operands begin within lines, so that each load is of two, and the least part that is left.
_NEAR_NONZEROS, _MOST_OF_GROUP, _LEAST_FROM_L2 = 1500, 32, 0.75
_SAVED_BY_CHANCE, _SAVED_WITHIN_LINES = 1.2, 0.3
# By how much faster reading memory seems beside L2's loads; and the bytes that could be read in the
# time in which a row begins.
_MEMORY_OVERLAP, _ROW_START_BYTES = 2.8, 64


def parts_per_nonzero(facts: PatternFacts, nnz: int) -> float | None:
    """The `parts` of gather_us."""
    return None if facts.is_uniform else facts.row_parts(NEAR_COLUMNS) / max(1, nnz)


def loads_from_l2(parts: float, loads: tuple[float, float] = _L2_LOADS) -> float:
    """The part of the loads of rows that reach L2 where the nonzeros of a row are in so many
    non-empty parts, of NEAR_COLUMNS columns each, per nonzero. loads: that part where all of a
    row's are in one, and how much it grows with the parts."""
    base, scattered = loads
    return min(1.0, base + scattered * parts)


def gather_slice(problem: SddmmProblem, nnz: int, device: Device) -> int:
    """Elements of k to gather at a time: all, unless only a slice of the operands stays in L2."""
    row_bytes = problem.k * problem.dtype.itemsize
    rows = min(problem.n, nnz) + min(problem.m, nnz)
    reused = nnz >= _MIN_REUSE * rows
    if not reused or rows * row_bytes <= L2_FRACTION * device.l2_bytes:
        return problem.k
    slices = int(L2_FRACTION / 2 * device.l2_bytes) // rows // _SLICE_BYTES
    return min(problem.k, max(1, slices) * _SLICE_BYTES // problem.dtype.itemsize)


def gather_us(
    problem: SddmmProblem, nnz: int, model: DeviceModel, parts: float | None = None
) -> float:
    """Gathering so many of the problem's nonzeros.

    parts: the non-empty parts of rows, of NEAR_COLUMNS columns each, per nonzero; None where the
    pattern is uniform. Near nonzeros find rows of B in L1, so that instructions are the limit.
    """
    width = gather_slice(problem, nnz, model.device)
    slices = ceil_div(problem.k, width) if width else 1
    heads, row_bytes = problem.heads or 1, problem.k * problem.dtype.itemsize
    segments = ceil_div(row_bytes, SEGMENT_BYTES)
    rows, columns = min(problem.m, nnz), min(problem.n, nnz)
    loads = loads_of_16_bytes(row_bytes)
    rates = _EIGHT_LANES if by_lines(row_bytes, 16 // loads) else _FOUR_LANES
    from_l2 = _loads_from_l2(problem, nnz, parts, rates, model.device)
    segment_ps = rates.half_segment_ps if DTYPES[problem.dtype].is_half else rates.segment_ps
    if row_bytes <= LEAST_PASS_BYTES:
        loads = ceil_div(loads, 2)  # a lane's chunk has 8 bytes
    row_ps = (rates.load_ps + segment_ps * segments) * math.pow(loads, _MORE_LOADS)
    loads_of_rows: float = nnz + rows
    if has_several_rows(nnz, rows, parts, rates.group):
        loads_of_rows += rates.several_rows * min(nnz, (rates.group - 1) * rows)
    instructions_us = 1e-6 * loads_of_rows * row_ps / model.stores
    l2_us = 1e6 * (nnz * from_l2 + rows) * segments * SEGMENT_BYTES / model.l2_bytes
    from_memory = (rows + columns) * (row_bytes + _ROW_START_BYTES)
    if parts is None and slices == 1:  # rows of B that L2 has no room for come from memory
        missed = 1 - min(1.0, L2_FRACTION * model.device.l2_bytes / max(1, columns * row_bytes))
        from_memory += round(missed * (nnz - columns) * max(row_bytes, LINE_BYTES))
    from_memory += nnz * problem.out_dtype.itemsize + 8 * nnz * (slices - 1)
    memory_us = 1e6 * (heads * from_memory + 8 * nnz) / (_MEMORY_OVERLAP * model.memory_bytes)
    values_us = 1e-6 * nnz * _VALUE_PS / model.stores if problem.scaled else 0.0
    return slices * model.launch_us + heads * (max(instructions_us, l2_us) + values_us) + memory_us


def has_several_rows(nnz: int, rows: int, parts: float | None, group: int) -> bool:
    """Whether groups of so many nonzeros are of several rows, all about as long; they are not where
    each row can have a multiple of a group."""
    return parts is not None and parts <= _EVEN_PARTS and nnz % (group * max(1, rows)) > 0


def _loads_from_l2(
    problem: SddmmProblem, nnz: int, parts: float | None, rates: _Rates, device: Device
) -> float:
    """The part of the loads of rows of B that reach L2."""
    rows, row_bytes = max(1, min(problem.m, nnz)), problem.k * problem.dtype.itemsize
    if parts is not None:
        beyond_l1 = math.log2(max(1.0, nnz * row_bytes / (rows * _NEAR_BYTES)))
        near = loads_from_l2(parts, rates.l2_loads)
        return min(1.0, near * (1 + rates.beyond_l1 * beyond_l1))
    if not rates.l1_hits or nnz == 0:
        return 1.0
    # By chance some of a multiprocessor's nonzeros are in the same columns. Groups of several rows,
    # which load rows of A too, gain nothing by it.
    near_nnz, columns = min(nnz / device.sm_count, _NEAR_NONZEROS), max(1, problem.n)
    distinct = columns * -math.expm1(-near_nnz / columns) / near_nnz
    of_one_row = max(0.0, 1 - (_MOST_OF_GROUP - 1) * rows / nnz)
    saved = _SAVED_WITHIN_LINES if row_bytes % LINE_BYTES else _SAVED_BY_CHANCE
    return max(_LEAST_FROM_L2, 1 - saved * (1 - distinct) * of_one_row)
