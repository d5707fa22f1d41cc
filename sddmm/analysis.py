"""One pass over a pattern on the GPU: is it valid, how is it ordered, where are its nonzeros."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from gemm_core.device import Device
from gemm_core.launch import INT, LONG, POINTER
from sddmm.choose import TileProfile
from sddmm.families import address, loaded
from sddmm.partition import int32
from sddmm.pattern import SparsePattern, compress
from sddmm.spec import KernelSpec, macros

_INVALID, _ROWS_FALL, _COLUMNS_FALL = 1, 2, 4
_SUMMARY_BLOCKS = 64


class AnalyseArguments(ctypes.Structure):
    """Of analyse.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("major", "cols", "rows", "cols_32", "counts", "found")),
        ("nnz", LONG),
        *((name, INT) for name in ("m", "n", "block_m", "block_n")),
    ]


class SummaryArguments(ctypes.Structure):
    """Of tile_summary.cu."""

    _fields_ = [("counts", POINTER), ("totals", POINTER), ("tiles", INT), ("least", INT)]


ANALYSE = KernelSpec("analyse", "analysis", "analyse.cu", (), threads=256)
SUMMARY = KernelSpec("tile_summary", "analysis", "tile_summary.cu", (), threads=256)


@dataclass(frozen=True)
class Analysis:
    """rows, cols: (nnz,) int32, in the pattern's order.

    counts: nonzeros by tile; `profile` sums them up; `counted`: the tiles' size, and the nonzeros
    from which on they were called worth computing. rows_ascend: rows never fall; columns_ascend:
    columns never fall within a row.
    """

    rows: Tensor
    cols: Tensor
    rows_ascend: bool
    columns_ascend: bool
    counted: tuple[tuple[int, int], int] | None
    counts: Tensor | None
    profile: TileProfile | None


def analyse(
    pattern: SparsePattern, device: Device, block: tuple[int, int] | None, least: int
) -> Analysis:
    """Waits for the GPU once. ValueError, as SparsePattern.check, for an invalid pattern.

    block: of the tiles to count, if any; least: nonzeros that make a tile worth computing whole.
    """
    (m, n), nnz = pattern.shape, pattern.nnz
    major, cols = pattern.major_indices.contiguous(), pattern.col_indices.contiguous()
    narrow = cols.dtype == torch.int32
    rows = torch.empty(nnz, dtype=torch.int32, device=cols.device)
    cols_32 = cols if narrow else torch.empty_like(rows)
    tiles = 0 if block is None else -(-m // block[0]) * -(-n // block[1])
    # What is found, three totals of 64 bits, and the counts: one array, set to zero at once.
    zeros = torch.zeros(8 + tiles, dtype=torch.int32, device=cols.device)
    counts = zeros[8:] if block is not None else None
    index = device.index
    made = macros({"INDEX": "int" if narrow else "gemm_core::i64", "CSR": pattern.is_csr})
    own_rows = not pattern.is_csr and narrow
    loaded(ANALYSE, made, AnalyseArguments, index)(
        -(-max(nnz, m + 1 if pattern.is_csr else 0) // ANALYSE.threads), major.data_ptr(),
        cols.data_ptr(), 0 if own_rows else rows.data_ptr(), 0 if narrow else cols_32.data_ptr(),
        address(counts), zeros.data_ptr(), nnz, m, n, *(block or (1, 1)),
    )  # fmt: skip
    if counts is not None and tiles > 0:
        summary = macros({"BLOCKS": _SUMMARY_BLOCKS})
        loaded(SUMMARY, summary, SummaryArguments, index)(
            _SUMMARY_BLOCKS, counts.data_ptr(), zeros[2:].data_ptr(), tiles, least
        )
    found, *totals = zeros[:8].view(torch.int64).tolist()
    if found & _INVALID:
        pattern.check()
        raise ValueError(f"{pattern!r} has indices outside its shape")
    return Analysis(
        rows=major if own_rows else rows,
        cols=cols_32,
        rows_ascend=not found & _ROWS_FALL,
        columns_ascend=not found & _COLUMNS_FALL,
        counted=None if block is None else (block, least),
        counts=counts,
        profile=None if counts is None else TileProfile(*totals),
    )


def crow_of(pattern: SparsePattern, rows: Tensor) -> Tensor:
    """crow_indices, (m + 1,) int32; rows: the pattern's, ascending."""
    if pattern.is_csr:
        return int32(pattern.major_indices)
    return compress(rows, pattern.shape[0])
