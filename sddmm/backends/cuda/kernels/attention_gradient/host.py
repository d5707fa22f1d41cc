"""attention_gradient: the gradients of attention; each of two passes gathers two rows per nonzero.

The pass by rows computes dQ and dbias, the pass by columns dK and dV. Of few enough nonzeros the
former stores the weights, by which attention_sums has the latter. Else attention_delta launches
first, for the sums that all scores of a row share.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    THREADS,
    Beyond,
    Groups,
    Tuning,
    beyond_of,
    common_step,
    groups_of,
    has_bias_or_dropout,
    has_few,
    heads_at_a_time,
    pitch_bytes,
    row_macros,
    row_multiples,
)
from sddmm.backends.cuda.kernels.attention_gather.shares import (
    SharedRows,
    new_pieces,
    rows_by_warp,
)
from sddmm.backends.cuda.kernels.attention_gather.variants import Variant, load_variant
from sddmm.backends.cuda.kernels.attention_passes import GradientPasses, Pass, PassInputs
from sddmm.backends.cuda.kernels.attention_sums import host as attention_sums
from sddmm.backends.cuda.layouts import Nonzeros, by_row
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.dtypes import DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem


class Arguments(ctypes.Structure):
    """The parameters of attention_gradient/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("own_key", "own_value", "key", "value", "bias")),
        *((name, POINTER) for name in ("stats", "out", "lse", "grad_lse", "weights")),
        *((name, POINTER) for name in ("key_grad", "value_grad", "bias_grad")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "slots", "cut_rows")),
        *((name, POINTER) for name in ("pieces", "seed")),
        ("dropout_threshold", LONG),
        *((name, LONG) for name in ("head_own_key", "head_own_value", "head_key", "head_value")),
        *((name, LONG) for name in ("head_bias", "shift_k", "shift_v")),
        *((f"pitch_{name}", INT) for name in ("own_key", "own_value", "key", "value")),
        *((name, INT) for name in ("beyond_pitch_k", "beyond_pitch_v", "first_beyond")),
        *((name, INT) for name in ("shares_per_head", "cut_rows_per_head", "pieces_per_head")),
        *((name, INT) for name in ("nnz", "row_count", "query_count", "d", "dv")),
        *((name, INT) for name in ("first_head", "sums_bias")),
        ("scale", FLOAT),
        ("kept", FLOAT),
    ]


# For most passes, and for those by rows, which leave registers for more warps.
TUNING = Tuning(min_blocks=(4, 3), one_load_lanes=8)
ROW_TUNING = Tuning(min_blocks=(5, 3), spared=1, one_load_lanes=8)
# For passes that store weights: of float32, where groups have lanes enough; and of rows of few
# nonzeros.
FLOAT_STORING_TUNING = Tuning(batch=6, min_blocks=(4, 3), spared=1, min_lanes=8, one_load_lanes=8)
SHORT_STORING_TUNING = Tuning(batch=2, min_blocks=(6, 4), spared=1, one_load_lanes=4)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ATTENTION_GRADIENT = KernelSpec(
    "attention_gradient", "attention_gradient", _DTYPES, threads=THREADS
)


def piece_floats(groups: Groups, dtype: torch.dtype, by_columns: bool) -> int:
    """The floats that a lane holds of a piece of a row or a column: Partial::COUNT."""
    chunks = groups.key_chunks + (groups.value_chunks if by_columns else 0)
    return chunks * 16 // dtype.itemsize


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    tuning: Tuning,
    sizes: tuple[int, int, torch.dtype],
    step: int,
    step_out: int,
    bias_or_dropout: bool,
    by_columns: bool,
    stores_weights: bool,
    merges: bool,
    device: Device,
    has_beyond: bool = False,
) -> Variant:
    """The kernels of a pass for rows of d and dv elements of a dtype; see attention_gather."""
    d, dv, dtype = sizes
    groups = groups_of(d, dv, dtype.itemsize, tuning)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "STORE_BYTES": step_out, "COLUMNS": by_columns,
        "STORES_WEIGHTS": stores_weights, "HAS_BEYOND": has_beyond,
        **row_macros(d, dv, dtype.itemsize, step, tuning, device, bias_or_dropout),
    }  # fmt: skip
    floats = piece_floats(groups, dtype, by_columns)
    return load_variant(
        runtime, ATTENTION_GRADIENT, Arguments, defines, floats, bias_or_dropout, merges, device
    )


def tuning_of(problem: AttentionProblem, by_columns: bool, stores_weights: bool) -> Tuning:
    """The tuning of a pass of this kernel."""
    if not stores_weights:
        return TUNING if by_columns else ROW_TUNING
    if has_few(problem.nnz, problem.m):
        return SHORT_STORING_TUNING
    lanes = groups_of(problem.d, problem.dv, problem.dtype.itemsize, TUNING).lanes
    has_lanes = lanes >= FLOAT_STORING_TUNING.min_lanes
    return FLOAT_STORING_TUNING if problem.dtype == torch.float32 and has_lanes else TUNING


class Gradients(GradientPasses):
    """Gathers the gradients over one pattern. nonzeros: those of the forward, by row."""

    def __init__(self, nonzeros: Nonzeros, problem: AttentionProblem, device: Device) -> None:
        super().__init__(problem, device)
        self._nonzeros = nonzeros
        self._sizes = (problem.d, problem.dv, problem.dtype)
        self._rows: SharedRows | None = None
        self._columns: SharedRows | None = None
        self._stores_weights = attention_sums.pays(problem)

    def prepare(self) -> None:
        """Sort the nonzeros by column, and share them: other numbers of blocks than the forward's
        share a multiprocessor."""
        problem, device, stores_weights = self._problem, self._device, self._stores_weights
        rows, cols, perm = self._nonzeros
        by_column = by_row(Nonzeros(cols, rows, perm))
        row_tuning = tuning_of(problem, False, stores_weights)
        self._rows = rows_by_warp(self._nonzeros, problem, problem.m, row_tuning, device)
        column_tuning = attention_sums.tuning_of(problem) if stores_weights else TUNING
        self._columns = rows_by_warp(by_column, problem, problem.n, column_tuning, device)
        loader.runtime.wait(device.index)  # the next call may come on another stream

    def new_weights(self, most_heads: int) -> Tensor | None:
        problem = self._problem
        if not self._stores_weights:
            return None
        heads = heads_at_a_time(problem.heads, problem.nnz, attention_sums.MOST_WEIGHTS)
        shape = min(heads, most_heads), problem.nnz, 2
        return new_memory("weights of nonzeros", shape, torch.float32, problem.device)

    def new_pass(self, inputs: PassInputs) -> Pass:
        problem, by_columns = self._problem, inputs.by_columns
        rows = self._columns if by_columns else self._rows
        assert rows is not None, "prepare comes first"
        k, v = inputs.operands.k, inputs.operands.v
        beyond = beyond_of(k, v, inputs.operands.beyond)
        variant, floats = self._variant(inputs, beyond, rows.cuts > 0)
        nonzeros = rows.nonzeros
        arguments: dict[str, int | float] = {
            "rows": nonzeros.rows.data_ptr(), "cols": nonzeros.cols.data_ptr(),
            "perm": address(nonzeros.perm), "shares": rows.shares.address,
            "slots": rows.shares.slots_address, "cut_rows": rows.shares.cut_rows_address,
            "shares_per_head": rows.number, "cut_rows_per_head": rows.cuts,
            "pieces_per_head": rows.pieces,
            **{f"pitch_{name}": pitch_bytes(x) for name, x in inputs.rows.items()},
            "shift_k": beyond.shifts[0], "shift_v": beyond.shifts[1],
            "beyond_pitch_k": beyond.pitches[0], "beyond_pitch_v": beyond.pitches[1],
            "first_beyond": k.shape[-2],
        }  # fmt: skip
        return Pass(
            variant.kernel, variant.merge, ceil_div(rows.number, THREADS // 32), rows.cuts,
            arguments, new_pieces(problem, rows, floats),
        )  # fmt: skip

    def _variant(self, inputs: PassInputs, beyond: Beyond, merges: bool) -> tuple[Variant, int]:
        """The kernels of a pass, and the floats of a piece of a row or column."""
        problem, by_columns, gradients = self._problem, inputs.by_columns, inputs.gradients
        dtype, device = problem.dtype, self._device
        row_bytes = (problem.d * dtype.itemsize, problem.dv * dtype.itemsize)
        multiples = (multiple for x in inputs.rows.values() for multiple in row_multiples(x))
        results = (gradients.k, gradients.v) if by_columns else (gradients.q,)
        sizes = self._sizes
        step = common_step(*row_bytes, inputs.out.data_ptr(), *multiples, beyond.bits)
        step_out = common_step(*row_bytes, *(address(x) for x in results))
        runtime, stores_weights = loader.runtime, inputs.weights is not None
        if by_columns and stores_weights:
            tuning = attention_sums.tuning_of(problem)
            variant = attention_sums.specialise(
                runtime, tuning, sizes, step, step_out, merges, device
            )
        else:
            tuning = tuning_of(problem, by_columns, stores_weights)
            variant = specialise(
                runtime, tuning, sizes, step, step_out, has_bias_or_dropout(inputs.operands),
                by_columns, stores_weights, merges, device, inputs.operands.beyond is not None,
            )  # fmt: skip
        groups = groups_of(problem.d, problem.dv, dtype.itemsize, tuning)
        return variant, groups.lanes * piece_floats(groups, dtype, by_columns)
