"""A re-implementation of isratnisa's cuSDDMM ("SM-L2") from a description; not the authors' code.

It has their preparation, their kernel, and their loop over COO on the CPU. Source: Nisa,
Sukumaran-Rajam, Kurt, Hong, Sadayappan, "Sampled Dense Matrix Multiplication for High-Performance
Machine Learning", HiPC 2018 (https://ieeexplore.ieee.org/document/8638042), published as
https://github.com/isratnisa/SDDMM_GPU. On a GPU it runs with the best of its four panel heights,
half types as float32, converted in its preparation. On the CPU the panels of active rows only set
the order of the nonzeros; shared memory, and with it the panel height, means nothing there.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.bench.methods import Run
from experiments.sddmm.case import Case
from experiments.sddmm.device_time import device_ms
from experiments.sddmm.gpu_kernel import as_float32, gpu_kernel
from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import INT, POINTER

COLUMN_TILE = 50_000
PANEL_HEIGHT = 192
HEIGHTS = (192, 96, 48, 24)
# Floats of A in shared memory, and threads of a block.
_CAPACITY, _THREADS = 6144, 512
# The number of nonzeros that a thread takes at a time.
_CHUNK = 4096


class Panels(NamedTuple):
    """The nonzeros in the order tile, panel, row, column.

    local_row: index in the tile's list of active rows; position: index of the nonzero in the COO.
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
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'sddmm[cpu]')"
    if case.heads > 1:
        return "it computes one head"
    on_gpu = case.device.startswith("cuda")
    if case.a.dtype.itemsize == (8 if on_gpu else 2):
        return f"it computes float32, not {case.dtype}"
    return None


def prepare(case: Case) -> Run:
    if case.device.startswith("cuda"):
        return _on_gpu(case, _best_height(case))
    return _on_cpu(case)


class Arguments(ctypes.Structure):
    """The parameters of isratnisa.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "out", "local_row", "cols", "position")),
        *((name, POINTER) for name in ("active_rows", "panel_begin")),
        *((name, INT) for name in ("active", "k", "k0", "add")),
    ]


# The best height of the case measured last: timed preparations do not try all heights again.
_best: dict[object, int] = {}


def _best_height(case: Case) -> int:
    key = (case.matrix, case.nnz, case.k, case.dtype, case.seed)
    if key in _best:
        return _best[key]
    times = {height: device_ms(_on_gpu(case, height)) for height in HEIGHTS}
    _best.clear()
    best = _best[key] = min(times, key=lambda height: times[height])
    return best


def _on_gpu(case: Case, height: int) -> Run:
    rows, cols = case.pattern.row_ids.cpu().numpy(), case.pattern.col_indices.cpu().numpy()
    panels = build_panels(rows, cols, case.m, case.n, height=height)
    local_row, columns, position, active_rows, panel_begin = (
        torch.from_numpy(array.astype(np.int32)).to(case.device)
        for array in (
            panels.local_row, panels.cols, panels.position, panels.active_rows, panels.panel_begin,
        )
    )  # fmt: skip
    tiles = len(panels.tile_begin) - 1
    # The active rows of each tile, and its first panel and the one after its last.
    spans = [
        (
            *(int(x) for x in panels.tile_begin[t : t + 2]),
            *(int(x) for x in np.searchsorted(panels.panel_tile, [t, t + 1])),
        )
        for t in range(tiles)
    ]
    a, b = as_float32(case.a), as_float32(case.b.mT)
    kernel = gpu_kernel(
        Path(__file__).with_suffix(".cu"), "sm_l2", Arguments, _THREADS,
        (("ISRATNISA_HEIGHT", str(height)),),
    )  # fmt: skip

    def run() -> Tensor:
        out = torch.empty(case.nnz, device=case.device)
        for first_row, end_row, first, end in spans:
            for k0 in range(0, case.k, _CAPACITY // height):
                kernel(
                    end - first, a.data_ptr(), b.data_ptr(), out.data_ptr(), local_row.data_ptr(),
                    columns.data_ptr(), position.data_ptr(), active_rows[first_row:].data_ptr(),
                    panel_begin[first:].data_ptr(), end_row - first_row, case.k, k0, int(k0 > 0),
                )  # fmt: skip
        return out

    return run


def _on_cpu(case: Case) -> Run:
    from sddmm.backends.cpu.openmp import for_chunks

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
    tiles = max(1, ceil_div(n, tile))
    return Panels(*_kernels()["panels"](rows, cols, m, tiles, tile, height))


@cache
def _kernels() -> dict[str, Any]:
    """Compiled at first use, so that listing the methods needs no numba."""
    from sddmm.backends.cpu.jit import jit

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
