"""spmm_gather and its helpers compile without spills for every architecture we name."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.product_rows import Access
from sddmm.backends.cuda.kernels.row_starts.host import load as load_offsets
from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER, specialise, work_of
from sddmm.backends.cuda.kernels.spmm_rows.host import load as load_rows
from sddmm.backends.cuda.kernels.spmm_shares.host import load as load_shares
from sddmm.backends.cuda.kernels.spmm_weights.host import (
    dtype_of,
    heads_together,
    load_side_by_side,
)
from sddmm.backends.cuda.kernels.spmm_weights.host import load as load_weights
from sddmm.backends.cuda.kernels.spmm_windows.host import SPMM_WINDOWS
from sddmm.dtypes import DTYPES
from sddmm.problem import SpmmProblem
from tests.cases import cases
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache

__all__ = ["compiler", "own_cache"]

# Elements of a row, and the bytes at whose multiples rows start: every number of lanes of a row.
SIZES = [(64, 16), (512, 16), (300, 8), (33, 2), (1, 2), (16, 16), (32, 16), (100, 4)]


def problem_of(
    k: int,
    dtype: torch.dtype,
    values_dtype: torch.dtype,
    out_dtype: torch.dtype,
    nnz: int = 1000,
) -> SpmmProblem:
    return SpmmProblem(
        100, 100, k, nnz, dtype, values_dtype, out_dtype, torch.int32, None, False, False,
        torch.device("cuda", 0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "dtype"),
    cases(
        itertools.product(DEVICES, DTYPES),
        here=[("sm_80", torch.float32), ("sm_89", torch.float16)],
    ),
)
def test_it_compiles_without_spilling(
    arch: str, dtype: torch.dtype, compiler: Callable[[Device], Compiler]
) -> None:
    """On Hopper every size, with short and with long rows, and every dtype of values and of results
    with some size."""
    device = DEVICES[arch]
    made = compiler(device)
    is_hopper = arch == "sm_90a"
    lengths = (1000, 10_000) if is_hopper else (1000,)
    sizes = SIZES if is_hopper else SIZES[:2]
    for nnz, (i, (k, step)) in itertools.product(lengths, enumerate(sizes)):
        step = max(step, dtype.itemsize)
        values_dtype = list(DTYPES)[i % 4] if is_hopper and i >= 2 else dtype
        out_dtype = list(DTYPES)[(i + i // 4) % 4] if is_hopper and i >= 2 else dtype
        problem = problem_of(k, dtype, values_dtype, out_dtype, nnz)
        step_out = max(step, out_dtype.itemsize)
        has_perm = i % 2 == 1
        for access in (Access(step, step_out), Access(step, step_out, i % 4 < 2, True)):
            work = work_of(SPMM_GATHER, problem, device, has_perm)
            specialise(loader.runtime, SPMM_GATHER, work, device, access)
            load_rows(loader.runtime, problem, access, has_perm, device)
        assert SPMM_GATHER.refuses(problem, device) is None
    load_shares(loader.runtime, device.index)
    load_offsets(loader.runtime, device.index)
    for has_factors, heads in itertools.product((False, True), (2, 3)):
        together = heads_together(heads, dtype)
        load_weights(loader.runtime, dtype, torch.float16, has_factors, device.index)
        load_weights(loader.runtime, dtype, torch.float16, False, device.index, together)
        together = heads_together(heads, dtype_of(dtype, torch.float16, has_factors))
        load_side_by_side(loader.runtime, dtype, torch.float16, has_factors, together, device.index)
    assert set(made.cubins) == {
        "spmm_gather", "spmm_merge", "spmm_shares", "spmm_rows", "row_starts", "spmm_weights",
        "weights_by_nonzero",
    }  # fmt: skip
    for cubins in made.cubins.values():
        for cubin in cubins:
            assert cubin.resources.spill_bytes == 0


@pytest.mark.parametrize("has_factors", [False, True])
def test_windows_compile_without_spilling(
    has_factors: bool, compiler: Callable[[Device], Compiler]
) -> None:
    device = DEVICES["sm_90a"]
    made = compiler(device)
    for step, k in ((16, 64), (16, 40), (8, 40), (4, 33)):
        for values_dtype in (torch.float32, torch.bfloat16):
            problem = problem_of(k, torch.float32, values_dtype, torch.float32)
            problem = problem._replace(has_factors=has_factors)
            assert SPMM_WINDOWS.refuses(problem, device) is None
            SPMM_WINDOWS.load(problem, SPMM_WINDOWS.geometry(problem), step, device)
    assert all(cubin.resources.spill_bytes == 0 for cubin in made.cubins["spmm_windows"])
