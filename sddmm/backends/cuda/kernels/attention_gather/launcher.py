"""Launching attention_gather: its parameters, its specialisations, and parts of an attention."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention import AttentionSpec
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    THREADS,
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
from sddmm.backends.cuda.kernels.attention_gather.shares import new_pieces, rows_by_warp
from sddmm.backends.cuda.kernels.attention_gather.variants import Variant, load_variant
from sddmm.backends.cuda.kernels.spmm_shares.host import SHARE_BYTES, SLOT_BYTES
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.dropout import kept_factor, threshold
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

_LOG2_E = math.log2(math.e)


class Arguments(ctypes.Structure):
    """The parameters of attention_gather/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("q", "k", "v", "bias", "scores", "out", "lse")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "slots", "cut_rows")),
        *((name, POINTER) for name in ("pieces", "seed")),
        ("dropout_threshold", LONG),
        *((f"head_{name}", LONG) for name in ("q", "k", "v", "bias", "scores")),
        *((name, INT) for name in ("pitch_q", "pitch_k", "pitch_v")),
        *((name, INT) for name in ("shares_per_head", "cut_rows_per_head", "pieces_per_head")),
        *((name, INT) for name in ("m", "d", "dv", "heads", "first_head", "first_score")),
        ("scale", FLOAT),
        ("kept", FLOAT),
    ]


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    spec: AttentionSpec,
    tuning: Tuning,
    sizes: tuple[int, int, torch.dtype],
    step: int,
    step_out: int,
    bias_or_dropout: bool,
    has_scores: bool,
    merges: bool,
    device: Device,
) -> Variant:
    """The kernels for rows of d and dv elements of a dtype, which start and end at multiples of
    `step` bytes, and those of the result at multiples of `step_out`."""
    d, dv, dtype = sizes
    groups = groups_of(d, dv, dtype.itemsize, tuning)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "STORE_BYTES": step_out, "HAS_SCORES": has_scores,
        **row_macros(d, dv, dtype.itemsize, step, tuning, device, bias_or_dropout),
    }  # fmt: skip
    floats = piece_floats(groups, dtype)
    return load_variant(runtime, spec, Arguments, defines, floats, bias_or_dropout, merges, device)


def piece_floats(groups: Groups, dtype: torch.dtype) -> int:
    """The floats that a lane holds of a piece of a row: SoftmaxSum::COUNT."""
    return 2 + groups.value_chunks * 16 // dtype.itemsize


class Part(NamedTuple):
    """What one launch computes: some heads, and of each the nonzeros of some shares.

    scores: (heads, nonzeros of the launch) float32, by row, of the nonzeros from first_nonzero on;
    None where the kernel computes them.
    """

    first_head: int
    heads: int
    first_share: int
    shares: int
    scores: Tensor | None = None
    first_nonzero: int = 0


class Launcher:
    """Launches attention over the nonzeros of one pattern.

    has_scores: whether scores come from memory; d is then the number of columns of v too.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        tuning: Tuning,
        nonzeros: Nonzeros,
        problem: AttentionProblem,
        device: Device,
        has_scores: bool = False,
    ) -> None:
        self._spec, self._tuning = spec, tuning
        self._problem, self._device = problem, device
        self._has_scores = has_scores
        self._d = problem.dv if has_scores else problem.d
        self._groups = groups_of(self._d, problem.dv, problem.dtype.itemsize, tuning)
        self.rows = rows_by_warp(nonzeros, problem, problem.m, tuning, device)

    def new_pieces(self, heads: int) -> Tensor | None:
        """Memory for what launches of so many heads leave of cut rows until they are merged."""
        floats = self._groups.lanes * piece_floats(self._groups, self._problem.dtype)
        return new_pieces(self._problem._replace(heads=heads), self.rows, floats)

    def run(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        part: Part,
        pieces: Tensor | None,
        merges: bool = True,
    ) -> None:
        """Launch a part on torch's current stream. merges: whether all pieces of its heads are
        there then."""
        problem, rows = self._problem, self.rows
        q, k, v = operands.q, operands.k, operands.v
        size = problem.dtype.itemsize
        read = (v,) if self._has_scores else (q, k, v)
        step = common_step(
            self._d * size, problem.dv * size,
            *(multiple for x in read for multiple in row_multiples(x)),
        )  # fmt: skip
        variant = specialise(
            loader.runtime, self._spec, self._tuning, (self._d, problem.dv, problem.dtype), step,
            common_step(out.data_ptr(), problem.dv * size), has_bias_or_dropout(operands),
            self._has_scores, rows.cuts > 0, self._device,
        )  # fmt: skip
        somewhere = lse.data_ptr()  # where a tensor without elements may begin
        nonzeros, bias, scores = rows.nonzeros, operands.bias, part.scores
        head, share = part.first_head, part.first_share
        head_bias = head_stride(bias)
        arguments = (  # in the order of Arguments
            *(_address_of_head(x, head) or somewhere for x in (q, k, v)),
            0 if bias is None else bias.data_ptr() + head * head_bias * size, address(scores),
            _address_of_head(out, head) or somewhere, _address_of_head(lse, head),
            nonzeros.rows.data_ptr(), nonzeros.cols.data_ptr(), address(nonzeros.perm),
            rows.shares.address + share * SHARE_BYTES,
            rows.shares.slots_address + share * SLOT_BYTES,
            rows.shares.cut_rows_address, address(pieces), address(operands.seed),
            threshold(operands.dropout_p), q.stride(0), k.stride(0), v.stride(0), head_bias,
            0 if scores is None else scores.stride(0), pitch_bytes(q), pitch_bytes(k),
            pitch_bytes(v), part.shares, rows.cuts, rows.pieces, problem.m, self._d, problem.dv,
            problem.heads, head, part.first_nonzero,
            _LOG2_E if self._has_scores else operands.scale * _LOG2_E,
            kept_factor(operands.dropout_p),
        )  # fmt: skip
        variant.kernel(ceil_div(part.shares, THREADS // 32) * part.heads, *arguments)
        if variant.merge is not None and merges:
            variant.merge(rows.cuts * part.heads, *arguments)


def _address_of_head(x: Tensor, head: int) -> int:
    return x.data_ptr() + head * x.stride(0) * x.element_size()
