"""row_gather: every warp has the same number of nonzeros, whatever the pattern.

It prepares nothing but row ids. Where rows are long and the operands larger than L2, it computes a
slice of k at a time, so that the slices of all rows stay in L2 (`gather_slice`).
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import (
    PER_CALL,
    KernelPlan,
    LaunchFn,
    address,
    make_launch,
    operand_args,
    rows_are_contiguous,
)
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.row_gather.costs import (
    gather_slice,
    gather_us,
    parts_per_nonzero,
)
from sddmm.backends.cuda.kernels.row_gather.loads import row_loads
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.spec import (
    ROW_IDS,
    AnalysisRequest,
    KernelSpec,
    RowLayouts,
    macros,
    type_macros,
)
from sddmm.dtypes import DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem

# The mean nonzeros of a row from which on rows are long: most groups are then of one row, and warps
# that share a multiprocessor find some rows of B in L1, where these are near. And of a share, as
# groups do not divide smaller ones well.
_LONG_ROW, _LONG_SHARE = 32, 48

# Warps that a multiprocessor holds at the registers of this kernel, at least.
_WARPS_PER_SM = 16
MAX_SHARE = 512
# Half of it suits what would else take so many waves of warps, the last half empty; and rows of
# so many bytes, beside which the start of a share costs little.
_FEW_WAVES, _LONG_BYTES = 2, 512
# Where operands come from memory rather than from L2, warps that run at the same time should load
# adjacent rows, so each has few nonzeros.
_SHARE_IN_MEMORY = 16


class Arguments(ctypes.Structure):
    """GatherArguments of gather_arguments.cuh."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "partial_sums", "out")),
        *((name, POINTER) for name in ("rows", "cols", "perm")),
        *((name, LONG) for name in ("nnz", "pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        ("warps_per_head", LONG),
        *((name, INT) for name in ("nnz_per_warp", "heads", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


class RowGather(KernelSpec):
    """Serves every pattern, in any order of its nonzeros.

    span_bytes: the bytes that the rows of an operand must span less than; None for any.
    """

    span_bytes: ClassVar[int | None] = None

    def needs_ahead(self, problem: SddmmProblem, model: DeviceModel) -> AnalysisRequest | None:
        return ROW_IDS

    def cost_us(
        self, problem: SddmmProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        parts = None if facts is None else parts_per_nonzero(facts, problem.nnz)
        return Cost(gather_us(problem, problem.nnz, model, parts))

    def prepare(
        self, layouts: RowLayouts, problem: SddmmProblem, model: DeviceModel
    ) -> tuple[KernelPlan, ...]:
        return (self.plan(layouts.by_row(), problem, model.device),)

    def variant(self, part: SddmmProblem, nnz: int, device: Device, step: int) -> Variant:
        """What computes so many nonzeros of operands whose rows start at multiples of `step`
        bytes."""
        return specialise(loader.runtime, self, part, nnz, device, step)

    def plan(self, nonzeros: Nonzeros, problem: SddmmProblem, device: Device) -> KernelPlan:
        """The launch that computes these nonzeros of the problem."""
        slices = slices_of(problem, nonzeros.cols.numel(), device)
        launcher = _Launcher(self, nonzeros, problem, device)
        has_rows = problem.m > 0 and problem.n > 0  # else an index has no row to be clamped to
        if len(slices) > 1:
            bind = functools.partial(_bind_slices, launcher, problem, slices)
            return KernelPlan(bind, rows_are_contiguous, takes_any_indices=has_rows)
        return KernelPlan(
            launcher.bind, rows_are_contiguous,
            takes_any_indices=has_rows, launch_once=launcher.launch_once,
        )  # fmt: skip


class _Launcher:
    """Binds operands to launches over fixed nonzeros."""

    def __init__(
        self, spec: RowGather, nonzeros: Nonzeros, problem: SddmmProblem, device: Device
    ) -> None:
        self._spec, self._nonzeros, self._problem, self._device = spec, nonzeros, problem, device

    def bind(self, a: Tensor, b_t: Tensor) -> LaunchFn:
        return self.bind_part(a, b_t, self._problem)

    def launch_once(self, a: Tensor, b_t: Tensor, values: int, out: int, alpha: float) -> None:
        """Launch on operands without keeping the launch; it takes half the time of `bind`."""
        problem, nonzeros = self._problem, self._nonzeros
        nnz = nonzeros.cols.numel()
        args, alignment = operand_args(a, b_t)
        step = math.gcd(alignment, problem.k * problem.dtype.itemsize)
        variant = self._spec.variant(problem, nnz, self._device, step)
        variant.kernel(  # in the order of Arguments
            variant.blocks, args["a"], args["b"], values, 0, out, nonzeros.rows.data_ptr(),
            nonzeros.cols.data_ptr(), address(nonzeros.perm), nnz, args["pitch_a"],
            args["pitch_b"], args["head_a"], args["head_b"], problem.nnz, variant.warps_per_head,
            variant.nnz_per_warp, problem.heads or 1, problem.m, problem.n, problem.k, alpha,
        )  # fmt: skip

    def bind_part(
        self, a: Tensor, b_t: Tensor, part: SddmmProblem, per_call: tuple[str, ...] = PER_CALL
    ) -> Callable[..., None]:
        """The launch on operands with the k and the out_dtype of `part`."""
        nonzeros = self._nonzeros
        nnz = nonzeros.cols.numel()
        args, alignment = operand_args(a, b_t)
        step = math.gcd(alignment, part.k * part.dtype.itemsize)
        variant = self._spec.variant(part, nnz, self._device, step)
        return make_launch(variant.kernel, variant.blocks, {
            **args, "rows": nonzeros.rows.data_ptr(), "cols": nonzeros.cols.data_ptr(),
            "perm": address(nonzeros.perm), "nnz": nnz, "head_out": part.nnz,
            "warps_per_head": variant.warps_per_head, "nnz_per_warp": variant.nnz_per_warp,
            "heads": part.heads or 1, "m": part.m, "n": part.n, "k": part.k, "alpha": 1.0,
        }, per_call)  # fmt: skip


class Variant(NamedTuple):
    """One specialisation of the kernel, and what its launch needs beside its arguments."""

    kernel: Kernel
    blocks: int
    warps_per_head: int
    nnz_per_warp: int


def gather_macros(
    spec: RowGather,
    k: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    step: int,
    long_rows: bool = False,
    several_waves: bool = False,
) -> tuple[dict[str, str | int | bool], int]:
    """The macros of a kernel by gather.cuh for any number of nonzeros, and the nonzeros that a warp
    works on at once."""
    is_half = DTYPES[dtype].is_half
    loads = row_loads(k * dtype.itemsize, is_half, step, long_rows, several_waves)
    # Loads of few bytes need more registers; rows of one line, in groups of one row, fewer.
    blocks_per_sm = spec.min_blocks if step >= 8 else spec.min_blocks // 2
    blocks_per_sm += loads["SWAPPED"]
    defines: dict[str, str | int | bool] = {
        **type_macros(dtype, out_dtype), **loads, "MIN_BLOCKS": blocks_per_sm,
    }  # fmt: skip
    return defines, 32 // loads["LANES"] * loads["BATCHES"]


@functools.lru_cache(maxsize=1024)
def _load(
    runtime: loader.CudaRuntime,
    spec: RowGather,
    k: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    step: int,
    long_rows: bool,
    several_waves: bool,
) -> tuple[Kernel, int]:
    defines, group = gather_macros(spec, k, dtype, out_dtype, step, long_rows, several_waves)
    return runtime.load_kernel(spec, macros(defines), Arguments, device.index), group


@functools.lru_cache(maxsize=1024)
def specialise(
    runtime: loader.CudaRuntime,
    spec: RowGather,
    part: SddmmProblem,
    nnz: int,
    device: Device,
    step: int,
) -> Variant:
    """The kernel for operands whose rows start at multiples of `step` bytes; cached, as every
    pattern with so many nonzeros has the same."""
    warps = device.sm_count * _WARPS_PER_SM
    long_rows = nnz >= max(_LONG_ROW * part.m, _LONG_SHARE * warps)
    kernel, group = _load(
        runtime, spec, part.k, part.dtype, part.out_dtype, device, step,
        long_rows, nnz >= warps * MAX_SHARE,
    )  # fmt: skip
    return variant_of(kernel, spec, part, nnz, device, group, max_share(part, nnz, device))


def variant_of(
    kernel: Kernel,
    spec: RowGather,
    part: SddmmProblem,
    nnz: int,
    device: Device,
    group: int,
    most: int = MAX_SHARE,
) -> Variant:
    """The launch of a kernel whose warps work on a group of so many nonzeros at once, and have at
    `most` so many."""
    warps_per_sm = kernel.blocks_per_sm * spec.threads // 32
    nnz_per_warp = share_of_warp(part, nnz, device, group, most, warps_per_sm)
    warps_per_head = ceil_div(nnz, nnz_per_warp)
    blocks = ceil_div(warps_per_head * (part.heads or 1), spec.threads // 32)
    return Variant(kernel, blocks, warps_per_head, nnz_per_warp)


class Slice(NamedTuple):
    """A slice of k: its first element, and the problem of that slice alone."""

    first: int
    problem: SddmmProblem


def slices_of(problem: SddmmProblem, nnz: int, device: Device) -> tuple[Slice, ...]:
    """The slices of k in which so many nonzeros are gathered, one after the other."""
    width = gather_slice(problem, nnz, device)
    if width == problem.k:
        return (Slice(0, problem),)
    sums = problem._replace(k=width, out_dtype=DTYPES[problem.dtype].accumulator)
    last = (problem.k - 1) // width * width
    return (
        *(Slice(first, sums) for first in range(0, last, width)),
        Slice(last, problem._replace(k=problem.k - last)),
    )


def _bind_slices(
    launcher: _Launcher, problem: SddmmProblem, slices: tuple[Slice, ...], a: Tensor, b_t: Tensor
) -> LaunchFn:
    """The launch of one slice of k after the other, each of which adds to the sums of the last."""

    def bind(part: Slice, per_call: tuple[str, ...]) -> Callable[..., None]:
        columns = slice(part.first, part.first + part.problem.k)
        return launcher.bind_part(a[..., columns], b_t[..., columns], part.problem, per_call)

    slice_launches = [bind(part, ("partial_sums", "out")) for part in slices[:-1]]
    last_launch = bind(slices[-1], ("partial_sums", *PER_CALL))

    def launch(values: int, out: int, alpha: float) -> None:
        # Each run has its own: other threads may run the same plan.
        partial = new_partial_sums(problem)
        sums_so_far = 0  # the first slice has none to add to
        for launch_slice in slice_launches:
            launch_slice(sums_so_far, partial.data_ptr())
            sums_so_far = partial.data_ptr()
        last_launch(sums_so_far, values, out, alpha)

    return launch


def new_partial_sums(problem: SddmmProblem) -> Tensor:
    """Memory for the sums over earlier slices of k."""
    count, dtype = (problem.heads or 1) * problem.nnz, DTYPES[problem.dtype].accumulator
    return new_memory("partial sums of slices of k", (count,), dtype, problem.device)


def max_share(problem: SddmmProblem, nnz: int, device: Device) -> int:
    """The most nonzeros of a warp that finds its row ids at hand."""
    waves = nnz * (problem.heads or 1) / (device.sm_count * _WARPS_PER_SM * MAX_SHARE)
    row_bytes = problem.k * problem.dtype.itemsize
    is_long = row_bytes >= _LONG_BYTES
    return MAX_SHARE // 2 if waves > 1 and (is_long or waves <= _FEW_WAVES) else MAX_SHARE


def share_of_warp(
    problem: SddmmProblem, nnz: int, device: Device, group: int, most: int, warps_per_sm: int
) -> int:
    """Nonzeros of a warp, a multiple of `group`: one wave of warps for small problems, else full
    waves of the warps that a multiprocessor holds."""
    total = nnz * (problem.heads or 1)
    operand_bytes = (problem.m + problem.n) * problem.k * problem.dtype.itemsize
    if operand_bytes > 2 * device.l2_bytes and nnz < 4 * (problem.m + problem.n):
        return max(group, _SHARE_IN_MEMORY)
    warps = device.sm_count * _WARPS_PER_SM
    if total > warps * most:
        warps = device.sm_count * max(1, warps_per_sm)
        warps *= ceil_div(total, warps * most)  # a last wave that is not full costs a whole one
    return max(group, min(most, ceil_div(ceil_div(total, warps), group) * group))


ROW_GATHER = RowGather(
    "row_gather", "row_gather", tuple(DTYPES), threads=128, min_blocks=4, max_nnz=2**63 - 1
)
