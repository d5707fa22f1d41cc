"""gather_lines: gathers a line of the rows of many nonzeros before the next.

It pays most where few waves of warps compute a problem, as they then read the same lines together.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import KernelPlan, rows_are_contiguous
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.row_gather.costs import (
    LINES_GROUP,
    gather_slice,
    gather_us,
    has_several_rows,
    parts_per_nonzero,
)
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER, Arguments, RowGather, Variant
from sddmm.backends.cuda.kernels.row_gather.loads import LINE_BYTES, LINE_LANES
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, macros, type_macros
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The bytes of a chunk. Kernels count the chunks of an operand in 32 bits.
_CHUNK_BYTES = 16
_SPAN_BYTES = 2**32 * _CHUNK_BYTES
# The threads of a block, and the groups of lanes of a warp that load a line each.
_THREADS, _GROUPS_PER_WARP = 128, 32 // LINE_LANES
# The most nonzeros of a group.
_MOST_NONZEROS = 8
# The blocks that share a multiprocessor, and those that do where that saves one of few waves.
_BLOCKS, _MORE_BLOCKS, _FEW_WAVES = 6, 7, 5

# The time over that of row_gather where waves are few, fitted to an H200: at best; what latency
# adds, over the nonzeros of a group; where each nonzero is of a row of its own; where rows of the
# operands are shorter than so many bytes, to nothing, and by each wave; where they are of one line,
# and where they end within one. And the factor where a single wave leaves room for more.
_BEST, _LATENCY, _EVERY_ROW = 0.7, 0.66, 0.2
_LONG_BYTES, _SHORT_OPERANDS, _SHORT_WAVE = 1024, 0.09, 0.07
_ONE_LINE, _TAIL, _ONE_WAVE = 0.1, 0.08, 0.95
# The same where waves are many: where groups of row_gather are of several rows of the pattern, each
# of at most so many nonzeros and parts per nonzero, and rows of the operands have so many bytes or
# more; and where these have _LONG_BYTES or more.
_SHORT_PATTERN, _MOST_PER_ROW, _MOST_PARTS, _LEAST_BYTES = 0.87, 32, 0.75, 256
_LONG_OPERANDS = 0.97


class LaunchShape(NamedTuple):
    """How many blocks share a multiprocessor, in how many waves they run, and the nonzeros of a
    group of lanes."""

    blocks_per_sm: int
    waves: int
    nonzeros: int


class GatherLines(RowGather):
    """Serves rows that consist of chunks of 16 bytes."""

    span_bytes = _SPAN_BYTES

    def refuses_but_tiles(self, problem: SddmmProblem, device: Device) -> str | None:
        reason = super().refuses_but_tiles(problem, device)
        if reason is not None:
            return reason
        row_bytes = problem.k * problem.dtype.itemsize
        if row_bytes % _CHUNK_BYTES:
            return f"loads {_CHUNK_BYTES} bytes at a time, got rows of {row_bytes}"
        rows = max(problem.m, problem.n)
        if rows * row_bytes >= _SPAN_BYTES:
            return f"reads operands of less than 64 GiB, got {rows} rows of {row_bytes} bytes"
        return None

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> AnalysisRequest | None:
        waves = launch_shape(problem.nnz, problem.heads or 1, model.device).waves
        return ROW_IDS if waves <= _FEW_WAVES else None  # masks of many waves suit row_gather

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        parts = None if facts is None else parts_per_nonzero(facts, problem.nnz)
        gathering_us = gather_us(problem, problem.nnz, model, parts)
        return Cost(_time_over_row_gather(problem, parts, model.device) * gathering_us)

    def plan(self, nonzeros: Nonzeros, problem: SddmmProblem, device: Device) -> KernelPlan:
        plan = super().plan(nonzeros, problem, device)
        return plan._replace(accepts=_fits_32_bits)

    def variant(self, part: SddmmProblem, nnz: int, device: Device, step: int) -> Variant:
        if step < _CHUNK_BYTES:  # chunks begin elsewhere
            return ROW_GATHER.variant(part, nnz, device, step)
        return _specialise(loader.runtime, self, part, nnz, device)


def _time_over_row_gather(problem: SddmmProblem, parts: float | None, device: Device) -> float:
    """parts: as in gather_us."""
    shape = launch_shape(problem.nnz, problem.heads or 1, device)
    row_bytes = gather_slice(problem, problem.nnz, device) * problem.dtype.itemsize
    if shape.waves > _FEW_WAVES:
        return _time_of_many_waves(problem, parts, row_bytes)
    ratio = _BEST + _LATENCY / shape.nonzeros
    ratio += _EVERY_ROW * min(1.0, _MOST_NONZEROS * problem.m / max(1, problem.nnz))
    below_long = max(0.0, 1 - row_bytes / _LONG_BYTES)
    ratio += (_SHORT_OPERANDS + _SHORT_WAVE * shape.waves) * below_long
    ratio += _ONE_LINE * (row_bytes <= LINE_BYTES)
    ratio += _TAIL * (row_bytes % LINE_BYTES > 0)
    has_room = shape.waves == 1 and shape.blocks_per_sm == _BLOCKS
    return ratio * (_ONE_WAVE if has_room else 1.0)


def _time_of_many_waves(problem: SddmmProblem, parts: float | None, row_bytes: int) -> float:
    """The same; row_bytes: of the operands, or of a slice of theirs."""
    is_near = parts is not None and parts <= _MOST_PARTS
    rows = min(problem.m, problem.nnz)
    several_rows = has_several_rows(problem.nnz, rows, parts, LINES_GROUP)
    is_short = problem.nnz <= _MOST_PER_ROW * problem.m
    if is_near and several_rows and is_short and row_bytes >= _LEAST_BYTES:
        return _SHORT_PATTERN
    return _LONG_OPERANDS if row_bytes >= _LONG_BYTES else 1.0


def _fits_32_bits(x: Tensor) -> bool:
    """Whether rows are contiguous, and all of them lie within 64 GiB."""
    span = max(1, x.shape[-2]) * x.stride(-2) * x.element_size()
    return rows_are_contiguous(x) and span < _SPAN_BYTES


def launch_shape(nnz: int, heads: int, device: Device) -> LaunchShape:
    """The launch for so many nonzeros of each head."""

    def shape(blocks: int) -> LaunchShape:
        resident = device.sm_count * blocks * _THREADS // 32
        waves = max(1, ceil_div(warps(_MOST_NONZEROS), resident))
        fits = (n for n in range(1, _MOST_NONZEROS + 1) if warps(n) <= waves * resident)
        return LaunchShape(blocks, waves, next(fits))

    def warps(nonzeros: int) -> int:
        return heads * _warps_of_head(nnz, nonzeros)

    fewer, more = shape(_BLOCKS), shape(_MORE_BLOCKS)
    return more if more.waves < fewer.waves <= _FEW_WAVES else fewer


def _warps_of_head(nnz: int, nonzeros: int) -> int:
    return ceil_div(nnz, _GROUPS_PER_WARP * nonzeros)


@functools.lru_cache(maxsize=1024)
def _specialise(
    runtime: loader.CudaRuntime, spec: GatherLines, part: SddmmProblem, nnz: int, device: Device
) -> Variant:
    heads = part.heads or 1
    shape = launch_shape(nnz, heads, device)
    no_tail = part.k * part.dtype.itemsize % LINE_BYTES == 0
    kernel = _load(
        runtime, spec, part.dtype, part.out_dtype, device,
        shape.blocks_per_sm, shape.nonzeros, no_tail,
    )  # fmt: skip
    warps_per_head = _warps_of_head(nnz, shape.nonzeros)
    blocks = ceil_div(warps_per_head * heads, spec.threads // 32)
    return Variant(kernel, blocks, warps_per_head, _GROUPS_PER_WARP * shape.nonzeros)


@functools.lru_cache(maxsize=256)
def _load(
    runtime: loader.CudaRuntime,
    spec: GatherLines,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    blocks_per_sm: int,
    nonzeros: int,
    no_tail: bool,
) -> Kernel:
    values: dict[str, str | int | bool] = {
        **type_macros(dtype, out_dtype), "NONZEROS": nonzeros, "NO_TAIL": no_tail,
        "MIN_BLOCKS": blocks_per_sm,
    }  # fmt: skip
    return runtime.load_kernel(spec, macros(values), Arguments, device.index)


GATHER_LINES = GatherLines(
    "gather_lines", "gather_lines", tuple(dtype for dtype in DTYPES if not DTYPES[dtype].is_half),
    threads=_THREADS, max_nnz=2**63 - 1, min_k=1,
)  # fmt: skip
