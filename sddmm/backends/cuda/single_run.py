"""A single run in straight code: a kernel that gathers is launched without a plan.

Of a CSR pattern that is not kept a single launch checks the indices and gathers, where rows are
long, or where the GPU takes less time than the host for a second. Other patterns are analysed
before row_gather or gather_lines, as later plans read that, and before tiles (tiled_run.py).

The first call with a pattern spends its time on the host. So everything that follows from the
problem is found once, when a `SingleRun` is made, and a run touches the addresses alone. It makes
no plan. Which class of runs serves is found once for alike problems (`form_of_runs`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.base import FirstRun
from sddmm.backends.cuda import analysis, loader
from sddmm.backends.cuda.analysis import Analysis, raise_invalid
from sddmm.backends.cuda.device_model import device_model
from sddmm.backends.cuda.kernels.gather_csr import host as gather_csr
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.row_gather.costs import gather_us
from sddmm.backends.cuda.kernels.row_gather.host import (
    ROW_GATHER,
    RowGather,
    Slice,
    Variant,
    new_partial_sums,
    slices_of,
)
from sddmm.backends.cuda.layouts import TileOffsets
from sddmm.backends.cuda.pattern_layouts import ANALYSES
from sddmm.backends.cuda.pinned_results import PinnedResults, validity_result
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest
from sddmm.memory import new_memory

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern

# The predicted time of gathering up to which a single launch, whose warps walk the offsets of rows,
# takes less than two; and how many times that is where rows have so many nonzeros in the mean.
SINGLE_LAUNCH_US = 35.0
_MORE_FOR_ROW, _OF_NONZEROS = 4, 20
_INDICES = "row ids and columns of {shape[0]} nonzeros"
_OFFSETS = "{shape[0]} row offsets of tiles"

# What a slice of k is launched with: a kernel and the sizes of its launch.
V = TypeVar("V")

Operands: TypeAlias = "tuple[tuple[V, ...], tuple[int, int, int], tuple[int, int, int, int]]"
"""The variants for the slices of k, the addresses of a, b and values, and the strides of the rows
of a and of b, and from head to head."""

Arrays: TypeAlias = "tuple[Tensor | None, Tensor, None, TileOffsets | None]"
"""What an analysis writes, in the order of `Analysis`: row ids, columns, no counts of tiles, row
offsets of tiles."""

LaunchBehind: TypeAlias = "Callable[[Analysis], bool]"

SliceRun: TypeAlias = "tuple[V, tuple[int, int, int, int, int], int, float]"
"""What differs between the launches of slices of k: the variant, the addresses of a, b, values, the
sums over earlier slices and the output, k and alpha."""


class SingleRun(ABC, Generic[V]):
    """The runs of one problem on patterns of one form."""

    def __init__(self, problem: SddmmProblem, device: Device) -> None:
        self._runtime = loader.runtime
        self._problem, self._device = problem, device
        self._nnz, self._k, self._itemsize = problem.nnz, problem.k, problem.dtype.itemsize
        self._row_bytes = problem.k * self._itemsize
        self._slices = slices_of(problem, problem.nnz, device)
        self._variants: dict[int, tuple[V, ...]] = {}
        self._heads_m_n = 1 if problem.heads is None else problem.heads, problem.m, problem.n

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> bool:
        """Launch a run and check its pattern: ValueError. False, so that another way computes all
        of it, if a tensor cannot be read as it is, or torch's current device is not the problem's.
        """
        runtime = loader.runtime
        if runtime is not self._runtime or runtime.current_device() != self._device.index:
            return False
        a, b, values, _ = run.operands
        strides_a, strides_b = a.stride(), b.stride()
        if (strides_a[-1] != 1 or strides_b[-2] != 1) and self._k != 1:
            return False
        major, cols = pattern.major_indices, pattern.col_indices
        if a.is_neg() or b.is_neg() or not (major.is_contiguous() and cols.is_contiguous()):
            return False
        address_a, address_b, address_values = a.data_ptr(), b.data_ptr(), 0
        if address_a == 0 or address_b == 0:  # zeros, of which torch keeps none
            return False
        if values is not None:
            address_values = values.data_ptr()
            if address_values == 0 or values.is_neg() or not values.is_contiguous():
                return False
        pitch_a, pitch_b = strides_a[-2], strides_b[-1]
        head_a, head_b = (strides_a[0], strides_b[0]) if len(strides_a) == 3 else (0, 0)
        bytes_apart = (pitch_a | pitch_b | head_a | head_b) * self._itemsize | self._row_bytes
        # The largest power of two, up to 16, that divides the address of every row of both.
        bits = address_a | address_b | bytes_apart | 16
        step = bits & -bits
        variants = self._variants.get(step) or self._new_variants(step)
        operands = (
            variants, (address_a, address_b, address_values), (pitch_a, pitch_b, head_a, head_b)
        )  # fmt: skip
        return self._launch(pattern, (major.data_ptr(), cols.data_ptr()), run, operands)

    @abstractmethod
    def _launch(
        self,
        pattern: SparsePattern,
        indices: tuple[int, int],
        run: FirstRun,
        operands: Operands[V],
    ) -> bool:
        """Launch a run on these operands, and return True when the pattern is checked. indices: the
        addresses of both index tensors."""

    @abstractmethod
    def _specialise(self, part: SddmmProblem, step: int) -> V:
        """The kernel for a slice of operands whose rows start at multiples of `step` bytes."""

    @staticmethod
    def can_serve(problem: SddmmProblem) -> bool:
        """Whether there is a value to compute, and a row to which an index out of range can be
        clamped."""
        return min(problem.m, problem.n, problem.nnz, problem.k) > 0 and problem.heads != 0

    def _slice_runs(self, run: FirstRun, operands: Operands[V]) -> Iterable[SliceRun[V]]:
        """The launches that compute the slices of k, each of which adds to the sums of the last."""
        variants, addresses, _ = operands
        if len(variants) > 1:
            return self._each_slice(run, operands)
        all_addresses = *addresses, 0, run.out.data_ptr()
        return ((variants[0], all_addresses, self._k, run.operands[3]),)

    def _each_slice(self, run: FirstRun, operands: Operands[V]) -> Iterator[SliceRun[V]]:
        """The launches where there are several. A generator keeps the memory of the sums until the
        last slice is launched."""
        variants, (address_a, address_b, address_values), _ = operands
        alpha, slices, out = run.operands[3], self._slices, run.out.data_ptr()
        partial_sums = new_partial_sums(self._problem)
        sums, last = partial_sums.data_ptr(), slices[-1]
        for part, variant in zip(slices, variants, strict=True):
            first = part.first * self._itemsize
            before = sums if first else 0
            addresses = address_a + first, address_b + first, 0, before, sums
            if part is last:
                addresses = address_a + first, address_b + first, address_values, sums, out
            yield variant, addresses, part.problem.k, alpha if part is last else 1.0

    def _finish(self, pattern: SparsePattern, run: FirstRun, results: PinnedResults) -> bool:
        """Return True when a kernel has reported that the pattern is right, else raise."""
        try:
            run.wrap_result()
        finally:  # the next run writes the same words
            (is_invalid,) = results.wait(self._device.index)
        if is_invalid:
            raise_invalid(pattern)
        run.is_launched = True
        return True

    def _new_variants(self, step: int) -> tuple[V, ...]:
        variants = tuple(self._specialise(part.problem, step) for part in self._slices)
        self._variants[step] = variants
        return variants


class AnalysedRun(SingleRun[V]):
    """Runs behind an analysis of this request."""

    def __init__(
        self, problem: SddmmProblem, device: Device, is_csr: bool, request: AnalysisRequest
    ) -> None:
        super().__init__(problem, device)
        self._torch_device, self._index_shape = problem.device, (problem.nnz,)
        self._request, self._is_narrow = request, problem.index_dtype == torch.int32
        needs_rows = request.row_ids_too or not request.tile_row_offsets
        self._stores_rows = needs_rows and (is_csr or not self._is_narrow)
        self._has_rows = self._stores_rows or (self._is_narrow and not is_csr)
        items = max(problem.nnz, problem.m if is_csr else 0) + 1
        at_once = analysis.blocks_at_once(device, self._is_narrow, is_csr)
        sizes = analysis.sizes_of((problem.m, problem.n), items, request, at_once)
        self._blocks, self._sizes = sizes.blocks, (problem.nnz, *sizes.parameters)
        self._offset_sizes = sizes if request.tile_row_offsets else None
        self._analyse, self._results = analysis.kernel_and_results(
            problem.device, device.index, device.capability, self._is_narrow, is_csr
        )

    def _launch(
        self,
        pattern: SparsePattern,
        indices: tuple[int, int],
        run: FirstRun,
        operands: Operands[V],
    ) -> bool:
        pitch_a, pitch_b, *_ = operands[2]
        if not self._takes_pitches(pitch_a, pitch_b):
            return False
        analyses = pattern.derive(ANALYSES, list) if run.keeps_pattern else None
        if analyses:  # of another problem; or of tiles, by this call
            return False
        results = self._results.own
        arrays = self._begin(pattern, indices, results)
        try:
            launch_behind = self._launch_ahead(pattern, arrays, run, operands)
        finally:
            words = results.wait(self._device.index)
        if analyses is None and words[analysis.INVALID_WORD]:
            raise_invalid(pattern)
        if analyses is None and launch_behind is None:
            return True
        done = Analysis(self._request, *arrays, pattern, lambda: words).wait()
        if analyses is not None:
            analyses.append(done)
        return launch_behind is None or launch_behind(done)

    def _begin(
        self, pattern: SparsePattern, indices: tuple[int, int], results: PinnedResults
    ) -> Arrays:
        """Launch the analysis, which writes the arrays."""
        rows: Tensor | None = pattern.major_indices if self._has_rows else None
        cols, offsets = pattern.col_indices, None
        stored_rows = stored_cols = stored_offsets = 0
        if self._stores_rows:
            rows = new_memory(_INDICES, self._index_shape, torch.int32, self._torch_device)
            stored_rows = rows.data_ptr()
        if not self._is_narrow:
            cols = new_memory(_INDICES, self._index_shape, torch.int32, self._torch_device)
            stored_cols = cols.data_ptr()
        if (sizes := self._offset_sizes) is not None:
            shape = (sizes.offset_count,)
            memory = new_memory(_OFFSETS, shape, torch.int32, self._torch_device)
            offsets = TileOffsets(memory, 0, sizes.tile_row_stride, 1, sizes.row_stride)
            stored_offsets = memory.data_ptr()
        results.reset()
        counts = 0  # no tile's nonzeros are counted
        self._analyse(
            self._blocks, *indices, stored_rows, stored_cols, counts, stored_offsets,
            results.state, results.next_state, results.address, *self._sizes,
        )  # fmt: skip
        results.swap_state()
        return rows, cols, None, offsets

    @abstractmethod
    def _takes_pitches(self, pitch_a: int, pitch_b: int) -> bool:
        """Whether rows of the operands may lie so many elements apart."""

    @abstractmethod
    def _launch_ahead(
        self, pattern: SparsePattern, arrays: Arrays, run: FirstRun, operands: Operands[V]
    ) -> LaunchBehind | None:
        """Launch the run behind the analysis, before the host waits for it. Or return what launches
        it by what the analysis finds; False of that means that another way is needed."""


class GatheredRun(AnalysedRun[Variant]):
    """Runs by row_gather or gather_lines behind an analysis, which finds the row of each nonzero.

    request: what a subclass needs in place of that.
    """

    def __init__(
        self,
        kernel: RowGather,
        problem: SddmmProblem,
        device: Device,
        is_csr: bool,
        request: AnalysisRequest = ROW_IDS,
    ) -> None:
        super().__init__(problem, device, is_csr, request)
        self._kernel = kernel

    def _takes_pitches(self, pitch_a: int, pitch_b: int) -> bool:
        most, (_, m, n) = self._kernel.span_bytes, self._heads_m_n
        return most is None or self._itemsize * max(m * pitch_a, n * pitch_b) < most

    def _launch_ahead(
        self, pattern: SparsePattern, arrays: Arrays, run: FirstRun, operands: Operands[Variant]
    ) -> LaunchBehind | None:
        rows, cols, *_ = arrays
        assert rows is not None
        self._gather(rows.data_ptr(), cols.data_ptr(), run, operands)
        run.wrap_result()
        run.is_launched = True
        return None

    def _gather(self, rows: int, cols: int, run: FirstRun, operands: Operands[Variant]) -> None:
        nnz, strides = self._nnz, operands[2]
        for variant, addresses, k, alpha in self._slice_runs(run, operands):
            kernel, blocks, warps_per_head, nnz_per_warp = variant
            kernel(  # in the order of row_gather's Arguments
                blocks, *addresses, rows, cols, 0, nnz, *strides, nnz, warps_per_head, nnz_per_warp,
                *self._heads_m_n, k, alpha,
            )  # fmt: skip

    def _specialise(self, part: SddmmProblem, step: int) -> Variant:
        return self._kernel.variant(part, self._nnz, self._device, step)


class LongRowsRun(SingleRun[gather_rows.Variant]):
    """Runs by gather_rows on CSR patterns, which the launch of the first slice of k checks."""

    def __init__(self, problem: SddmmProblem, device: Device) -> None:
        super().__init__(problem, device)
        self._pieces = gather_rows.pieces_of(problem, device)
        self._results = validity_result(problem.device)

    def _launch(
        self,
        pattern: SparsePattern,
        indices: tuple[int, int],
        run: FirstRun,
        operands: Operands[gather_rows.Variant],
    ) -> bool:
        nnz, strides, results = self._nnz, operands[2], self._results.own
        reports = results.state, results.next_state, results.address
        results.reset()
        for i, (variant, addresses, k, alpha) in enumerate(self._slice_runs(run, operands)):
            kernel, blocks, checkers = variant
            if i:  # the first launch checks the pattern
                checkers = 0
            kernel(  # in the order of gather_rows' Arguments
                checkers + blocks, *addresses, *indices, *reports, nnz, *strides, nnz,
                *self._pieces, checkers, *self._heads_m_n, k, alpha,
            )  # fmt: skip
        results.swap_state()
        return self._finish(pattern, run, results)

    def _specialise(self, part: SddmmProblem, step: int) -> gather_rows.Variant:
        return gather_rows.specialise(part, self._pieces, self._device, step)


class SingleLaunch(SingleRun[Variant]):
    """Runs by gather_csr on CSR patterns so small that a second launch would take longer."""

    def __init__(self, problem: SddmmProblem, device: Device) -> None:
        super().__init__(problem, device)
        self._slices = (Slice(0, problem),)  # chosen by an alike problem that has one
        self._results = validity_result(problem.device)

    def _launch(
        self,
        pattern: SparsePattern,
        indices: tuple[int, int],
        run: FirstRun,
        operands: Operands[Variant],
    ) -> bool:
        ((kernel, blocks, warps_per_head, nnz_per_warp),), addresses, strides = operands
        nnz, results = self._nnz, self._results.own
        results.reset()
        kernel(  # in the order of gather_csr's Arguments
            blocks, *addresses, run.out.data_ptr(), *indices, results.state, results.next_state,
            results.address, nnz, *strides, nnz, warps_per_head, nnz_per_warp, *self._heads_m_n,
            self._k, run.operands[3],
        )  # fmt: skip
        results.swap_state()
        return self._finish(pattern, run, results)

    def _specialise(self, part: SddmmProblem, step: int) -> Variant:
        return gather_csr.specialise(part, self._device, step)


MakeRuns: TypeAlias = "Callable[[SddmmProblem, Device], SingleRun[Any]]"


def form_of_runs(
    kernel: RowGather,
    problem: SddmmProblem,
    device: Device,
    is_csr: bool,
    is_kept: bool,
    by_rows: bool,
) -> MakeRuns:
    """What makes the runs, by gathering, of all problems that are alike to this.

    is_kept: whether the patterns are, for later plans, with their analyses. by_rows: whether
    gather_rows serves them.
    """
    if by_rows:
        return LongRowsRun
    if is_csr and not is_kept:
        walks_few = kernel is ROW_GATHER and problem.nnz >= _OF_NONZEROS * problem.m
        most_us = SINGLE_LAUNCH_US * (_MORE_FOR_ROW if walks_few else 1)
        is_short = gather_us(problem, problem.nnz, device_model(device)) <= most_us
        if is_short and len(slices_of(problem, problem.nnz, device)) == 1:
            return SingleLaunch
    return functools.partial(GatheredRun, kernel, is_csr=is_csr)
