"""attention_sums: dK and dV from the weights that attention_gradient has stored."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import torch

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import FLOAT, INT, LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    THREADS,
    Tuning,
    groups_of,
    has_few,
    row_macros,
)
from sddmm.backends.cuda.kernels.attention_gather.variants import Variant, load_variant
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.dtypes import DTYPES

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

# The most nonzeros, of all heads of a launch, whose weights are in memory at a time.
MOST_WEIGHTS = 2**22
# The least bytes of a nonzero's rows for which weights are stored.
_MANY_BYTES = 512
# For columns of many nonzeros, and of few: the nonzeros of one column are loaded together.
TUNING, SHORT_TUNING = Tuning(batch=8, min_lanes=8), Tuning(min_blocks=(5, 2))


class Arguments(ctypes.Structure):
    """The parameters of attention_sums/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("key", "value", "weights", "key_grad", "value_grad")),
        *((name, POINTER) for name in ("rows", "cols", "perm", "shares", "slots", "cut_rows")),
        ("pieces", POINTER),
        *((name, LONG) for name in ("head_key", "head_value")),
        *((name, INT) for name in ("pitch_key", "pitch_value")),
        *((name, INT) for name in ("shares_per_head", "cut_rows_per_head", "pieces_per_head")),
        *((name, INT) for name in ("nnz", "row_count", "d", "dv", "first_head")),
        ("scale", FLOAT),
    ]


ATTENTION_SUMS = KernelSpec(
    "attention_sums", "attention_sums", (torch.float16, torch.bfloat16, torch.float32),
    threads=THREADS,
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    tuning: Tuning,
    sizes: tuple[int, int, torch.dtype],
    step: int,
    step_out: int,
    merges: bool,
    device: Device,
) -> Variant:
    """The kernels for rows of d and dv elements of a dtype; see attention_gather."""
    d, dv, dtype = sizes
    defines: dict[str, str | int | bool] = {
        "ELEMENT": DTYPES[dtype].cpp_name, "STORE_BYTES": step_out,
        **row_macros(d, dv, dtype.itemsize, step, tuning, device),
    }  # fmt: skip
    groups = groups_of(d, dv, dtype.itemsize, tuning)
    floats = (groups.key_chunks + groups.value_chunks) * 16 // dtype.itemsize  # Partial::COUNT
    return load_variant(runtime, ATTENTION_SUMS, Arguments, defines, floats, False, merges, device)


def tuning_of(problem: AttentionProblem) -> Tuning:
    """The tuning for the columns of a problem."""
    return SHORT_TUNING if has_few(problem.nnz, problem.n) else TUNING


def pays(problem: AttentionProblem) -> bool:
    """Whether storing the weights is quicker than computing them again: where rows have many bytes,
    or columns so few nonzeros that their own rows count."""
    if not 0 < problem.nnz <= MOST_WEIGHTS:
        return False
    row_bytes = (problem.d + problem.dv) * problem.dtype.itemsize
    return row_bytes >= _MANY_BYTES or has_few(problem.nnz, problem.n)
