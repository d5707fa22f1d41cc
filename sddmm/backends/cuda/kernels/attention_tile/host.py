"""attention_tile: a block computes 64 rows, by the tiles of 64 x 64 that hold nonzeros.

It suits masks made of full tiles: windows, causal masks, blocks. Rows of more tiles than a block
should have are cut into parts, which a second launch merges. Half types are multiplied by tensor
cores, and their gradients are those of attention_tile_gradient; attention_tile_simt multiplies
floats by CUDA cores, and its gradients are those of attention_gradient.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER, Kernel
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.attention import AttentionPlan
from sddmm.backends.cuda.cost_model import LIST_TILES_LAUNCHES, Cost, DeviceModel
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention import AttentionSpec
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    common_step,
    head_stride,
    row_multiples,
)
from sddmm.backends.cuda.kernels.attention_passes import GradientPasses, PlanWithGradients
from sddmm.backends.cuda.kernels.attention_tile.tiles import (
    LEAST_CUT,
    new_pieces,
    padded,
    tiles_by_row,
)
from sddmm.backends.cuda.kernels.tile_lines.host import SIDE
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.spec import Layouts, macros
from sddmm.dropout import kept_factor, threshold
from sddmm.dtypes import DTYPES, HALF_DTYPES

if TYPE_CHECKING:
    from sddmm.backends.cuda.facts import PatternFacts
    from sddmm.problem import AttentionProblem

_LOG2_E = math.log2(math.e)
# The most columns of Q, K and V, which a warp holds in registers.
_MAX_COLUMNS = 128
# The tiles that take as long as a block's rows of Q and of the result.
_EDGE_TILES = 1.5
# The bytes of shared memory of two stages of masks, of two places of tiles, and of a flag.
_ENDS = 16 * SIDE + 32


class Arguments(ctypes.Structure):
    """The parameters of attention_tile/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("q", "k", "v", "bias", "out", "lse")),
        *((name, POINTER) for name in ("perm", "lines", "masks", "tiles", "parts")),
        *((name, POINTER) for name in ("shared_rows", "pieces", "seed")),
        ("dropout_threshold", LONG),
        *((name, LONG) for name in ("head_q", "head_k", "head_v", "head_bias")),
        *((name, LONG) for name in ("pitch_q", "pitch_k", "pitch_v")),
        *((name, INT) for name in ("heads", "part_count", "shared_count", "slots")),
        *((name, INT) for name in ("m", "n", "d", "dv")),
        ("scale", FLOAT),
        ("kept", FLOAT),
    ]


@dataclass(frozen=True, eq=False)
class AttentionTile(AttentionSpec):
    """Serves half types, whose rows a warp holds as fragments.

    column_us, tile_us: the time for which a column of K or V of a tile keeps a multiprocessor of an
    H200 busy, and that of a tile beside its columns. least_cut: the least number of tiles at which
    parts of rows of tiles are cut.
    """

    column_us: float = 0.6 / 128
    tile_us: float = 0.0
    least_cut: int = LEAST_CUT

    def most_columns(self, problem: AttentionProblem) -> int:
        return _MAX_COLUMNS

    def refuses(self, problem: AttentionProblem, device: Device) -> str | None:
        reason = super().refuses(problem, device)
        needed = self.memory(problem.d, problem.dv)
        if reason is None and needed > device.shared_bytes:
            return (
                f"needs {needed} bytes of shared memory for d and dv of {problem.d} and "
                f"{problem.dv}, has {device.shared_bytes}"
            )
        return reason

    def memory(self, d: int, dv: int) -> int:
        """The bytes of shared memory of a block: the rows of Q, two stages of K and V, and what
        `_ENDS` says."""
        key, value = padded(d), padded(dv)
        return 2 * SIDE * (key + 2 * (key + value)) + _ENDS

    def resident_blocks(self, d: int, dv: int) -> int:
        """The blocks that the registers of a multiprocessor hold."""
        return 3 if max(padded(d), padded(dv)) <= 64 else 2

    def cost_us(
        self, problem: AttentionProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost | None:
        counts = None if facts is None else facts.tiles((SIDE, SIDE))
        if facts is None or counts is None or not facts.ascends or not facts.distinct:
            return None
        count = counts.nonempty * problem.heads
        columns_us = self.column_us * (padded(problem.d) + padded(problem.dv))
        tile_us = (self.tile_us + columns_us) / model.stores
        stripes = max(1, min(ceil_div(problem.m, SIDE), counts.nonempty))
        longest = min(self.least_cut, counts.nonempty / stripes)
        edges = _EDGE_TILES * stripes * problem.heads
        run_us = tile_us * max((count + edges) / model.device.sm_count, longest)
        prepare_us = LIST_TILES_LAUNCHES * model.launch_us
        return Cost(2 * model.launch_us + run_us, prepare_us)

    def prepare(
        self, layouts: Layouts, problem: AttentionProblem, model: DeviceModel
    ) -> tuple[AttentionPlan, ...]:
        return (_Plan(self, layouts, problem, model.device),)

    def load(
        self, problem: AttentionProblem, by_column: bool, aligned: bool, numbered: bool,
        merges: bool, device: Device,
    ) -> Kernel:  # fmt: skip
        """The kernel for operands of a problem."""
        return _load(
            loader.runtime, self, problem.d, problem.dv, problem.dtype, by_column, aligned,
            numbered, merges, device,
        )  # fmt: skip

    def new_gradients(
        self, layouts: Layouts, work: TileWork, by_column: bool, problem: AttentionProblem,
        device: Device,
    ) -> GradientPasses:  # fmt: skip
        """The gradients over the same pattern. work, by_column: see `tiles_by_row`."""
        # Here, as else the modules below would stand on a tenth floor (tests/test_layers.py).
        from sddmm.backends.cuda.kernels.attention_tile_gradient.host import TileGradients

        return TileGradients(work, by_column, problem, device)


@dataclass(frozen=True, eq=False)
class AttentionTileSimt(AttentionTile):
    """Serves floats, whose rows are read from shared memory."""

    def memory(self, d: int, dv: int) -> int:
        """The bytes of shared memory of a block: the rows of Q, a tile of K, one of V, and half a
        tile of weights, with padding."""
        keys, values, weights = padded(d) + 4, padded(dv), SIDE // 2 + 8
        return 4 * SIDE * (2 * keys + values + weights) + _ENDS

    def new_gradients(
        self, layouts: Layouts, work: TileWork, by_column: bool, problem: AttentionProblem,
        device: Device,
    ) -> GradientPasses:  # fmt: skip
        from sddmm.backends.cuda.kernels.attention_gradient.host import Gradients

        return Gradients(layouts.by_row(), problem, device)


@functools.lru_cache(maxsize=256)
def _load(
    runtime: loader.CudaRuntime, spec: AttentionTile, d: int, dv: int, dtype: torch.dtype,
    by_column: bool, aligned: bool, numbered: bool, merges: bool, device: Device,
) -> Kernel:  # fmt: skip
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "MERGES": merges, "KEY_COLUMNS": padded(d),
        "VALUE_COLUMNS": padded(dv), "BY_COLUMN": by_column, "ALIGNED": aligned,
        "NUMBERED": numbered, "MIN_BLOCKS": spec.resident_blocks(d, dv),
    }  # fmt: skip
    spec = _with_memory(spec, spec.memory(d, dv))
    return runtime.load_kernel(spec, macros(defines), Arguments, device.index)


@functools.lru_cache(maxsize=64)
def _with_memory(spec: AttentionTile, shared_bytes: int) -> AttentionTile:
    return replace(spec, shared_bytes=shared_bytes)


class _Plan(PlanWithGradients):
    """Launches attention over one pattern."""

    def __init__(
        self, spec: AttentionTile, layouts: Layouts, problem: AttentionProblem, device: Device
    ) -> None:
        self._spec, self._problem, self._device = spec, problem, device
        work, by_column = layouts.distinct_tiles((SIDE, SIDE))
        resident = {SIDE: spec.resident_blocks(problem.d, problem.dv)}
        shape = problem.m, problem.n
        self._tiles = tiles_by_row(
            work, by_column, shape, problem.heads, resident, device, spec.least_cut
        )
        super().__init__(spec.new_gradients(layouts, work, by_column, problem, device))

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        problem, tiles = self._problem, self._tiles
        q, k, v, bias = operands.q, operands.k, operands.v, operands.bias
        step = common_step(*(bits for x in (q, k, v) for bits in row_multiples(x)))
        count = problem.heads * tiles.slots * tiles.rows * (padded(problem.dv) + 2)
        pieces = new_pieces(count, problem.device)
        somewhere = lse.data_ptr()  # where a tensor without elements may begin
        named: dict[str, int | float] = {
            "q": q.data_ptr() or somewhere, "k": k.data_ptr() or somewhere,
            "v": v.data_ptr() or somewhere, "bias": address(bias),
            "out": out.data_ptr() or somewhere, "lse": lse.data_ptr(),
            "perm": address(tiles.perm), **tiles.arguments(), "pieces": address(pieces),
            "seed": address(operands.seed), "dropout_threshold": threshold(operands.dropout_p),
            "head_q": q.stride(0), "head_k": k.stride(0), "head_v": v.stride(0),
            "head_bias": head_stride(bias), "pitch_q": q.stride(1), "pitch_k": k.stride(1),
            "pitch_v": v.stride(1), "heads": problem.heads, "m": problem.m, "n": problem.n,
            "d": problem.d, "dv": problem.dv, "scale": operands.scale * _LOG2_E,
            "kept": kept_factor(operands.dropout_p),
        }  # fmt: skip
        arguments = [named[name] for name, *_ in Arguments._fields_]
        is_aligned, is_numbered = step == 16, bias is not None or operands.dropout_p > 0
        for merges in (False, True) if tiles.slots else (False,):
            kernel = self._spec.load(
                problem, tiles.by_column, is_aligned, is_numbered, merges, self._device
            )
            # A block merges four rows, one by each warp.
            of_head = tiles.shared_count * (tiles.rows // 4) if merges else tiles.part_count
            kernel(of_head * problem.heads, *arguments)


ATTENTION_TILE = AttentionTile(
    "attention_tile", "attention_tile", HALF_DTYPES, threads=128, tile=(SIDE, SIDE, 0)
)
# Measured on an H200 for d of 64 and 128, with one head and eight, on masks of five kinds.
ATTENTION_TILE_SIMT = AttentionTileSimt(
    "attention_tile_simt", "attention_tile", (torch.float32,), threads=128, tile=(SIDE, SIDE, 0),
    column_us=3 / 128, tile_us=0.4,
    # A tile takes some eight times as long as one of halves, and its part is merged as quickly.
    least_cut=4,
)  # fmt: skip
