"""attention_tile_gradient: the gradients of attention_tile, by rows and by columns of tiles.

Both passes have the same tiles: those by columns are the tiles of the transpose, whose lines are
their columns.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention_gather.groups import common_step, row_multiples
from sddmm.backends.cuda.kernels.attention_passes import GradientPasses, Pass, PassInputs
from sddmm.backends.cuda.kernels.attention_tile.tiles import (
    AttentionTiles,
    new_pieces,
    padded,
    tiles_by_row,
)
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES, HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem


class Arguments(ctypes.Structure):
    """The parameters of attention_tile_gradient/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("own_key", "own_value", "key", "value", "bias")),
        *((name, POINTER) for name in ("stats", "key_grad", "value_grad", "bias_grad")),
        *((name, POINTER) for name in ("perm", "lines", "masks", "tiles", "parts")),
        *((name, POINTER) for name in ("shared_rows", "pieces", "seed")),
        ("dropout_threshold", LONG),
        *((name, LONG) for name in ("head_own_key", "head_own_value", "head_key", "head_value")),
        ("head_bias", LONG),
        *((f"pitch_{name}", LONG) for name in ("own_key", "own_value", "key", "value")),
        *((name, INT) for name in ("part_count", "shared_count", "slots")),
        *((name, INT) for name in ("nnz", "row_count", "other_count", "query_count", "d", "dv")),
        *((name, INT) for name in ("first_head", "heads", "sums_bias")),
        ("scale", FLOAT),
        ("kept", FLOAT),
    ]


# The blocks of 128 rows that a multiprocessor should have; of fewer, blocks of 64 rows are quicker.
_STACKED_BLOCKS = 3

ATTENTION_TILE_GRADIENT = KernelSpec(
    "attention_tile_gradient", "attention_tile_gradient", HALF_DTYPES, threads=128
)


@functools.lru_cache(maxsize=256)
def load(
    runtime: loader.CudaRuntime, sizes: tuple[int, int, torch.dtype], rows: int,
    by_columns: bool, lines_by_column: bool, aligned: bool, numbered: bool, merges: bool,
    device: Device,
) -> Kernel:  # fmt: skip
    """The kernel of a pass for rows of d and dv elements of a dtype, by blocks of so many rows."""
    d, dv, dtype = sizes
    key, value = padded(d), padded(dv)
    # So that no sums, scores and gradients of scores spill.
    span = 16 if by_columns or numbered else 32
    blocks = _resident_blocks(d, dv, by_columns, device)[rows]
    blocks = min(blocks, 3) if numbered else blocks
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "COLUMNS": by_columns, "MERGES": merges,
        "KEY_COLUMNS": key, "VALUE_COLUMNS": value, "BY_COLUMN": lines_by_column,
        "ALIGNED": aligned, "NUMBERED": numbered, "ROWS": rows,
        "SPAN": span, "MIN_BLOCKS": blocks,
    }  # fmt: skip
    tile_bytes = 2 * SIDE * (key + value) + (8 * SIDE if by_columns else 0)
    spec = _spec_with_memory(2 * rows * (key + value) + 2 * tile_bytes + 16 * rows + 32)
    return runtime.load_kernel(spec, macros(defines), Arguments, device.index)


def _resident_blocks(d: int, dv: int, by_columns: bool, device: Device) -> dict[int, int]:
    """The rows that a block may have, the quickest where rows of tiles have columns in common
    first, and how many such blocks the registers of a multiprocessor hold."""
    if max(padded(d), padded(dv)) > 64:
        return {SIDE: 2}
    return {128: 2, SIDE: 3 if by_columns or device.capability < (9, 0) else 4}


def is_numbered(inputs: PassInputs) -> bool:
    """Whether the pass needs the numbers of nonzeros."""
    operands = inputs.operands
    has_bias = operands.bias is not None or inputs.gradients.bias is not None
    return has_bias or operands.dropout_p > 0


@functools.lru_cache(maxsize=64)
def _spec_with_memory(shared_bytes: int) -> KernelSpec:
    return replace(ATTENTION_TILE_GRADIENT, shared_bytes=shared_bytes)


class TileGradients(GradientPasses):
    """Computes the gradients over one pattern by its tiles.

    work, by_column: see `tiles_by_row`.
    """

    def __init__(
        self, work: TileWork, by_column: bool, problem: AttentionProblem, device: Device
    ) -> None:
        super().__init__(problem, device)
        self._work, self._by_column = work, by_column
        self._rows: AttentionTiles | None = None
        self._columns: AttentionTiles | None = None

    def prepare(self) -> None:
        self._rows, self._columns = self._tiles(False), self._tiles(True)
        loader.runtime.wait(self._device.index)  # the next call may come on another stream

    def _tiles(self, by_columns: bool) -> AttentionTiles:
        problem, device = self._problem, self._device
        shape = (problem.n, problem.m) if by_columns else (problem.m, problem.n)
        resident = _resident_blocks(problem.d, problem.dv, by_columns, device)
        if ceil_div(shape[0], 128) * problem.heads < _STACKED_BLOCKS * device.sm_count:
            resident = {SIDE: resident[SIDE]}
        by_column = self._by_column != by_columns
        return tiles_by_row(self._work, by_column, shape, problem.heads, resident, device)

    def new_pass(self, inputs: PassInputs) -> Pass:
        problem, by_columns = self._problem, inputs.by_columns
        tiles = self._columns if by_columns else self._rows
        assert tiles is not None, "prepare comes first"
        operands = inputs.rows
        bits = (bits for x in operands.values() for bits in row_multiples(x))
        options = (
            loader.runtime, (problem.d, problem.dv, problem.dtype), tiles.rows, by_columns,
            tiles.by_column, common_step(*bits) == 16, is_numbered(inputs),
        )  # fmt: skip
        kernel = load(*options, False, self._device)
        merge = load(*options, True, self._device) if tiles.slots else None
        piece = padded(problem.d) + (padded(problem.dv) if by_columns else 0)
        arguments: dict[str, int | float] = {
            "perm": address(tiles.perm), **tiles.arguments(),
            **{f"pitch_{name}": x.stride(-2) for name, x in operands.items()},
        }  # fmt: skip
        # A thread merges one element.
        merge_blocks = tiles.shared_count * tiles.rows * piece // ATTENTION_TILE_GRADIENT.threads
        return Pass(
            kernel, merge, tiles.part_count, merge_blocks, arguments,
            new_pieces(problem.heads * tiles.slots * tiles.rows * piece, problem.device),
        )  # fmt: skip
