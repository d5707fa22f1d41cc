"""How the warps of attention's kernels share the nonzeros of a pattern."""

from __future__ import annotations

import functools
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
from sddmm.backends.cuda.kernels.spmm_shares.host import RowShares, share_rows
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

# The most waves of warps of a head, and the most bytes of the pieces of rows that warps cut.
_MAX_WAVES, _PIECE_BYTES = 16, 2**25
# How many nonzeros and rows a warp has at least, and how many about where warps come in several
# waves: as many as so many rows of the pattern have on average, but within these limits. Small
# shares give warps that run at once neighbouring rows, which may have columns in common. But a
# share's end moves to the end of a row only if that is near (spmm_shares): shares grow with rows.
_LEAST_ROWS, _LEAST_SHARES = 5, (32, 64)
_USUAL_ROWS, _USUAL_SHARES = 2.5, (512, 1024)


class SharedRows(NamedTuple):
    """The nonzeros of a pattern by row, and the shares of its warps (SharedNonzeros of
    share_walk.cuh)."""

    nonzeros: Nonzeros
    shares: RowShares

    @property
    def number(self) -> int:
        """The number of shares, one for each warp."""
        return self.shares.blocks

    @property
    def cuts(self) -> int:
        """The number of rows that warps cut."""
        return self.shares.cuts

    @property
    def pieces(self) -> int:
        """The number of pieces that warps leave of cut rows, for each head."""
        return self.shares.pieces


def rows_by_warp(
    nonzeros: Nonzeros, problem: AttentionProblem, m: int, tuning: Tuning, device: Device
) -> SharedRows:
    """Shares of nonzeros sorted by row, or by column, of which there are m: as many as fill the GPU
    once, or a few times, with pieces of bounded size."""
    sizes = _sizes_of(problem, m, tuning, device)

    def shared(share: int) -> RowShares:
        return share_rows(nonzeros, m, 1, share, device, lists_cut_rows=True)

    shares = shared(sizes.share)
    if shares.pieces > sizes.most_pieces:
        shares = shared(sizes.large_share)
    return SharedRows(nonzeros, shares)


class _Sizes(NamedTuple):
    """The nonzeros and rows of a share; and where such shares have more than `most_pieces`, those
    of a share that leave fewer."""

    share: int
    most_pieces: int
    large_share: int


@functools.lru_cache(maxsize=1024)
def _sizes_of(problem: AttentionProblem, m: int, tuning: Tuning, device: Device) -> _Sizes:
    """Cached, as every pattern of a problem has the same, and a first call waits for it."""
    groups = groups_of(problem.d, problem.dv, problem.dtype.itemsize, tuning)
    chunks = groups.key_chunks + groups.value_chunks  # as many as a piece of any kernel has
    piece_bytes = 4 * groups.lanes * (2 + chunks * LANE_BYTES // problem.dtype.itemsize)
    rows = row_macros(
        problem.d, problem.dv, problem.dtype.itemsize, LANE_BYTES, tuning, device,
        problem.has_bias or problem.has_dropout,
    )  # fmt: skip
    warps = device.sm_count * rows["MIN_BLOCKS"] * THREADS // 32
    heads, total = problem.heads, problem.nnz + m
    per_row = total / max(1, m)
    usual = _within(_USUAL_SHARES, _USUAL_ROWS * per_row)
    waves = min(_MAX_WAVES * heads, max(1, round(total * heads / (warps * usual))))
    count, most_pieces = warps * waves // heads, _PIECE_BYTES // (piece_bytes * heads)
    least = _within(_LEAST_SHARES, _LEAST_ROWS * per_row)
    share, large_share = (
        max(least, ceil_div(total, max(1, number)))
        for number in (count, min(count, most_pieces // 2))  # a share leaves two at most
    )
    return _Sizes(share, most_pieces, large_share)


def _within(limits: tuple[int, int], size: float) -> int:
    """The integer within the limits that is next to a size."""
    low, high = limits
    return min(high, max(low, int(size)))


def new_pieces(problem: AttentionProblem, rows: SharedRows, piece_floats: int) -> Tensor | None:
    """Memory for the pieces of so many floats that warps leave of cut rows."""
    count = problem.heads * rows.pieces * piece_floats
    if count == 0:
        return None
    return new_memory("pieces of rows", (count,), torch.float32, problem.device)
