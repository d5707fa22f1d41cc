"""How the groups of lanes of attention's kernels load rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.base import AttentionOperands

# The bytes that a lane loads of a row at once, and the fewest and the most lanes that share a row:
# as many as nonzeros of a batch, and a warp.
LANE_BYTES, _MAX_LANES = 16, 32
# The nonzeros of a row or column of which fewer are few for the gradients.
_FEW = 6
MAX_ROW_BYTES = 2 * _MAX_LANES * LANE_BYTES
"""The longest row, which two loads of a lane hold."""
THREADS = 128
"""The threads of a block."""


@dataclass(frozen=True)
class Tuning:
    """What can be chosen freely, for each kernel; the quickest of a dozen on an H200.

    batch: nonzeros of a group whose loads are in flight together. min_blocks: the blocks that
    share a multiprocessor, for rows that lanes load by one load of 16 bytes and by two. spared: the
    blocks fewer where a bias, dropout, or rows that end before a lane's load need registers.
    min_lanes: the fewest lanes of a group, a power of two, at least 4 and `batch`. one_load_lanes:
    the most lanes that a group has where each loads a row by one load; longer rows take two.
    """

    batch: int = 4
    min_blocks: tuple[int, int] = (4, 2)
    spared: int = 0
    min_lanes: int = 4
    one_load_lanes: int = _MAX_LANES


class Groups(NamedTuple):
    """How a group of lanes loads rows: so many lanes, 16 bytes each, so many times for a row of d
    elements and for one of dv."""

    lanes: int
    key_chunks: int
    value_chunks: int

    @property
    def chunks(self) -> int:
        return max(self.key_chunks, self.value_chunks)


@functools.lru_cache(maxsize=1024)
def groups_of(d: int, dv: int, itemsize: int, tuning: Tuning) -> Groups:
    """The fewest lanes, of those that the tuning allows, that load the longer row by one load, or
    by two where one takes too many lanes."""
    key, value = (max(1, ceil_div(size * itemsize, LANE_BYTES)) for size in (d, dv))
    lanes, needed = tuning.min_lanes, max(key, value)
    if needed > tuning.one_load_lanes:
        needed = ceil_div(needed, 2)
    while lanes < needed:
        lanes *= 2
    return Groups(lanes, ceil_div(key, lanes), ceil_div(value, lanes))


def has_few(nnz: int, lines: int) -> bool:
    """Whether so many rows or columns have few nonzeros on average."""
    return nnz < _FEW * lines


def heads_at_a_time(heads: int, nnz: int, most_nonzeros: int) -> int:
    """How many heads of nnz nonzeros come at a time, in parts about as large: as many as have so
    many nonzeros together, and at least one."""
    most = max(1, most_nonzeros // max(1, nnz))
    return max(1, ceil_div(heads, max(1, ceil_div(heads, most))))


def row_macros(
    d: int,
    dv: int,
    itemsize: int,
    step: int,
    tuning: Tuning,
    device: Device,
    bias_or_dropout: bool = False,
) -> dict[str, int | bool]:
    """The macros by which kernels load rows that start and end at multiples of `step` bytes."""
    groups = groups_of(d, dv, itemsize, tuning)
    per_chunk = groups.lanes * LANE_BYTES
    key_no_tail = step == LANE_BYTES and groups.key_chunks * per_chunk == d * itemsize
    value_no_tail = step == LANE_BYTES and groups.value_chunks * per_chunk == dv * itemsize
    # Rows of more loads, loads of few bytes, and older GPUs' code need more registers.
    min_blocks = tuning.min_blocks[groups.chunks - 1] // (1 if step >= 8 else 2)
    if bias_or_dropout or not (key_no_tail and value_no_tail):
        min_blocks -= tuning.spared
    if device.capability < (9, 0):
        min_blocks -= 1
    return {
        "LOAD_BYTES": step,
        "BATCH": tuning.batch,
        "MIN_BLOCKS": max(1, min_blocks),
        "LANES": groups.lanes,
        "KEY_CHUNKS": groups.key_chunks,
        "VALUE_CHUNKS": groups.value_chunks,
        "KEY_NO_TAIL": key_no_tail,
        "VALUE_NO_TAIL": value_no_tail,
    }


def common_step(*multiples: int) -> int:
    """The largest power of two, up to 16, that divides all of these addresses and sizes."""
    bits = LANE_BYTES
    for multiple in multiples:
        bits |= multiple
    return bits & -bits


def pitch_bytes(x: Tensor) -> int:
    """Bytes from row to row."""
    return x.stride(-2) * x.element_size()


def row_multiples(x: Tensor) -> tuple[int, int, int]:
    """The address of a tensor (heads, rows, columns), and the bytes from head to head and from row
    to row."""
    return x.data_ptr(), x.stride(0) * x.element_size(), pitch_bytes(x)


def head_stride(bias: Tensor | None) -> int:
    """Elements from head to head of a bias, 0 if all heads share it."""
    return bias.stride(0) if bias is not None and bias.dim() == 2 else 0


def has_bias_or_dropout(operands: AttentionOperands) -> bool:
    """Whether nonzeros have more than their columns: a bias, or a weight that may be dropped."""
    return operands.bias is not None or operands.dropout_p > 0


class Beyond(NamedTuple):
    """The last rows of K and of V where they stand elsewhere, see RowsBeyond in row_part.cuh; zeros
    where they do not. bits: of all addresses and pitches in bytes."""

    shifts: tuple[int, int]
    pitches: tuple[int, int]
    bits: int


NOT_BEYOND = Beyond((0, 0), (0, 0), 0)


def beyond_of(k: Tensor, v: Tensor, beyond: tuple[Tensor, Tensor] | None) -> Beyond:
    """beyond: the last rows of K and of V, (1, rows, columns); k and v: the first ones."""
    if beyond is None:
        return NOT_BEYOND
    addresses, pitches = zip(*((x.data_ptr(), pitch_bytes(x)) for x in beyond), strict=True)
    shift_k, shift_v = (
        address - first.shape[-2] * pitch - first.data_ptr()
        for first, address, pitch in zip((k, v), addresses, pitches, strict=True)
    )
    bits = addresses[0] | addresses[1] | pitches[0] | pitches[1]
    return Beyond((shift_k, shift_v), (pitches[0], pitches[1]), bits)
