"""attention_delta: the logarithm of each row, beside the sum of dO * O less its gradient."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    THREADS,
    Tuning,
    common_step,
    groups_of,
    pitch_bytes,
    row_macros,
    row_multiples,
)
from sddmm.backends.cuda.spec import KernelSpec, macros
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

ATTENTION_DELTA = KernelSpec(
    "attention_delta", "attention_delta", (torch.float16, torch.bfloat16, torch.float32),
    threads=THREADS,
)  # fmt: skip


class Arguments(ctypes.Structure):
    """The parameters of attention_delta/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("out", "grad", "grad_lse", "lse", "stats")),
        ("head_grad", LONG),
        ("rows", LONG),
        *((name, INT) for name in ("pitch_grad", "m", "dv")),
    ]


@functools.lru_cache(maxsize=256)
def load(
    runtime: loader.CudaRuntime, dv: int, dtype: torch.dtype, step: int, device: Device
) -> tuple[Kernel, int]:
    """The kernel for rows of dv elements, and the lanes of a row."""
    groups = groups_of(0, dv, dtype.itemsize, Tuning())
    rows = row_macros(0, dv, dtype.itemsize, step, Tuning(), device)
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "LOAD_BYTES": step, "LANES": groups.lanes,
        "CHUNKS": groups.value_chunks, "NO_TAIL": rows["VALUE_NO_TAIL"],
    }  # fmt: skip
    kernel = runtime.load_kernel(ATTENTION_DELTA, macros(defines), Arguments, device.index)
    return kernel, groups.lanes


def row_stats(
    problem: AttentionProblem,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    device: Device,
) -> Tensor:
    """(heads, m, 2) float32: the RowStats of row_stats.cuh."""
    rows = problem.heads * problem.m
    stats = torch.empty(problem.heads, problem.m, 2, device=out.device, dtype=torch.float32)
    step = common_step(out.data_ptr(), problem.dv * out.element_size(), *row_multiples(grad_out))
    kernel, lanes = load(loader.runtime, problem.dv, problem.dtype, step, device)
    somewhere = stats.data_ptr()  # where a tensor without elements may begin
    kernel(  # in the order of Arguments
        ceil_div(rows * lanes, THREADS), out.data_ptr() or somewhere,
        grad_out.data_ptr() or somewhere, address(grad_lse), lse.data_ptr(), stats.data_ptr(),
        grad_out.stride(0), rows, pitch_bytes(grad_out), problem.m, problem.dv,
    )  # fmt: skip
    return stats
