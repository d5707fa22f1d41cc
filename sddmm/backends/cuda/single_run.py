"""A single run in straight code: row_gather is launched behind what checks the pattern.

Of a CSR pattern that is not kept that is a kernel that finds the row of each nonzero, and nothing
else; where the host takes longer than the GPU, a single launch does all. Other patterns are
analysed, as later plans read the analysis.

The first call with a pattern spends its time on the host. So everything that follows from the
problem is found once, by `single_run`, and a run touches the addresses alone. It makes no plan.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, Kernel
from sddmm.backends.base import FirstRun
from sddmm.backends.cuda import analysis, expand, loader
from sddmm.backends.cuda.analysis import Analysis, raise_invalid
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.kernels.row_gather.host import (
    MAX_SHARE,
    RowGather,
    Variant,
    gather_macros,
    gather_us,
    new_partial_sums,
    slices_of,
    specialise,
    variant_of,
)
from sddmm.backends.cuda.spec import ROW_IDS, KernelSpec, Macros, macros
from sddmm.dtypes import DTYPES, INDEX_DTYPES
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern

# The predicted time of gathering up to which a single launch takes less than two.
SINGLE_LAUNCH_US = 35.0
# The mean nonzeros of a row from which on rows are expanded without an analysis: a warp that meets
# many short or empty rows finds them one window after the other.
EXPANDED_ROW = 64
_INDICES = "row ids and columns of {shape[0]} nonzeros"


class GatherCsrArguments(ctypes.Structure):
    """The parameters of gather_csr/kernel.cu."""

    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "crow_indices", "col_indices")),
        *((name, POINTER) for name in ("state", "next_state", "result")),
        *((name, LONG) for name in ("nnz", "pitch_a", "pitch_b", "head_a", "head_b", "head_out")),
        *((name, INT) for name in ("warps_per_head", "nnz_per_warp", "heads", "m", "n", "k")),
        ("alpha", DOUBLE),
    ]


# Each of the four warps of a block has the indices of its nonzeros and a window in shared memory.
GATHER_CSR = KernelSpec(
    "gather_csr", "gather_csr", tuple(DTYPES), threads=128, min_blocks=4,
    shared_bytes=4 * 4 * (2 * MAX_SHARE + 64),
)  # fmt: skip


class SingleRun:
    """The runs of one problem on patterns of one form. Use it where `serves` says that it can.

    expands: whether a kernel finds the rows of nonzeros and checks the indices, in place of an
    analysis.
    """

    def __init__(
        self,
        kernel: RowGather,
        problem: SddmmProblem,
        device: Device,
        is_csr: bool,
        expands: bool,
    ) -> None:
        self._kernel, self._problem, self._device = kernel, problem, device
        self._nnz, self._torch_device = problem.nnz, problem.device
        self._index_shape = (problem.nnz,)
        self._is_narrow = problem.index_dtype == torch.int32
        self._stores_rows = is_csr or not self._is_narrow
        self._itemsize = problem.dtype.itemsize
        self._row_bytes = problem.k * self._itemsize
        self._slices = slices_of(problem, problem.nnz, device)
        self._variants: dict[int, tuple[Variant, ...]] = {}
        self._heads = 1 if problem.heads is None else problem.heads
        self._expands = expands
        if expands:
            self._blocks, nnz_per_warp = expand.launch_sizes(problem.m, problem.nnz, device)
            self._sizes: tuple[int, ...] = problem.nnz, nnz_per_warp, problem.m, problem.n
            self._no_tiles: tuple[int, ...] = ()
            self._check_kernel, self._results = expand.kernel_and_results(
                problem.device, device.index, problem.index_dtype
            )
        else:
            items = max(problem.nnz, problem.m if is_csr else 0) + 1
            sizes = analysis.sizes_of((problem.m, problem.n), items, ROW_IDS)
            self._blocks, self._sizes = sizes.blocks, (problem.nnz, *sizes.parameters)
            self._no_tiles = 0, 0
            self._check_kernel, self._results = analysis.kernel_and_results(
                problem.device, device.index, self._is_narrow, is_csr
            )

    @staticmethod
    def can_serve(problem: SddmmProblem) -> bool:
        """Whether there is a value to compute, and a row to which an index out of range can be
        clamped."""
        return min(problem.m, problem.n, problem.nnz, problem.k) > 0 and problem.heads != 0

    def is_current(self) -> bool:
        """Whether torch's current device is the problem's, as it must be for a launch."""
        current: int = loader.runtime.current_device()
        return self._device.index == current

    def serves(self, pattern: SparsePattern, run: FirstRun) -> bool:
        """Whether all tensors can be read as they are, without a copy."""
        a, b, values, _ = run.operands
        if not (pattern.major_indices.is_contiguous() and pattern.col_indices.is_contiguous()):
            return False
        if (a.stride(-1) != 1 or b.stride(-2) != 1) and self._problem.k != 1:
            return False
        if a.is_neg() or b.is_neg() or a._is_zerotensor() or b._is_zerotensor():
            return False
        return values is None or _is_plain(values)

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> Analysis | None:
        """Launch a run, and return when the pattern is checked: the analysis, where that has done
        it. ValueError for a wrong pattern."""
        rows, cols = pattern.major_indices, pattern.col_indices
        address_rows, address_cols = rows.data_ptr(), cols.data_ptr()
        stored_rows = stored_cols = 0
        if self._stores_rows:
            rows = new_memory(_INDICES, self._index_shape, torch.int32, self._torch_device)
            stored_rows = rows.data_ptr()
        if not self._is_narrow:
            cols = new_memory(_INDICES, self._index_shape, torch.int32, self._torch_device)
            stored_cols = cols.data_ptr()
        results = self._results
        results.reset()
        self._check_kernel(
            self._blocks, address_rows, address_cols, stored_rows, stored_cols, *self._no_tiles,
            results.state, results.next_state, results.address, *self._sizes,
        )  # fmt: skip
        results.swap_state()
        try:
            self.gather(stored_rows or address_rows, stored_cols or address_cols, run)
        finally:
            words = results.wait(self._device.index)
        if not self._expands:
            return Analysis(ROW_IDS, rows, cols, None, None, pattern, lambda: words).wait()
        if words[0]:
            raise_invalid(pattern)
        return None

    def gather(self, rows: int, cols: int, run: FirstRun) -> None:
        """Launch row_gather on row ids and columns at these addresses, for one slice of k after the
        other, each of which adds to the sums of the last."""
        a, b, values, alpha = run.operands
        strides, step = self._strides_and_step(a, b)
        problem, slices = self._problem, self._slices
        variants = self._variants.get(step) or self._new_variants(step)
        partial_sums = new_partial_sums(problem) if len(slices) > 1 else None
        sums = 0 if partial_sums is None else partial_sums.data_ptr()
        last, address_a, address_b = slices[-1], a.data_ptr(), b.data_ptr()
        for part, variant in zip(slices, variants, strict=True):
            is_last, first_bytes = part is last, part.first * self._itemsize
            variant.kernel(  # in the order of row_gather's Arguments
                variant.blocks, address_a + first_bytes, address_b + first_bytes,
                values.data_ptr() if is_last and values is not None else 0,
                sums if part.first else 0, run.out.data_ptr() if is_last else sums, rows, cols, 0,
                self._nnz, *strides, self._nnz, variant.warps_per_head, variant.nnz_per_warp,
                self._heads, problem.m, problem.n, part.problem.k, alpha if is_last else 1.0,
            )  # fmt: skip

    def _strides_and_step(self, a: Tensor, b: Tensor) -> tuple[tuple[int, int, int, int], int]:
        """The pitches of both operands and their strides from head to head; and the largest power
        of two, up to 16, that divides the address of every row of theirs."""
        strides_a, strides_b = a.stride(), b.stride()
        pitch_a, pitch_b = strides_a[-2], strides_b[-1]
        head_a, head_b = (strides_a[0], strides_b[0]) if len(strides_a) == 3 else (0, 0)
        bytes_apart = (pitch_a | pitch_b | head_a | head_b) * self._itemsize | self._row_bytes
        bits = a.data_ptr() | b.data_ptr() | bytes_apart | 16
        return (pitch_a, pitch_b, head_a, head_b), bits & -bits

    def _new_variants(self, step: int) -> tuple[Variant, ...]:
        variants = self._variants[step] = tuple(
            specialise(loader.runtime, self._kernel, part.problem, self._nnz, self._device, step)
            for part in self._slices
        )
        return variants


class SingleLaunch(SingleRun):
    """The runs of one problem on CSR patterns so small that the host takes longer than the GPU: one
    kernel finds rows, checks the pattern and gathers."""

    def __init__(self, kernel: RowGather, problem: SddmmProblem, device: Device) -> None:
        super().__init__(kernel, problem, device, is_csr=True, expands=True)

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> Analysis | None:
        a, b, values, alpha = run.operands
        strides, step = self._strides_and_step(a, b)
        problem = self._problem
        (variant,) = self._variants.get(step) or self._new_variants(step)
        results = self._results
        results.reset()
        variant.kernel(  # in the order of GatherCsrArguments
            variant.blocks, a.data_ptr(), b.data_ptr(), 0 if values is None else values.data_ptr(),
            run.out.data_ptr(), pattern.major_indices.data_ptr(), pattern.col_indices.data_ptr(),
            results.state, results.next_state, results.address, self._nnz, *strides, self._nnz,
            variant.warps_per_head, variant.nnz_per_warp, self._heads, problem.m, problem.n,
            problem.k, alpha,
        )  # fmt: skip
        results.swap_state()
        if results.wait(self._device.index)[0]:
            raise_invalid(pattern)
        return None

    def _new_variants(self, step: int) -> tuple[Variant, ...]:
        problem, device = self._problem, self._device
        kernel, batches = _load_gather_csr(
            loader.runtime, self._kernel, problem.k, problem.dtype, problem.out_dtype,
            problem.index_dtype, device, step,
        )  # fmt: skip
        variant = variant_of(kernel, self._kernel, problem, self._nnz, device, batches)
        variants = self._variants[step] = (variant,)
        return variants


@functools.lru_cache(maxsize=1024)
def _load_gather_csr(
    runtime: loader.CudaRuntime,
    spec: RowGather,
    k: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    index_dtype: torch.dtype,
    device: Device,
    step: int,
) -> tuple[Kernel, int]:
    """The kernel for any number of nonzeros, and the batches of eight that a warp works on."""
    defines, batches = gather_csr_macros(spec, k, dtype, out_dtype, index_dtype, step)
    kernel = runtime.load_kernel(GATHER_CSR, defines, GatherCsrArguments, device.index)
    return kernel, batches


def gather_csr_macros(
    spec: RowGather,
    k: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    index_dtype: torch.dtype,
    step: int,
) -> tuple[Macros, int]:
    """The macros of gather_csr, and the batches of eight that a warp works on."""
    defines, batches = gather_macros(spec, k, dtype, out_dtype, step)
    # The guards of rows' ends leave too few registers for the addresses of this kernel.
    blocks_per_sm = int(defines["MIN_BLOCKS"]) - (not defines["NO_TAIL"])
    defines |= {
        "INDEX": INDEX_DTYPES[index_dtype], "MAX_SHARE": MAX_SHARE, "MIN_BLOCKS": blocks_per_sm,
    }  # fmt: skip
    return macros(defines), batches


def single_run(
    kernel: RowGather, problem: SddmmProblem, device: Device, is_csr: bool, is_kept: bool
) -> SingleRun | None:
    """The runs of a problem by gathering; None if that takes more than launches. is_kept: whether
    the patterns are, for later plans, with their analyses."""
    if not SingleRun.can_serve(problem):
        return None
    is_small = gather_us(problem, problem.nnz, device_model(device)) <= SINGLE_LAUNCH_US
    is_small &= len(slices_of(problem, problem.nnz, device)) == 1
    comes_once = is_csr and not is_kept
    if comes_once and is_small:
        return SingleLaunch(kernel, problem, device)
    has_long_rows = problem.nnz >= EXPANDED_ROW * problem.m
    return SingleRun(kernel, problem, device, is_csr, expands=comes_once and has_long_rows)


def _is_plain(values: Tensor) -> bool:
    return values.is_contiguous() and not (values.is_neg() or values._is_zerotensor())
