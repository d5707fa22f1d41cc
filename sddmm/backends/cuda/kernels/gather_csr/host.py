"""gather_csr: row_gather, and whatever else a first call needs, in one launch."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.row_gather.host import (
    MAX_SHARE,
    ROW_GATHER,
    Variant,
    gather_macros,
    variant_of,
)
from sddmm.backends.cuda.kernels.row_gather.loads import LONGEST_PASS
from sddmm.backends.cuda.spec import KernelSpec, Macros, macros
from sddmm.dtypes import DTYPES, INDEX_DTYPES
from sddmm.problem import without_sizes

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem


class Arguments(ctypes.Structure):
    """The parameters of gather_csr/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "crow_indices", "col_indices")),
        *((name, POINTER) for name in ("state", "next_state", "result")),
        *((name, LONG) for name in ("nnz", "pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("warps_per_head", "nnz_per_warp", "heads", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


# Each of the four warps of a block has the indices of its nonzeros in shared memory, and which rows
# begin at 256 of them.
GATHER_CSR = KernelSpec(
    "gather_csr", "gather_csr", tuple(DTYPES), threads=128, min_blocks=4,
    shared_bytes=4 * 4 * (2 * MAX_SHARE + 256),
)  # fmt: skip


def specialise(problem: SddmmProblem, device: Device, step: int) -> Variant:
    """The kernel for operands whose rows start at multiples of `step` bytes."""
    kernel, group = _load(loader.runtime, without_sizes(problem), device, step)
    return variant_of(kernel, ROW_GATHER, problem, problem.nnz, device, group)


@functools.lru_cache(maxsize=1024)
def _load(
    runtime: loader.CudaRuntime, problem: SddmmProblem, device: Device, step: int
) -> tuple[Kernel, int]:
    defines, group = macros_and_group(problem, step)
    return runtime.load_kernel(GATHER_CSR, defines, Arguments, device.index), group


def macros_and_group(problem: SddmmProblem, step: int) -> tuple[Macros, int]:
    """The macros of gather_csr, and the nonzeros that a warp works on at once."""
    defines, group = gather_macros(ROW_GATHER, problem.k, problem.dtype, problem.out_dtype, step)
    # The guards of rows' ends leave too few registers for the addresses of this kernel, as do the
    # longest passes where there are several.
    blocks_per_sm = int(defines["MIN_BLOCKS"]) - (not defines["NO_TAIL"])
    if defines["PASS_BYTES"] == LONGEST_PASS and not defines["ONE_PASS"]:
        defines["PASS_BYTES"] = LONGEST_PASS // 2
    defines |= {
        "INDEX": INDEX_DTYPES[problem.index_dtype], "MAX_SHARE": MAX_SHARE,
        "MIN_BLOCKS": blocks_per_sm,
    }  # fmt: skip
    return macros(defines), group
