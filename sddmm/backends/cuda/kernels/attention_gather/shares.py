"""How the warps of attention's kernels share the nonzeros of a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    LANE_BYTES,
    THREADS,
    Tuning,
    groups_of,
    row_macros,
)
from sddmm.backends.cuda.kernels.spmm_shares.host import SHARE_BYTES, share_rows
from sddmm.backends.cuda.layouts import Nonzeros, int32
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

# The nonzeros and rows of a warp beyond which warps come in several waves, the most waves of a
# head, and the most bytes of the pieces of rows that warps cut. Shares are small, as warps that run
# at once have neighbouring rows then, which may have columns in common.
_SHARE, _MAX_WAVES, _PIECE_BYTES = 512, 16, 2**25
# The fewest nonzeros and rows of a warp.
_MIN_SHARE = 64


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
    piece_bytes = 4 * groups.lanes * (2 + chunks * LANE_BYTES // problem.dtype.itemsize)
    rows = row_macros(
        problem.d, problem.dv, problem.dtype.itemsize, LANE_BYTES, tuning, device,
        problem.has_bias or problem.has_dropout,
    )  # fmt: skip
    warps = device.sm_count * rows["MIN_BLOCKS"] * THREADS // 32
    heads, total = problem.heads, problem.nnz + m
    waves = min(_MAX_WAVES * heads, ceil_div(total * heads, warps * _SHARE))

    def shared(count: int) -> SharedRows:
        return shared_rows(nonzeros, m, max(_MIN_SHARE, ceil_div(total, max(1, count))), device)

    count = warps * waves // heads
    shares = shared(count)
    if shares.pieces * piece_bytes * heads > _PIECE_BYTES:  # a share leaves two at most
        shares = shared(min(count, _PIECE_BYTES // (2 * piece_bytes * heads)))
    return shares


def new_pieces(problem: AttentionProblem, rows: SharedRows, piece_floats: int) -> Tensor | None:
    """Memory for the pieces of so many floats that warps leave of cut rows."""
    count = problem.heads * rows.pieces * piece_floats
    if count == 0:
        return None
    return new_memory("pieces of rows", (count,), torch.float32, problem.device)
