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
    LANE_BYTES,
    NOT_BEYOND,
    THREADS,
    Groups,
    Tuning,
    beyond_of,
    groups_of,
    row_macros,
)
from sddmm.backends.cuda.kernels.attention_gather.shares import rows_by_warp
from sddmm.backends.cuda.kernels.attention_gather.variants import Variant, load_variant
from sddmm.backends.cuda.kernels.spmm_shares.host import SHARE_BYTES, SLOT_BYTES
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.dropout import kept_factor, threshold
from sddmm.dtypes import DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

_LOG2_E = math.log2(math.e)
_WARPS = THREADS // 32  # of a block, each of which has a share


class Arguments(ctypes.Structure):
    """The parameters of attention_gather/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("q", "k", "v", "bias", "scores", "out", "lse")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "slots", "cut_rows")),
        *((name, POINTER) for name in ("pieces", "seed")),
        ("dropout_threshold", LONG),
        *((f"head_{name}", LONG) for name in ("q", "k", "v", "bias", "scores")),
        *((name, LONG) for name in ("shift_k", "shift_v")),
        *((name, INT) for name in ("pitch_q", "pitch_k", "pitch_v")),
        *((name, INT) for name in ("beyond_pitch_k", "beyond_pitch_v", "first_beyond")),
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
    has_beyond: bool = False,
) -> Variant:
    """The kernels for rows of d and dv elements of a dtype, which start and end at multiples of
    `step` bytes, and those of the result at multiples of `step_out`."""
    d, dv, dtype = sizes
    groups = groups_of(d, dv, dtype.itemsize, tuning)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "STORE_BYTES": step_out, "HAS_SCORES": has_scores,
        "HAS_BEYOND": has_beyond,
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

    has_scores: whether scores come from memory; d is then the number of columns of v too. All that
    follows from the problem and the pattern is found once, so that a launch reads the operands'
    addresses and strides alone.
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
        self._spec, self._tuning, self._device = spec, tuning, device
        self._has_scores, self._torch_device = has_scores, problem.device
        d, dv, dtype = problem.dv if has_scores else problem.d, problem.dv, problem.dtype
        self._sizes, self._itemsize = (d, dv, dtype), dtype.itemsize
        self._row_bits = d * dtype.itemsize | dv * dtype.itemsize | LANE_BYTES
        self._out_bits = dv * dtype.itemsize | LANE_BYTES
        self._variants: dict[tuple[int, int, bool, bool], Variant] = {}
        self.rows = rows = rows_by_warp(nonzeros, problem, problem.m, tuning, device)
        groups = groups_of(d, dv, dtype.itemsize, tuning)
        self._floats_of_head = rows.pieces * groups.lanes * piece_floats(groups, dtype)
        rows_and_columns, shares = rows.nonzeros, rows.shares
        self._nonzeros = (
            rows_and_columns.rows.data_ptr(), rows_and_columns.cols.data_ptr(),
            address(rows_and_columns.perm),
        )  # fmt: skip
        self._shares = shares.address, shares.slots_address, shares.cut_rows_address
        self._cuts = rows.cuts
        self._counts = rows.cuts, rows.pieces, problem.m, d, dv, problem.heads

    def new_pieces(self, heads: int) -> Tensor | None:
        """Memory for what launches of so many heads leave of cut rows until they are merged."""
        count = heads * self._floats_of_head
        if count == 0:
            return None
        return new_memory("pieces of rows", (count,), torch.float32, self._torch_device)

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
        q, k, v, bias, scale, dropout_p, seed, rows_beyond = operands
        head, heads, share, shares, scores, first_nonzero = part
        size, has_scores = self._itemsize, self._has_scores
        (head_q, row_q, _), (head_k, row_k, _), (head_v, row_v, _) = (
            q.stride(), k.stride(), v.stride()
        )  # fmt: skip
        address_q, address_k, address_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        address_out, address_lse = out.data_ptr(), lse.data_ptr()
        bits = address_v | (head_v | row_v) * size | self._row_bits
        if not has_scores:
            bits |= address_q | address_k | (head_q | row_q | head_k | row_k) * size
        out_bits = address_out | self._out_bits
        beyond = NOT_BEYOND if rows_beyond is None else beyond_of(k, v, rows_beyond)
        bits |= beyond.bits
        has_bias_or_dropout = bias is not None or dropout_p > 0
        # The largest powers of two that divide the addresses of all rows.
        key = bits & -bits, out_bits & -out_bits, has_bias_or_dropout, rows_beyond is not None
        variant = self._variants.get(key) or self._new_variant(key)
        if head:
            address_q, address_k, address_v = (
                address_q + head * head_q * size, address_k + head * head_k * size,
                address_v + head * head_v * size,
            )  # fmt: skip
            address_out += head * out.stride(0) * size
            address_lse += head * lse.stride(0) * lse.element_size()
        address_bias, head_bias = 0, 0
        if bias is not None:
            head_bias = bias.stride(0) if bias.dim() == 2 else 0
            address_bias = bias.data_ptr() + head * head_bias * size
        address_scores, head_scores = 0, 0
        if scores is not None:
            address_scores, head_scores = scores.data_ptr(), scores.stride(0)
        all_shares, all_slots, cut_rows = self._shares
        somewhere = address_lse  # where a tensor without elements may begin
        arguments = (  # in the order of Arguments
            address_q or somewhere, address_k or somewhere, address_v or somewhere, address_bias,
            address_scores, address_out or somewhere, address_lse, *self._nonzeros,
            all_shares + share * SHARE_BYTES, all_slots + share * SLOT_BYTES, cut_rows,
            address(pieces), address(seed), threshold(dropout_p), head_q, head_k, head_v, head_bias,
            head_scores, *beyond.shifts, row_q * size, row_k * size, row_v * size, *beyond.pitches,
            k.shape[-2], shares, *self._counts, head,
            first_nonzero, _LOG2_E if has_scores else scale * _LOG2_E, kept_factor(dropout_p),
        )  # fmt: skip
        variant.kernel(ceil_div(shares, _WARPS) * heads, *arguments)
        if variant.merge is not None and merges:
            variant.merge(self._cuts * heads, *arguments)

    def _new_variant(self, key: tuple[int, int, bool, bool]) -> Variant:
        step, step_out, bias_or_dropout, has_beyond = key
        variant = specialise(
            loader.runtime, self._spec, self._tuning, self._sizes, step, step_out, bias_or_dropout,
            self._has_scores, self._cuts > 0, self._device, has_beyond,
        )  # fmt: skip
        self._variants[key] = variant
        return variant
