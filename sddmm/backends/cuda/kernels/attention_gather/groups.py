"""How the groups of lanes of attention's kernels load rows, and share the nonzeros of a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import ceil_div
from sddmm.backends.cuda.kernels.spmm_shares.host import SHARE_BYTES, share_rows
from sddmm.backends.cuda.layouts import Nonzeros, int32
from sddmm.errors import out_of_memory

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

# The bytes that a lane loads of a row at once, and the fewest and the most lanes that share a row:
# as many as nonzeros of a batch, and a warp.
_LANE_BYTES, _MAX_LANES = 16, 32
MAX_ROW_BYTES = 2 * _MAX_LANES * _LANE_BYTES
"""The longest row, which two loads of a lane hold."""
THREADS = 128
"""The threads of a block."""

# The nonzeros and rows of a warp beyond which warps come in several waves, the most waves, and the
# most bytes of the pieces of rows that warps cut.
_SHARE, _MAX_WAVES, _PIECE_BYTES = 512, 16, 2**25
# The fewest nonzeros and rows of a warp.
_MIN_SHARE = 64


@dataclass(frozen=True)
class Tuning:
    """What can be chosen freely, for each kernel; not yet measured on a GPU.

    batch: nonzeros of a group whose loads are in flight together. min_blocks: the blocks that
    share a multiprocessor, for rows that lanes load at once, by 16 bytes each. min_lanes: the
    fewest lanes of a group, at least `batch`.
    """

    batch: int = 4
    min_blocks: int = 4
    min_lanes: int = 4


class Groups(NamedTuple):
    """How a group of lanes loads rows: so many lanes, 16 bytes each, so many times for a row of d
    elements and for one of dv."""

    lanes: int
    key_chunks: int
    value_chunks: int

    @property
    def chunks(self) -> int:
        return max(self.key_chunks, self.value_chunks)


def groups_of(d: int, dv: int, itemsize: int, tuning: Tuning) -> Groups:
    """The fewest lanes that load the longer row at once, a warp if none do."""
    key, value = (max(1, ceil_div(size * itemsize, _LANE_BYTES)) for size in (d, dv))
    lanes = tuning.min_lanes
    while lanes < min(_MAX_LANES, max(key, value)):
        lanes *= 2
    return Groups(lanes, ceil_div(key, lanes), ceil_div(value, lanes))


def row_macros(
    d: int, dv: int, itemsize: int, step: int, tuning: Tuning, device: Device
) -> dict[str, int | bool]:
    """The macros by which kernels load rows that start and end at multiples of `step` bytes."""
    groups = groups_of(d, dv, itemsize, tuning)
    # Rows of two loads, loads of few bytes, and older GPUs' code need more registers.
    min_blocks = tuning.min_blocks // groups.chunks // (1 if step >= 8 else 2)
    if device.capability < (9, 0):
        min_blocks -= 1
    per_chunk = groups.lanes * _LANE_BYTES
    return {
        "LOAD_BYTES": step,
        "BATCH": tuning.batch,
        "MIN_BLOCKS": max(1, min_blocks),
        "LANES": groups.lanes,
        "KEY_CHUNKS": groups.key_chunks,
        "VALUE_CHUNKS": groups.value_chunks,
        "KEY_NO_TAIL": step == _LANE_BYTES and d * itemsize == groups.key_chunks * per_chunk,
        "VALUE_NO_TAIL": step == _LANE_BYTES and dv * itemsize == groups.value_chunks * per_chunk,
    }


def common_step(*multiples: int) -> int:
    """The largest power of two, up to 16, that divides all of these addresses and sizes."""
    bits = _LANE_BYTES
    for multiple in multiples:
        bits |= multiple
    return bits & -bits


class SharedRows(NamedTuple):
    """The nonzeros of a pattern and the shares of its warps; see SharedNonzeros (share_walk.cuh).

    slots: (number, 2) int32, and cut_rows: (cuts, 3) int32, where a row is cut; else None.
    pieces: the number of pieces that warps leave of cut rows, for each head.
    """

    nonzeros: Nonzeros
    shares: Tensor
    number: int
    slots: Tensor | None
    cut_rows: Tensor | None
    pieces: int

    @property
    def cuts(self) -> int:
        return 0 if self.cut_rows is None else self.cut_rows.shape[0]


def shared_rows(nonzeros: Nonzeros, m: int, share: int, device: Device) -> SharedRows:
    """Shares of so many nonzeros and rows, one for each warp, of nonzeros sorted by row."""
    rows = share_rows(nonzeros, m, 1, share, device)
    if not rows.has_cuts:
        return SharedRows(nonzeros, rows.shares, rows.blocks, None, None, 0)
    # The fields of RowShare (row_shares.cuh).
    begin = rows.shares.view(torch.int64).view(rows.blocks, SHARE_BYTES // 8)[:, 0]
    before, last, after = rows.shares.view(torch.int32).view(rows.blocks, -1)[:, 6:9].unbind(1)
    nnz = nonzeros.rows.numel()
    first_row = nonzeros.rows[begin.clamp(max=nnz - 1)]
    is_cut_before = (before >= 0) & (first_row == before) & (begin < nnz)
    is_cut_after = (last >= 0) & (last == after)
    begins = is_cut_after & ~(is_cut_before & (before == after))
    pieces = is_cut_before.long() + begins.long()
    slot = pieces.cumsum(0) - pieces
    slots = torch.stack([slot, slot + is_cut_before], dim=1)
    starts = slots[begins, 1]
    total = int(pieces.sum())
    lengths = torch.diff(starts, append=starts.new_tensor([total]))
    cut_rows = torch.stack([after[begins], starts, lengths], dim=1)
    return SharedRows(nonzeros, rows.shares, rows.blocks, int32(slots), int32(cut_rows), total)


def rows_by_warp(
    nonzeros: Nonzeros, problem: AttentionProblem, m: int, tuning: Tuning, device: Device
) -> SharedRows:
    """Shares of nonzeros sorted by row, or by column, of which there are m: as many as fill the GPU
    once, or a few times, with pieces of bounded size."""
    groups = groups_of(problem.d, problem.dv, problem.dtype.itemsize, tuning)
    chunks = groups.key_chunks + groups.value_chunks  # as many as a piece of any kernel has
    piece_bytes = 4 * groups.lanes * (2 + chunks * _LANE_BYTES // problem.dtype.itemsize)
    warps = device.sm_count * tuning.min_blocks * THREADS // 32
    total = problem.nnz + m
    waves = min(_MAX_WAVES, ceil_div(total * problem.heads, warps * _SHARE))
    most = _PIECE_BYTES // (2 * piece_bytes * problem.heads)
    shares = max(1, min(warps * waves // problem.heads, most))
    return shared_rows(nonzeros, m, max(_MIN_SHARE, ceil_div(total, shares)), device)


def new_pieces(problem: AttentionProblem, rows: SharedRows, piece_floats: int) -> Tensor | None:
    """Memory for the pieces of so many floats that warps leave of cut rows."""
    count = problem.heads * rows.pieces * piece_floats
    if count == 0:
        return None
    try:
        return torch.empty(count, dtype=torch.float32, device=problem.device)
    except torch.OutOfMemoryError as error:
        raise out_of_memory("pieces of rows", 4 * count, problem.device) from error


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
