"""attention_gradient: the gradients of attention; each of two passes gathers two rows per nonzero.

The pass by rows has the shares of the forward and computes dQ and dbias; the pass by columns has
shares of its own and computes dK and dV. attention_delta launches first, for the sums that all
scores of a row share.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER, Kernel, ceil_div
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    Groups,
    SharedRows,
    Tuning,
    common_step,
    groups_of,
    head_stride,
    new_pieces,
    pitch_bytes,
    row_macros,
    row_multiples,
    rows_by_warp,
)
from sddmm.backends.cuda.layouts import Nonzeros, by_row_and_column
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dropout import kept_factor, threshold
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem


class Arguments(ctypes.Structure):
    """The parameters of attention_gradient/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("own_key", "own_value", "key", "value", "bias")),
        *((name, POINTER) for name in ("lse", "delta", "key_grad", "value_grad", "bias_grad")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "slots", "cut_rows")),
        *((name, POINTER) for name in ("pieces", "seed")),
        ("dropout_threshold", LONG),
        *((name, LONG) for name in ("head_own_key", "head_own_value", "head_key", "head_value")),
        ("head_bias", LONG),
        *((f"pitch_{name}", INT) for name in ("own_key", "own_value", "key", "value")),
        *((name, INT) for name in ("shares_per_head", "cut_rows_per_head", "pieces_per_head")),
        *((name, INT) for name in ("nnz", "row_count", "query_count", "d", "dv")),
        *((name, INT) for name in ("first_head", "sums_bias")),
        ("scale", FLOAT),
        ("kept", FLOAT),
    ]


class DeltaArguments(ctypes.Structure):
    """The parameters of attention_delta/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("out", "grad", "grad_lse", "delta")),
        ("head_grad", LONG),
        ("rows", LONG),
        *((name, INT) for name in ("pitch_grad", "m", "dv")),
    ]


_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ATTENTION_GRADIENT = KernelSpec("attention_gradient", "attention_gradient", _DTYPES, threads=128)
ATTENTION_DELTA = KernelSpec("attention_delta", "attention_delta", _DTYPES, threads=128)


def piece_floats(groups: Groups, dtype: torch.dtype, by_columns: bool) -> int:
    """The floats that a lane holds of a piece of a row or a column: Partial::COUNT."""
    chunks = groups.key_chunks + (groups.value_chunks if by_columns else 0)
    return chunks * 16 // dtype.itemsize


class Variant(NamedTuple):
    """One specialisation of both launches of a pass. merge: None if the pattern has no cut rows."""

    kernel: Kernel
    merge: Kernel | None


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    tuning: Tuning,
    sizes: tuple[int, int, torch.dtype],
    step: int,
    step_out: int,
    by_columns: bool,
    merges: bool,
    device: Device,
) -> Variant:
    """The kernels of a pass for rows of d and dv elements of a dtype; see attention_gather."""
    d, dv, dtype = sizes
    groups = groups_of(d, dv, dtype.itemsize, tuning)
    floats = piece_floats(groups, dtype, by_columns)
    threads = ATTENTION_GRADIENT.threads
    spec = _spec_with_memory((2 * floats + 1) * threads * 4)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "STORE_BYTES": step_out, "COLUMNS": by_columns,
        **row_macros(d, dv, dtype.itemsize, step, tuning, device),
    }  # fmt: skip

    def load(merges: bool) -> Kernel:
        return runtime.load_kernel(
            spec, macros({**defines, "MERGES": merges}), Arguments, device.index
        )

    return Variant(load(False), load(True) if merges else None)


@functools.lru_cache(maxsize=64)
def _spec_with_memory(shared_bytes: int) -> KernelSpec:
    return replace(ATTENTION_GRADIENT, shared_bytes=shared_bytes)


@functools.lru_cache(maxsize=256)
def load_delta(
    runtime: loader.CudaRuntime, dv: int, dtype: torch.dtype, step: int, device: Device
) -> tuple[Kernel, int]:
    """The kernel for rows of dv elements, and the lanes of a row."""
    groups = groups_of(0, dv, dtype.itemsize, Tuning())
    rows = row_macros(0, dv, dtype.itemsize, step, Tuning(), device)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "LOAD_BYTES": step, "LANES": groups.lanes,
        "CHUNKS": groups.value_chunks, "NO_TAIL": rows["VALUE_NO_TAIL"],
    }  # fmt: skip
    kernel = runtime.load_kernel(ATTENTION_DELTA, macros(defines), DeltaArguments, device.index)
    return kernel, groups.lanes


class Gradients:
    """Launches the gradients of attention over one pattern.

    rows: the shares of the forward, by rows.
    """

    def __init__(
        self, tuning: Tuning, rows: SharedRows, problem: AttentionProblem, device: Device
    ) -> None:
        self._tuning, self._rows = tuning, rows
        self._problem, self._device = problem, device
        self._columns: SharedRows | None = None
        self._groups = groups_of(problem.d, problem.dv, problem.dtype.itemsize, tuning)

    def prepare(self) -> None:
        """Sort the nonzeros by column."""
        problem = self._problem
        rows, cols, perm = self._rows.nonzeros
        nonzeros = by_row_and_column(Nonzeros(cols, rows, perm))
        device = self._device
        self._columns = rows_by_warp(nonzeros, problem, problem.n, self._tuning, device)
        loader.runtime.wait(device.index)  # the next call may come on another stream

    def run(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        delta = self._delta(out, grad_out, grad_lse)
        if gradients.q is not None or gradients.bias is not None:
            self._run_rows(operands, lse, delta, grad_out, gradients)
        if gradients.k is not None or gradients.v is not None:
            assert self._columns is not None, "prepare_backward comes first"
            variant, pieces = self._variant(operands, grad_out, gradients, True)
            arguments = self._arguments(operands, lse, delta, grad_out, pieces, True)
            arguments.update(key_grad=address(gradients.k), value_grad=address(gradients.v))
            self._launch(variant, self._columns, arguments, self._problem.heads)

    def _run_rows(
        self,
        operands: AttentionOperands,
        lse: Tensor,
        delta: Tensor,
        grad_out: Tensor,
        gradients: AttentionGradients,
    ) -> None:
        problem, bias = self._problem, gradients.bias
        variant, pieces = self._variant(operands, grad_out, gradients, False)
        arguments = self._arguments(operands, lse, delta, grad_out, pieces, False)
        arguments["key_grad"] = address(gradients.q)
        sums_bias = bias is not None and problem.heads > 1 and not problem.bias_has_heads
        if bias is None or not sums_bias:
            arguments["bias_grad"] = address(bias)
            self._launch(variant, self._rows, arguments, problem.heads)
            return
        # Heads share the bias: one launch after the other adds, in a fixed order.
        sums = bias if bias.dtype == torch.float32 else torch.empty_like(bias, dtype=torch.float32)
        arguments.update(bias_grad=sums.data_ptr(), sums_bias=1)
        for head in range(problem.heads):
            arguments["first_head"] = head
            self._launch(variant, self._rows, arguments, 1, merges=head == problem.heads - 1)
        if sums is not bias:
            bias.copy_(sums)

    def _launch(
        self,
        variant: Variant,
        rows: SharedRows,
        arguments: dict[str, int | float],
        heads: int,
        merges: bool = True,
    ) -> None:
        values = [arguments[name] for name, *_ in Arguments._fields_]
        variant.kernel(ceil_div(rows.number, ATTENTION_GRADIENT.threads // 32) * heads, *values)
        if variant.merge is not None and merges:
            variant.merge(rows.cuts * self._problem.heads, *values)

    def _delta(self, out: Tensor, grad_out: Tensor, grad_lse: Tensor | None) -> Tensor:
        problem = self._problem
        delta = torch.empty(problem.heads, problem.m, device=out.device, dtype=torch.float32)
        step = common_step(
            out.data_ptr(), problem.dv * out.element_size(), *row_multiples(grad_out)
        )
        kernel, lanes = load_delta(loader.runtime, problem.dv, problem.dtype, step, self._device)
        somewhere = delta.data_ptr()  # where a tensor without elements may begin
        kernel(  # in the order of DeltaArguments
            ceil_div(delta.numel() * lanes, ATTENTION_DELTA.threads),
            out.data_ptr() or somewhere, grad_out.data_ptr() or somewhere, address(grad_lse),
            delta.data_ptr(), grad_out.stride(0), delta.numel(), pitch_bytes(grad_out), problem.m,
            problem.dv,
        )  # fmt: skip
        return delta

    def _piece_floats(self, by_columns: bool) -> int:
        """The floats of a piece of a row or a column."""
        return self._groups.lanes * piece_floats(self._groups, self._problem.dtype, by_columns)

    def _variant(
        self,
        operands: AttentionOperands,
        grad_out: Tensor,
        gradients: AttentionGradients,
        by_columns: bool,
    ) -> tuple[Variant, Tensor | None]:
        """The kernels of a pass for these operands, and memory for pieces."""
        problem, rows = self._problem, self._columns if by_columns else self._rows
        assert rows is not None
        size = problem.dtype.itemsize
        row_bytes = (problem.d * size, problem.dv * size)
        inputs = (operands.q, operands.k, operands.v, grad_out)
        results = (gradients.k, gradients.v) if by_columns else (gradients.q,)
        variant = specialise(
            loader.runtime, self._tuning, (problem.d, problem.dv, problem.dtype),
            common_step(*row_bytes, *(bits for x in inputs for bits in row_multiples(x))),
            common_step(*row_bytes, *(address(x) for x in results)),
            by_columns, rows.cuts > 0, self._device,
        )  # fmt: skip
        return variant, new_pieces(problem, rows, self._piece_floats(by_columns))

    def _arguments(
        self,
        operands: AttentionOperands,
        lse: Tensor,
        delta: Tensor,
        grad_out: Tensor,
        pieces: Tensor | None,
        by_columns: bool,
    ) -> dict[str, int | float]:
        """The arguments of a pass by name, without gradients."""
        problem, rows = self._problem, self._columns if by_columns else self._rows
        assert rows is not None
        of_queries, of_keys = (operands.q, grad_out), (operands.k, operands.v)
        own, gathered = (of_keys, of_queries) if by_columns else (of_queries, of_keys)
        arguments: dict[str, int | float] = {
            "bias": address(operands.bias), "head_bias": head_stride(operands.bias),
            "lse": lse.data_ptr(), "delta": delta.data_ptr(),
            "key_grad": 0, "value_grad": 0, "bias_grad": 0, "first_head": 0, "sums_bias": 0,
            "rows": rows.nonzeros.rows.data_ptr(), "cols": rows.nonzeros.cols.data_ptr(),
            "perm": address(rows.nonzeros.perm), "shares": rows.shares.data_ptr(),
            "slots": address(rows.slots), "cut_rows": address(rows.cut_rows),
            "pieces": address(pieces), "seed": address(operands.seed),
            "dropout_threshold": threshold(operands.dropout_p),
            "kept": kept_factor(operands.dropout_p), "scale": operands.scale,
            "shares_per_head": rows.number, "cut_rows_per_head": rows.cuts,
            "pieces_per_head": rows.pieces, "nnz": problem.nnz,
            "row_count": problem.n if by_columns else problem.m, "query_count": problem.m,
            "d": problem.d, "dv": problem.dv,
        }  # fmt: skip
        for x, name in zip(
            (*own, *gathered), ("own_key", "own_value", "key", "value"), strict=True
        ):
            arguments[name] = x.data_ptr() or lse.data_ptr()  # without elements: anywhere
            arguments[f"head_{name}"], arguments[f"pitch_{name}"] = x.stride(0), pitch_bytes(x)
        return arguments
