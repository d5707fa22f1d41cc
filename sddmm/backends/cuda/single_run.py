"""A single run in straight code: row_gather is launched behind the analysis of the pattern.

The first call with a pattern spends its time on the host. So everything that follows from the
problem is found once, by `single_run`, and a run touches the addresses alone. It makes no plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.base import FirstRun
from sddmm.backends.cuda import analysis, loader
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.kernels.row_gather.host import RowGather, Variant, gather_slice, specialise
from sddmm.backends.cuda.spec import ROW_IDS
from sddmm.errors import out_of_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern


class SingleRun:
    """The runs of one problem on patterns of one form. Use it where `serves` says that it can."""

    def __init__(
        self, kernel: RowGather, problem: SddmmProblem, device: Device, is_csr: bool
    ) -> None:
        self._kernel, self._problem, self._device = kernel, problem, device
        self._nnz, self._torch_device = problem.nnz, problem.device
        self._is_narrow = problem.index_dtype == torch.int32
        self._stores_rows = is_csr or not self._is_narrow
        items = max(problem.nnz, problem.m if is_csr else 0) + 1
        sizes = analysis.sizes_of((problem.m, problem.n), items, ROW_IDS)
        self._analyse, self._results = analysis.kernel_and_results(
            problem.device, device.index, self._is_narrow, is_csr
        )
        self._blocks, self._sizes = sizes.blocks, (problem.nnz, *sizes.parameters)
        self._itemsize = problem.dtype.itemsize
        self._row_bytes = problem.k * self._itemsize
        self._variants: dict[int, Variant] = {}
        self._heads = 1 if problem.heads is None else problem.heads

    @staticmethod
    def can_serve(problem: SddmmProblem, device: Device) -> bool:
        """Whether an index out of range has a row to be clamped to, and k is not sliced."""
        if min(problem.m, problem.n, problem.nnz, problem.k) <= 0:
            return False
        return gather_slice(problem, problem.nnz, device) == problem.k

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

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> Analysis:
        """Launch a run, and return the analysis when it is done. ValueError for a wrong pattern."""
        rows, cols = pattern.major_indices, pattern.col_indices
        address_rows, address_cols = rows.data_ptr(), cols.data_ptr()
        stored_rows = stored_cols = 0
        if self._stores_rows:
            rows = self._new_indices()
            stored_rows = rows.data_ptr()
        if not self._is_narrow:
            cols = self._new_indices()
            stored_cols = cols.data_ptr()
        results = self._results
        results.reset()
        self._analyse(
            self._blocks, address_rows, address_cols, stored_rows, stored_cols, 0, 0,
            results.state, results.next_state, results.address, *self._sizes,
        )  # fmt: skip
        results.swap_state()
        try:
            self._gather(stored_rows or address_rows, stored_cols or address_cols, run)
        finally:
            words = results.wait(self._device.index)
        return Analysis(ROW_IDS, rows, cols, None, None, pattern, lambda: words).wait()

    def _new_indices(self) -> Tensor:
        try:
            return torch.empty(self._nnz, dtype=torch.int32, device=self._torch_device)
        except torch.OutOfMemoryError as error:
            what = f"row ids and columns of {self._nnz} nonzeros"
            raise out_of_memory(what, 4 * self._nnz, self._torch_device) from error

    def _gather(self, rows: int, cols: int, run: FirstRun) -> None:
        a, b, values, alpha = run.operands
        strides_a, strides_b = a.stride(), b.stride()
        pitch_a, pitch_b = strides_a[-2], strides_b[-1]
        head_a, head_b = (strides_a[0], strides_b[0]) if len(strides_a) == 3 else (0, 0)
        address_a, address_b = a.data_ptr(), b.data_ptr()
        bytes_apart = (pitch_a | pitch_b | head_a | head_b) * self._itemsize | self._row_bytes
        bits = address_a | address_b | bytes_apart | 16
        step, problem = bits & -bits, self._problem
        variant = self._variants.get(step)
        if variant is None:
            variant = self._variants[step] = specialise(
                loader.runtime, self._kernel, problem, self._nnz, self._device, step
            )
        variant.kernel(  # in the order of row_gather's Arguments
            variant.blocks, address_a, address_b, 0 if values is None else values.data_ptr(), 0,
            run.out.data_ptr(), rows, cols, 0, self._nnz, pitch_a, pitch_b, head_a, head_b,
            self._nnz, variant.warps_per_head, variant.nnz_per_warp, self._heads, problem.m,
            problem.n, problem.k, alpha,
        )  # fmt: skip


def _is_plain(values: Tensor) -> bool:
    return values.is_contiguous() and not (values.is_neg() or values._is_zerotensor())
