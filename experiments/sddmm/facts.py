"""Counts of a pattern from which costs of kernels can be fitted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import sddmm

# Rows and columns of the tiles that are counted.
TILES = ((16, 16), (64, 64), (128, 128), (128, 256), (256, 128))
_SEGMENT_COLUMNS = 64
# A pattern whose tiles of one size are more than this is not counted by them.
_MAX_TILES = 1 << 28


def facts_of(pattern: sddmm.SparsePattern) -> dict[str, Any]:
    """The counts of a CSR pattern whose columns ascend within each row.

    runs: maximal runs of consecutive columns within rows. row_segments: pairs of a row and 64
    columns that hold a nonzero. longest_row. tiles: for each size the tiles that are not empty, the
    full ones, and how many tiles and nonzeros are in tiles of 2^i .. 2^(i+1) - 1 nonzeros.
    """
    rows, cols = pattern.row_ids.long(), pattern.col_indices.long()
    m, n = pattern.shape
    if pattern.nnz == 0:
        return {"runs": 0, "row_segments": 0, "longest_row": 0, "tiles": {}}
    new_row = rows[1:] != rows[:-1]
    segments = cols // _SEGMENT_COLUMNS
    counted = [size for size in TILES if _tile_count(m, n, size) <= _MAX_TILES]
    return {
        "runs": 1 + int((new_row | (cols[1:] != cols[:-1] + 1)).sum()),
        "row_segments": 1 + int((new_row | (segments[1:] != segments[:-1])).sum()),
        "longest_row": int(pattern.major_indices.diff().max()),
        "tiles": {f"{r}x{c}": _tile_counts(rows, cols, m, n, (r, c)) for r, c in counted},
    }


def _tile_count(m: int, n: int, size: tuple[int, int]) -> int:
    return -(-m // size[0]) * -(-n // size[1])


def _tile_counts(
    rows: Tensor, cols: Tensor, m: int, n: int, size: tuple[int, int]
) -> dict[str, Any]:
    across = -(-n // size[1])
    tiles = torch.div(rows, size[0], rounding_mode="floor") * across
    tiles += torch.div(cols, size[1], rounding_mode="floor")
    nnz = torch.bincount(tiles, minlength=_tile_count(m, n, size))
    nnz = nnz[nnz > 0]
    power = nnz.double().log2().floor().long()
    return {
        "nonempty": nnz.numel(),
        "full": int((nnz == size[0] * size[1]).sum()),
        "tiles_by_power": torch.bincount(power).tolist(),
        "nnz_by_power": torch.bincount(power, weights=nnz.double()).long().tolist(),
    }
