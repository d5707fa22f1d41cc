"""The arrays that kernels read, made from the analyses of one pattern when a kernel asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import analysis
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.kernels.tile_bounds.host import search_row_offsets
from sddmm.backends.cuda.layouts import (
    Nonzeros,
    TileWork,
    by_row_and_column,
    every_tile,
    int32,
    nonzeros_outside,
    tile_ids,
    tile_list,
)
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest
from sddmm.sparse.index_tensors import DerivedKey
from sddmm.sparse.indices import compress
from sddmm.sparse.views import CompressedView

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern

ANALYSES = DerivedKey[list[Analysis]]("analyses")
_BY_ROW = DerivedKey[Nonzeros]("nonzeros by row")
_SORTED = DerivedKey[Nonzeros]("nonzeros by row and column")

# One with row ids, and one by tiles of one size.
_ANALYSES_PER_PATTERN = 2


class AheadLayouts:
    """The arrays of a pattern that is taken to be sorted, while its analysis still runs.

    All that they hold is what the analysis writes, so only `wait` waits for it. A thread calls
    `wait` before it launches another analysis.
    """

    def __init__(self, pattern: SparsePattern, device: Device, request: AnalysisRequest) -> None:
        self._shape = pattern.shape
        self._tiles: TileWork | None = None
        self._analyses: list[Analysis] = pattern.derive(ANALYSES, list)
        for cached in self._analyses:
            if cached.request == request or (request == ROW_IDS and cached.row_ids is not None):
                self._analysis = cached
                return
        self._analysis = analysis.launch(pattern, device, request)

    def wait(self) -> Analysis:
        """The analysis when it is done; cached with the pattern from then on."""
        done = self._analysis.wait()
        if done not in self._analyses:
            self._analyses.append(done)
            del self._analyses[:-_ANALYSES_PER_PATTERN]
        if self._tiles is not None:
            self._tiles.distinct, self._tiles.runs = done.distinct, done.runs
        return done

    def by_row(self) -> Nonzeros:
        row_ids = self._analysis.row_ids
        assert row_ids is not None, "the kernel did not request row ids"
        return Nonzeros(row_ids, self._analysis.cols, None)

    def tiles(self, dense_only: bool = False) -> TileWork:
        """Every tile."""
        request, cols = self._analysis.request, self._analysis.cols
        offsets = self._analysis.offsets
        assert not dense_only, "which tiles are dense is known after the analysis"
        assert request.block is not None
        assert offsets is not None, "the kernel did not request tile row offsets"
        tiles = every_tile(self._shape, request.block, cols.device)
        self._tiles = TileWork(tiles, offsets, cols, None)
        return self._tiles

    def outside_dense_tiles(self) -> Nonzeros:
        raise AssertionError("which tiles are dense is known after the analysis")


class PatternLayouts:
    """The arrays of a pattern for a kernel that requested `request`.

    What follows from the pattern alone is cached with it, for the next plan.
    """

    def __init__(
        self, pattern: SparsePattern, device: Device, request: AnalysisRequest = ROW_IDS
    ) -> None:
        self._pattern, self._device, self._request = pattern, device, request

    def analysis(self, request: AnalysisRequest) -> Analysis:
        """The pattern's analysis that holds what is requested, when it is done."""
        return AheadLayouts(self._pattern, self._device, request).wait()

    def by_row(self) -> Nonzeros:
        row_analysis = self.analysis(ROW_IDS)
        assert row_analysis.row_ids is not None
        stored = Nonzeros(row_analysis.row_ids, row_analysis.cols, None)
        if row_analysis.rows_ascend:
            return stored
        return self._pattern.derive(_BY_ROW, lambda: by_row_and_column(stored, self._pattern.shape))

    def tiles(self, dense_only: bool = False) -> TileWork:
        tile_analysis = self.analysis(self._request)
        block, stats = self._request.block, tile_analysis.stats
        tile_nnz = tile_analysis.tile_nnz
        assert block is not None
        assert stats is not None
        assert tile_nnz is not None
        min_nnz, count = 1, stats.nonempty
        if dense_only:
            min_nnz, count = self._request.min_tile_nnz, stats.dense
        tiles = tile_list(tile_nnz, self._pattern.shape, block, min_nnz, count)
        rows = self._sorted_rows()
        offsets = search_row_offsets(rows, tiles, self._pattern.shape[0], self._device)
        row_analysis = self.analysis(ROW_IDS)
        if rows.perm is not None:  # sorted, but of the order then nothing more is known
            return TileWork(tiles, offsets, rows.indices, rows.perm)
        facts = row_analysis.distinct, row_analysis.runs
        return TileWork(tiles, offsets, rows.indices, None, *facts)

    def outside_dense_tiles(self) -> Nonzeros:
        tile_analysis = self.analysis(self._request)
        assert self._request.block is not None
        assert tile_analysis.tile_nnz is not None
        nonzeros = self.by_row()
        ids = tile_ids(nonzeros, self._pattern.shape[1], self._request.block)
        return nonzeros_outside(nonzeros, ids, tile_analysis.tile_nnz, self._request.min_tile_nnz)

    def _sorted_rows(self) -> CompressedView:
        """The nonzeros by row, and by column within a row."""
        row_analysis, nonzeros = self.analysis(ROW_IDS), self.by_row()
        if not row_analysis.ascends and nonzeros.perm is None:
            stored = nonzeros
            nonzeros = self._pattern.derive(
                _SORTED, lambda: by_row_and_column(stored, self._pattern.shape)
            )
        pattern = self._pattern
        if pattern.is_csr:
            indptr = int32(pattern.major_indices)
        else:
            indptr = compress(nonzeros.rows, pattern.shape[0])
        return CompressedView(indptr, nonzeros.cols, nonzeros.perm)
