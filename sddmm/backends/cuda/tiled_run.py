"""A single run by tiles in straight code, where those pay within one call.

Of a pattern that is dense enough for tiles whatever its columns are, a run launches them at once
behind the analysis. Where that must tell whether tiles pay, or which are not empty, or whether rows
are stored as those of a mask, tiles are launched when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from gemm_core.runtime.addressing import MAX_PITCH_BYTES
from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.base import FirstRun
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.analysis import Analysis, invalid_by_last
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.row_gather.host import RowGather, Slice, Variant
from sddmm.backends.cuda.kernels.tile import (
    ALIGNED,
    BlockTileKernel,
    TileKernel,
    scattered,
    specialise,
)
from sddmm.backends.cuda.kernels.tile_list.host import TileLister
from sddmm.backends.cuda.layouts import TileWork, every_tile
from sddmm.backends.cuda.single_run import (
    AnalysedRun,
    Arrays,
    GatheredRun,
    LaunchBehind,
    MakeRuns,
    Operands,
)
from sddmm.backends.cuda.spec import AnalysisRequest

if TYPE_CHECKING:
    from sddmm.problem import SddmmProblem
    from sddmm.sparse.pattern import SparsePattern


class TiledRun(GatheredRun):
    """Runs by a tile kernel behind an analysis that finds where rows of tiles begin: of every tile,
    or of those that a list says are not empty.

    Nonzeros are gathered where columns do not ascend, and where tiles do not pay. make_gathers:
    makes the runs that gather. lists_tiles: whether to list them. tiles_pay: says whether tiles
    pay, of a problem, its analysis and their number; None if they always do. may_pay: says it of
    the columns of a pattern that is not analysed yet.
    """

    def __init__(
        self,
        kernel: RowGather,
        problem: SddmmProblem,
        device: Device,
        is_csr: bool,
        tile_kernel: TileKernel,
        request: AnalysisRequest,
        make_gathers: MakeRuns,
        lists_tiles: bool,
        tiles_pay: Callable[[SddmmProblem, Analysis, int], bool] | None,
        may_pay: Callable[[Tensor], bool] | None = None,
    ) -> None:
        super().__init__(kernel, problem, device, is_csr, request)
        self._block = tile_kernel.block
        self._bind, self._tiles_pay = tile_kernel.once(problem, device), tiles_pay
        self._by_gathering, self._may_pay = make_gathers(problem, device), may_pay
        self._lister = TileLister(problem, device, self._block) if lists_tiles else None

    def _new_variants(self, step: int) -> tuple[Variant, ...]:
        return super()._new_variants(step) if self._request.row_ids_too else ()

    def _launch(
        self,
        pattern: SparsePattern,
        indices: tuple[int, int],
        run: FirstRun,
        operands: Operands[Variant],
    ) -> bool:
        if self._may_pay is not None and not self._may_pay(pattern.col_indices):
            return self._by_gathering(pattern, run)
        return super()._launch(pattern, indices, run, operands)

    def _launch_ahead(
        self, pattern: SparsePattern, arrays: Arrays, run: FirstRun, operands: Operands[Variant]
    ) -> LaunchBehind:
        """Bind the operands. Tiles are launched behind the analysis, which says where their rows
        begin, and that the pattern is right."""
        _, cols, _, offsets = arrays
        assert offsets is not None
        lister = self._lister
        if lister is None:
            tiles = every_tile(pattern.shape, self._block, self._torch_device)
        else:
            tiles = lister.launch(offsets)
        a, b, values, alpha = run.operands
        launch, out = self._bind(a, b.mT), run.out.data_ptr()

        def launch_behind(done: Analysis) -> bool:
            found = tiles if lister is None else lister.wait(tiles)
            pay = self._tiles_pay
            if done.ascends and (pay is None or pay(self._problem, done, found.length)):
                work = TileWork(found, offsets, cols, None, done.distinct, done.runs)
                launch(work, address(values), out, alpha)
            elif self._request.row_ids_too:
                assert done.row_ids is not None
                self._gather(done.row_ids.data_ptr(), done.cols.data_ptr(), run, operands)
            else:
                return self._by_gathering(pattern, run)
            run.is_launched = True
            return True

        return launch_behind


class TilesAtOnce(AnalysedRun[Kernel]):
    """Runs by a tile kernel that is launched before the host knows what the analysis finds.

    It computes nothing of a wrong pattern. What it stores where columns turn out to fall, gathering
    overwrites. make_gathers: makes the runs that gather.
    """

    def __init__(
        self,
        problem: SddmmProblem,
        device: Device,
        is_csr: bool,
        tile_kernel: BlockTileKernel,
        request: AnalysisRequest,
        make_gathers: MakeRuns,
    ) -> None:
        super().__init__(problem, device, is_csr, request)
        self._slices = (Slice(0, problem),)  # tiles compute whole rows
        self._tile_kernel, self._by_gathering = tile_kernel, make_gathers(problem, device)

    def _takes_pitches(self, pitch_a: int, pitch_b: int) -> bool:
        return self._itemsize * max(pitch_a, pitch_b) < MAX_PITCH_BYTES

    def _specialise(self, part: SddmmProblem, step: int) -> Kernel:
        spec, count = self._tile_kernel, self._request.tile_count((part.m, part.n))
        storing = scattered(part.nnz, count, spec.block[0])
        return specialise(loader.runtime, spec, part, self._device, step == ALIGNED, storing)

    def _launch_ahead(
        self, pattern: SparsePattern, arrays: Arrays, run: FirstRun, operands: Operands[Kernel]
    ) -> LaunchBehind:
        _, cols, _, offsets = arrays
        assert offsets is not None
        (kernel,), addresses, strides = operands
        heads, m, n = self._heads_m_n
        coords, _ = tiles = every_tile(pattern.shape, self._tile_kernel.block, self._torch_device)
        kernel(  # in the order of tile.Arguments; there is no perm
            tiles.length * heads, *addresses, run.out.data_ptr(), cols.data_ptr(), 0,
            coords.data_ptr(), invalid_by_last(self._results.own), offsets.offsets.data_ptr(),
            *offsets[1:], *strides, self._nnz, tiles.length, m, n, self._k, run.operands[3],
        )  # fmt: skip
        run.wrap_result()

        def gather_if_columns_fall(done: Analysis) -> bool:
            run.is_launched = done.ascends
            return run.is_launched or self._by_gathering(pattern, run)

        return gather_if_columns_fall
