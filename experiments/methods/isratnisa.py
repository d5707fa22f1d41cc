"""isratnisa's cuSDDMM ("SM-L2"): its preparation, and its loop over COO on the CPU.

Source: Nisa, Sukumaran-Rajam, Kurt, Hong, Sadayappan, "Sampled Dense Matrix Multiplication for
High-Performance Machine Learning", HiPC 2018, and the published CPU reference, an OpenMP loop over
the nonzeros. Re-implemented from a description. On the CPU the panels of active rows only set the
order of the nonzeros; shared memory, and with it the panel height, means nothing here.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.case import Case
from experiments.methods import Run

COLUMN_TILE = 50_000
PANEL_HEIGHT = 192
# Nonzeros handed to a thread at a time.
_CHUNK = 4096


class Panels(NamedTuple):
    """The nonzeros in the order tile, panel, row, column.

    local_row: index in the tile's list of active rows; position: where the nonzero stood before.
    active_rows: original row ids, tile after tile, starting at tile_begin[t]. panel_begin: first
    nonzero of each panel, and the end of the last.
    """

    local_row: np.ndarray
    cols: np.ndarray
    position: np.ndarray
    active_rows: np.ndarray
    tile_begin: np.ndarray
    panel_begin: np.ndarray
    panel_tile: np.ndarray


def refuses(case: Case) -> str | None:
    if case.device != "cpu":
        return "its GPU kernel is not part of this version"
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'sddmm[cpu]')"
    if case.a.dtype not in (torch.float32, torch.float64):
        return f"it computes float32, not {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    from sddmm.parallel import for_chunks

    data = case.numpy
    panels = build_panels(data.rows, data.cols, case.m, case.n)
    rows = data.rows[panels.position]
    loop = _kernels()["coo_loop"]

    def run() -> Tensor:
        out = torch.empty(case.nnz, dtype=case.a.dtype)
        arrays = (rows, panels.cols, panels.position, data.a, data.b_t, out.numpy())
        for_chunks(lambda begin, end: loop(*arrays, begin, end), case.nnz, _CHUNK)
        return out

    return run


def build_panels(
    rows: np.ndarray,
    cols: np.ndarray,
    m: int,
    n: int,
    tile: int = COLUMN_TILE,
    height: int = PANEL_HEIGHT,
) -> Panels:
    """The published preparation, on one thread. rows, cols: COO sorted by (row, column)."""
    tiles = max(1, -(-n // tile))
    return Panels(*_kernels()["panels"](rows, cols, m, tiles, tile, height))


@cache
def _kernels() -> dict[str, Any]:
    """Compiled at first use, so that listing the methods needs no numba."""
    from sddmm.backends.cpu_kernel import jit

    @jit
    def panels(rows, cols, m, tiles, tile, height):
        nnz = rows.size
        row_begin = np.searchsorted(rows, np.arange(m + 1))
        nonempty = np.flatnonzero(row_begin[1:] > row_begin[:-1])
        cursor = row_begin[nonempty]
        row_end = row_begin[nonempty + 1]
        local_row = np.empty(nnz, np.int32)
        position = np.empty(nnz, np.int64)
        # Every nonzero opens at most one active row and one panel.
        active_rows = np.empty(nnz, np.int64)
        panel_begin = np.empty(nnz + 1, np.int64)
        panel_tile = np.empty(nnz, np.int64)
        tile_begin = np.zeros(tiles + 1, np.int64)
        done = active = panel_count = 0
        for t in range(tiles):
            limit = (t + 1) * tile
            first_active = active
            for r in range(nonempty.size):
                begin = cursor[r]
                i = begin
                while i < row_end[r] and cols[i] < limit:
                    i += 1
                if i == begin:
                    continue
                if (active - first_active) % height == 0:
                    panel_begin[panel_count] = done
                    panel_tile[panel_count] = t
                    panel_count += 1
                for nonzero in range(begin, i):
                    local_row[done] = active - first_active
                    position[done] = nonzero
                    done += 1
                active_rows[active] = nonempty[r]
                active += 1
                cursor[r] = i
            tile_begin[t + 1] = active
        panel_begin[panel_count] = done
        return (
            local_row,
            cols[position],
            position,
            active_rows[:active].copy(),
            tile_begin,
            panel_begin[: panel_count + 1].copy(),
            panel_tile[:panel_count].copy(),
        )

    @jit
    def coo_loop(rows, cols, position, a, b_t, out, begin, end):
        for i in range(begin, end):
            total = a.dtype.type(0)
            for t in range(a.shape[1]):
                total += a[rows[i], t] * b_t[cols[i], t]
            out[position[i]] = total

    return {"panels": panels, "coo_loop": coo_loop}
