"""attention_gather: every warp has the same number of nonzeros and rows, whatever the pattern.

It needs the nonzeros sorted by row, and how warps share them (spmm_shares). Rows that warps cut
leave pieces, which a second launch merges. The gradients are attention_gradient's.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER, Kernel
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.attention import AttentionPlan
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.attention import AttentionSpec
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    MAX_ROW_BYTES,
    Groups,
    Tuning,
    common_step,
    groups_of,
    has_bias_or_dropout,
    head_stride,
    pitch_bytes,
    row_macros,
    row_multiples,
)
from sddmm.backends.cuda.kernels.attention_gather.shares import (
    new_pieces,
    rows_by_warp,
)
from sddmm.backends.cuda.kernels.attention_gradient.host import Gradients
from sddmm.backends.cuda.spec import Layouts, macros
from sddmm.dropout import kept_factor, threshold
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

_LOG2_E = math.log2(math.e)
# The time of a nonzero on an H200 that does not depend on the bytes of its rows, and the least time
# of one, in bytes.
_NONZERO_BYTES, _LEAST_BYTES = 60, 200


class Arguments(ctypes.Structure):
    """The parameters of attention_gather/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("q", "k", "v", "bias", "out", "lse")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "slots", "cut_rows")),
        *((name, POINTER) for name in ("pieces", "seed")),
        ("dropout_threshold", LONG),
        *((name, LONG) for name in ("head_q", "head_k", "head_v", "head_bias")),
        *((name, INT) for name in ("pitch_q", "pitch_k", "pitch_v")),
        *((name, INT) for name in ("shares_per_head", "cut_rows_per_head", "pieces_per_head")),
        *((name, INT) for name in ("m", "d", "dv", "heads")),
        ("scale", FLOAT),
        ("kept", FLOAT),
    ]


@dataclass(frozen=True, eq=False)
class AttentionGather(AttentionSpec):
    """Serves every pattern, with rows that the lanes of a warp hold in registers.

    tuning: of the forward; gradient_tuning: of the gradients.
    """

    tuning: Tuning = field(default_factory=lambda: Tuning(min_blocks=(6, 4), spared=1))
    gradient_tuning: Tuning = field(default_factory=Tuning)

    def most_columns(self, problem: AttentionProblem) -> int:
        return MAX_ROW_BYTES // problem.dtype.itemsize

    def cost_us(
        self, problem: AttentionProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        return Cost(attention_us(problem, model))

    def prepare(
        self, layouts: Layouts, problem: AttentionProblem, model: DeviceModel
    ) -> tuple[AttentionPlan, ...]:
        return (_Plan(self, layouts, problem, model.device),)


def attention_us(problem: AttentionProblem, model: DeviceModel) -> float:
    """The forward: two rows per nonzero out of L2, and all operands and results once out of
    memory."""
    groups = groups_of(problem.d, problem.dv, problem.dtype.itemsize, Tuning())
    row_bytes = 16 * groups.lanes * (groups.key_chunks + groups.value_chunks)
    nonzero_bytes = max(row_bytes + _NONZERO_BYTES, _LEAST_BYTES)
    l2_us = 1e6 * problem.nnz * nonzero_bytes / model.l2_bytes
    rows = min(problem.m, problem.nnz) + min(problem.n, problem.nnz)
    memory_us = 1e6 * rows * row_bytes / model.memory_bytes
    return model.launch_us + problem.heads * (l2_us + memory_us)


class Variant(NamedTuple):
    """One specialisation of both launches. merge: None until a pattern has cut rows."""

    kernel: Kernel
    merge: Kernel | None


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    spec: AttentionGather,
    sizes: tuple[int, int, torch.dtype],
    step: int,
    step_out: int,
    bias_or_dropout: bool,
    merges: bool,
    device: Device,
) -> Variant:
    """The kernels for rows of d and dv elements of a dtype, which start and end at multiples of
    `step` bytes, and those of the result at multiples of `step_out`."""
    d, dv, dtype = sizes
    groups = groups_of(d, dv, dtype.itemsize, spec.tuning)
    floats = piece_floats(groups, dtype)
    spec = _spec_with_memory(spec, (2 * floats + 1) * spec.threads * 4)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "STORE_BYTES": step_out,
        **row_macros(d, dv, dtype.itemsize, step, spec.tuning, device, bias_or_dropout),
    }  # fmt: skip

    def load(merges: bool) -> Kernel:
        # What merges pieces reads no nonzeros.
        own = {"MERGES": merges, "BIAS_OR_DROPOUT": bias_or_dropout and not merges}
        return runtime.load_kernel(spec, macros({**defines, **own}), Arguments, device.index)

    return Variant(load(False), load(True) if merges else None)


@functools.lru_cache(maxsize=64)
def _spec_with_memory(spec: AttentionGather, shared_bytes: int) -> AttentionGather:
    return replace(spec, shared_bytes=shared_bytes)


def piece_floats(groups: Groups, dtype: torch.dtype) -> int:
    """The floats that a lane holds of a piece of a row: SoftmaxSum::COUNT."""
    return 2 + groups.value_chunks * 16 // dtype.itemsize


class _Plan:
    """Launches attention over one pattern."""

    def __init__(
        self, spec: AttentionGather, layouts: Layouts, problem: AttentionProblem, device: Device
    ) -> None:
        self._spec, self._problem, self._device = spec, problem, device
        groups = groups_of(problem.d, problem.dv, problem.dtype.itemsize, spec.tuning)
        self._piece_floats = groups.lanes * piece_floats(groups, problem.dtype)
        self._rows = rows_by_warp(layouts.by_row(), problem, problem.m, spec.tuning, device)
        nonzeros = self._rows.nonzeros
        self._gradients = Gradients(spec.gradient_tuning, nonzeros, problem, device)

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        problem, rows, spec = self._problem, self._rows, self._spec
        q, k, v = operands.q, operands.k, operands.v
        size = problem.dtype.itemsize
        step = common_step(
            problem.d * size, problem.dv * size,
            *(multiple for x in (q, k, v) for multiple in row_multiples(x)),
        )  # fmt: skip
        variant = specialise(
            loader.runtime, spec, (problem.d, problem.dv, problem.dtype), step,
            common_step(out.data_ptr(), problem.dv * size), has_bias_or_dropout(operands),
            rows.cuts > 0, self._device,
        )  # fmt: skip
        pieces = new_pieces(problem, rows, self._piece_floats)
        somewhere = lse.data_ptr()  # where a tensor without elements may begin
        nonzeros, bias = rows.nonzeros, operands.bias
        arguments = (  # in the order of Arguments
            q.data_ptr() or somewhere, k.data_ptr() or somewhere, v.data_ptr() or somewhere,
            address(bias), out.data_ptr() or somewhere, lse.data_ptr(), nonzeros.rows.data_ptr(),
            nonzeros.cols.data_ptr(), address(nonzeros.perm), rows.shares.data_ptr(),
            address(rows.slots), address(rows.cut_rows), address(pieces), address(operands.seed),
            threshold(operands.dropout_p), q.stride(0), k.stride(0), v.stride(0),
            head_stride(bias), pitch_bytes(q), pitch_bytes(k), pitch_bytes(v), rows.number,
            rows.cuts, rows.pieces, problem.m, problem.d, problem.dv, problem.heads,
            operands.scale * _LOG2_E, kept_factor(operands.dropout_p),
        )  # fmt: skip
        variant.kernel(ceil_div(rows.number, spec.threads // 32) * problem.heads, *arguments)
        if variant.merge is not None:
            variant.merge(rows.cuts * problem.heads, *arguments)

    def prepare_backward(self) -> None:
        self._gradients.prepare()

    def backward(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        self._gradients.run(operands, out, lse, grad_out, grad_lse, gradients)


ATTENTION_GATHER = AttentionGather(
    "attention_gather",
    "attention_gather",
    (torch.float16, torch.bfloat16, torch.float32),
    threads=128,
)
