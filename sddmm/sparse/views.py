"""Compressed views of a pattern: its nonzeros grouped by row or by column."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sddmm.sparse.indices import BlockSize, compress, expand, row_major


class RowLengths(NamedTuple):
    """Nonzeros per row: the shortest, the mean and the longest row, and how many are empty."""

    shortest: int
    mean: float
    longest: int
    empty_rows: int


class CompressedView(NamedTuple):
    """A pattern's nonzeros grouped by row or by column, as compressed sparse storage.

    indptr: the start of each group and the end of the last, (groups + 1,). indices: the other index
    of each nonzero, (nnz,). perm: the position in the pattern of each grouped nonzero, or None
    where the pattern is stored in that order already. All are contiguous: cuSPARSE reads no
    strides.
    """

    indptr: Tensor
    indices: Tensor
    perm: Tensor | None


def group(major: Tensor, minor: Tensor, shape: tuple[int, int]) -> CompressedView:
    """The nonzeros grouped by `major`, ascending in `minor` within a group, duplicates in order.

    shape: the number of values that a major and a minor index may have.
    """
    perm = row_major(major, minor, shape)
    return _ready(CompressedView(compress(major[perm], shape[0]), minor[perm], perm))


def group_blocks(crow: Tensor, col_ids: Tensor, blocksize: BlockSize) -> CompressedView:
    """The nonzeros of full blocks grouped by row, without a sort; blocks keep their order.

    crow: the start of each row of blocks, and the end of the last. col_ids: the column of every
    nonzero, block by block.
    """
    (bm, bn), area = blocksize, blocksize[0] * blocksize[1]
    crow, blocks = crow.to(torch.int64), col_ids.numel() // area
    in_block = torch.arange(bm, device=crow.device)
    # In a row of blocks, the first rows of all its blocks come before their second rows.
    starts = (crow[:-1] * area)[:, None] + in_block * (crow.diff() * bn)[:, None]
    block_row = expand(crow, blocks)
    place = torch.arange(blocks, device=crow.device) - crow[block_row]
    target = starts[block_row] + (place * bn)[:, None]
    target = target[:, :, None] + torch.arange(bn, device=crow.device)
    perm = torch.empty(blocks * area, dtype=torch.int64, device=crow.device)
    perm[target.view(-1)] = torch.arange(blocks * area, device=crow.device)
    indptr = torch.cat([starts.view(-1), crow[-1:] * area])
    indptr = indptr.to(col_ids.dtype) if blocks * area < 2**31 else indptr
    return _ready(CompressedView(indptr, col_ids[perm], perm))


def _ready(view: CompressedView) -> CompressedView:
    """The view when the GPU has written it: the next reader may be on another stream."""
    if view.indices.device.type == "cuda":
        torch.cuda.current_stream(view.indices.device).synchronize()
    return view


def row_lengths(by_row: CompressedView) -> RowLengths:
    """Statistics of the nonzeros per row."""
    lengths = by_row.indptr.diff()
    if lengths.numel() == 0:
        return RowLengths(0, 0.0, 0, 0)
    shortest, longest = (int(x) for x in lengths.aminmax())
    mean = by_row.indices.numel() / lengths.numel()
    return RowLengths(shortest, mean, longest, int((lengths == 0).sum()))
