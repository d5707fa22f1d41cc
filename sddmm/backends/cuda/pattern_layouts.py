"""The arrays that kernels read, made from the analyses of one pattern when a kernel asks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.cuda import analysis, loader
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.distinct_tiles import without_duplicates
from sddmm.backends.cuda.facts import Block, CountedFacts, PatternFacts, TileCounts
from sddmm.backends.cuda.kernels.tile_bounds.host import search_row_offsets
from sddmm.backends.cuda.kernels.tile_stats.host import count_by_class
from sddmm.backends.cuda.layouts import (
    Nonzeros,
    TileList,
    TileWork,
    WindowList,
    by_row,
    by_row_and_column,
    by_tile,
    count_larger_tiles,
    every_tile,
    finished,
    int32,
    never_falls,
    nonzeros_outside,
    tile_ids,
    tile_list,
    tiles_in_order,
    window_list,
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
_BY_COLUMN = DerivedKey[Nonzeros]("nonzeros by column")
_ANALYSES_IN_ORDER = DerivedKey[list[Analysis]]("analyses of nonzeros in order")
_FACTS = DerivedKey[dict[tuple[Block, ...], CountedFacts]]("facts")

# What plans of other sizes of operands, or with and without values, share for as long as one lives.
_TILES = DerivedKey[WeakValueDictionary[tuple[Block, int], TileWork]]("tiles of plans")
_WINDOWS = DerivedKey[WeakValueDictionary[Block, WindowList]]("windows of plans")

# One with row ids, one with row offsets, and one by tiles of one size.
_ANALYSES_PER_PATTERN = 3

# The smallest tiles that are counted, and the most: a count takes 4 bytes, so that many take
# 256 MiB, or no more memory than sorting the nonzeros would.
_LEAST_SIDE = 16
_MAX_BASE_TILES, _MAX_TILES_PER_NONZERO = 2**26, 4


def base_tile(
    shape: tuple[int, int], nnz: int, blocks: tuple[Block, ...]
) -> tuple[Block | None, tuple[Block, ...]]:
    """The tile whose nonzeros are counted, and those of `blocks` that are made of it.

    It is the largest square that divides the sides of all blocks that are powers of two, or a
    larger one where there would be too many. None if there would be too many of any.
    """
    blocks = tuple(b for b in dict.fromkeys(blocks) if all(_is_power_of_two(side) for side in b))
    side = max(_LEAST_SIDE, min((min(block) for block in blocks), default=0))
    most = max(_MAX_BASE_TILES, _MAX_TILES_PER_NONZERO * nnz)
    while blocks := tuple(block for block in blocks if _divides((side, side), block)):
        if ceil_div(shape[0], side) * ceil_div(shape[1], side) <= most:
            return (side, side), blocks
        side *= 2
    return None, ()


def _divides(base: Block, block: Block) -> bool:
    return block[0] % base[0] == 0 == block[1] % base[1]


def _is_power_of_two(x: int) -> bool:
    return x & (x - 1) == 0


def serves(done: Analysis, request: AnalysisRequest) -> bool:
    """Whether an analysis holds what is requested."""
    if request == ROW_IDS:
        return done.row_ids is not None
    return done.request == request


class AheadLayouts:
    """The arrays of a pattern that is taken to be sorted, while its analysis still runs.

    All that they hold is what the analysis writes, or a copy of it, so only `wait` waits for it. A
    thread calls `wait` before it launches another analysis. is_kept: whether the pattern keeps the
    analysis, for a later plan. many_runs: whether tiles are for many runs, which a copy of the row
    offsets makes faster.
    """

    def __init__(
        self,
        pattern: SparsePattern,
        device: Device,
        request: AnalysisRequest,
        is_kept: bool = True,
        many_runs: bool = False,
    ) -> None:
        self._shape, self._many_runs = pattern.shape, many_runs
        self._device_index = device.index
        self._tiles: TileWork | None = None
        self._analyses: list[Analysis] = pattern.derive(ANALYSES, list) if is_kept else []
        for cached in self._analyses:
            if serves(cached, request):
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
            if self._many_runs:  # for the copy: the next call may come on another stream
                loader.runtime.wait(self._device_index)
        return done

    def by_row(self) -> Nonzeros:
        row_ids = self._analysis.row_ids
        assert row_ids is not None, "the kernel did not request row ids"
        return Nonzeros(row_ids, self._analysis.cols, None)

    def tiles(self, block: Block, min_nnz: int = 1) -> TileWork:
        """Every tile."""
        cols, offsets = self._analysis.cols, self._analysis.offsets
        assert min_nnz == 1, "which tiles are dense is known after the analysis"
        assert block == self._analysis.request.block
        assert offsets is not None, "the kernel did not request tile row offsets"
        tiles = every_tile(self._shape, block, cols.device)
        if self._many_runs:
            offsets = by_tile(offsets, block[0])
        # A cached analysis knows both already; another says so in `wait`.
        found = self._analysis
        self._tiles = TileWork(tiles, offsets, cols, None, found.distinct, found.runs)
        return self._tiles

    def distinct_tiles(self, block: Block) -> tuple[TileWork, bool]:
        raise AssertionError("whether nonzeros are distinct is known after the analysis")

    def outside_tiles(self, block: Block, min_nnz: int) -> Nonzeros:
        raise AssertionError("which tiles are dense is known after the analysis")

    def windows(self, window: Block) -> WindowList:
        raise AssertionError("nonzeros are sorted by windows after the analysis")

    def facts(self, count_tiles: bool = True) -> PatternFacts:
        raise AssertionError("the facts of a pattern are known after the analysis")


class PatternLayouts:
    """The arrays of a pattern for any kernel, in one preparation.

    tile_sizes: the sizes of tiles that facts() counts. What follows from the pattern alone is
    cached with it, for the next plan.
    """

    # The analysis that was requested last: kernels request it again.
    _last: Analysis | None = None

    def __init__(
        self, pattern: SparsePattern, device: Device, tile_sizes: tuple[Block, ...] = ()
    ) -> None:
        self._pattern, self._device, self._tile_sizes = pattern, device, tile_sizes

    def analysis(self, request: AnalysisRequest) -> Analysis:
        """The pattern's analysis that holds what is requested, when it is done."""
        last = self._last
        if last is None or not serves(last, request):
            self._last = last = AheadLayouts(self._pattern, self._device, request).wait()
        return last

    def by_row(self) -> Nonzeros:
        row_analysis = self.analysis(ROW_IDS)
        assert row_analysis.row_ids is not None
        stored = Nonzeros(row_analysis.row_ids, row_analysis.cols, None)
        if row_analysis.rows_ascend:
            return stored
        return self._derive_sorted(_BY_ROW, stored)

    @property
    def sort_serves_transpose(self) -> bool:
        """Whether nonzeros whose rows fall have been sorted, for other plans, and those of the
        transpose need a sort, too: where columns never fall, its rows are summed as stored."""
        pattern = self._pattern
        return pattern.find_derived(_BY_ROW) is not None and not never_falls(pattern.col_indices)

    def analysis_in_order(self, request: AnalysisRequest) -> Analysis:
        """That of the nonzeros of a pattern whose rows fall, of its transpose where they ascend by
        column; else sorted, as all kernels read them then."""
        pattern = self._pattern
        kept = pattern.derive(_ANALYSES_IN_ORDER, list)
        found = next((done for done in kept if serves(done, request)), None)
        if found is None:
            if self.analysis(ROW_IDS).ascends_by_column:
                in_order = pattern.T
            else:
                rows, cols, _ = self.by_row()
                in_order = pattern.with_indices(rows, cols)
            found = AheadLayouts(in_order, self._device, request, is_kept=False).wait()
            kept.append(found)
            del kept[:-_ANALYSES_PER_PATTERN]
        return found

    def by_column(self) -> Nonzeros:
        """The nonzeros of the transpose by row, and by column within a row if those of the pattern
        are so, or have been sorted."""
        return self._pattern.derive(_BY_COLUMN, self._by_column)

    def _by_column(self) -> Nonzeros:
        pattern, (row_ids, cols, perm) = self._pattern, self.by_row()
        transposed = Nonzeros(cols, row_ids, perm)
        # Where neither rows nor columns fall, distinct nonzeros are a staircase, which is shorter.
        if pattern.nnz < sum(pattern.shape) and never_falls(cols):
            return transposed
        return finished(by_row(transposed), self._pattern.device)

    def tiles(self, block: Block, min_nnz: int = 1) -> TileWork:
        kept, key = self._pattern.derive(_TILES, WeakValueDictionary), (block, min_nnz)
        work = kept.get(key)
        if work is None:
            tiles = tile_list(self._tile_nnz(block), self._pattern.shape, block, min_nnz)
            kept[key] = work = finished(self._work(tiles), self._pattern.device)
        return work

    def tiles_in_order(self, block: Block) -> TileWork:
        """The non-empty tiles of this size, row of tiles by row of tiles."""
        return self._work(tiles_in_order(self._tile_nnz(block), self._pattern.shape, block))

    def _work(self, tiles: TileList) -> TileWork:
        rows = self._sorted_rows()
        offsets = search_row_offsets(rows, tiles, self._pattern.shape[0], self._device)
        if rows.perm is not None:  # sorted, but of the order then nothing more is known
            return TileWork(tiles, offsets, rows.indices, rows.perm)
        row_analysis = self.analysis(ROW_IDS)
        facts = row_analysis.distinct, row_analysis.runs
        return TileWork(tiles, offsets, rows.indices, None, *facts)

    def distinct_tiles(self, block: Block) -> tuple[TileWork, bool]:
        """The non-empty tiles of this size, none with two nonzeros at one position, and whether
        they are those of the transpose: where nonzeros come by column, as S.T's mostly do. They are
        listed row of tiles by row of tiles, layer by layer.
        """
        stored = self.analysis(ROW_IDS)
        if stored.distinct:
            return self.tiles_in_order(block), False
        if not stored.ascends:
            transpose = PatternLayouts(self._pattern.T, self._device)
            if transpose.analysis(ROW_IDS).distinct:
                return transpose.tiles_in_order(block), True
        work, rows = self.tiles_in_order(block), self._sorted().rows
        return without_duplicates(work, rows, self._pattern.shape, self._device), False

    def outside_tiles(self, block: Block, min_nnz: int) -> Nonzeros:
        nonzeros = self.by_row()
        ids = tile_ids(nonzeros, self._pattern.shape[1], block)
        return nonzeros_outside(nonzeros, ids, self._tile_nnz(block), min_nnz)

    def windows(self, window: Block) -> WindowList:
        kept = self._pattern.derive(_WINDOWS, WeakValueDictionary)
        work = kept.get(window)
        if work is None:
            windows = window_list(self.by_row(), self._pattern.shape, window)
            kept[window] = work = finished(windows, self._pattern.device)
        return work

    def facts(self, count_tiles: bool = True) -> CountedFacts:
        """count_tiles: else the counts are left out, of whatever sizes."""
        by_sizes = self._pattern.derive(_FACTS, dict)
        sizes = self._tile_sizes if count_tiles else ()
        if sizes not in by_sizes:
            by_sizes[sizes] = self._count(sizes)
        return by_sizes[sizes]

    def _count(self, sizes: tuple[Block, ...]) -> CountedFacts:
        """The facts, by an analysis that counts the smallest tiles."""
        pattern = self._pattern
        base, blocks = base_tile(pattern.shape, pattern.nnz, sizes)
        counted = self.analysis(ROW_IDS if base is None else AnalysisRequest(base, True))
        counts: dict[Block, TileCounts] = {}
        if base is not None and counted.tile_nnz is not None:
            counts = count_by_class(counted.tile_nnz, base, pattern.shape, blocks, self._device)
        widths = {
            request.block[1]: analysis.row_segments
            for analysis in pattern.derive(ANALYSES, list)
            if (request := analysis.request).block is not None
        }
        parts = tuple(sorted(widths.items())) if counted.ascends else ()
        by_column = counted.ascends_by_column and bool(self._tile_sizes)
        order = self.analysis_in_order(ROW_IDS) if by_column else counted
        return CountedFacts(
            pattern.nnz, order.runs, counted.ascends, counts, parts, by_column, order.distinct
        )

    def forget_large_counts(self) -> None:
        """Free the counts of tiles that are more than the nonzeros. Further plans have the facts,
        and one that lists other tiles counts them again."""
        for done in self._pattern.derive(ANALYSES, list):
            if done.tile_nnz is not None and done.tile_nnz.numel() > self._pattern.nnz:
                done.tile_nnz, done.request = None, done.request._replace(count_tiles=False)

    def _tile_nnz(self, block: Block) -> Tensor:
        """The nonzeros of each tile of this size, from an analysis of this size or a smaller."""
        pattern = self._pattern
        for cached in pattern.derive(ANALYSES, list):
            base = cached.request.block
            if cached.tile_nnz is not None and base is not None and _divides(base, block):
                return count_larger_tiles(cached.tile_nnz, pattern.shape, base, block)
        tile_nnz = self.analysis(AnalysisRequest(block, True)).tile_nnz
        assert tile_nnz is not None
        return tile_nnz

    def _sorted(self) -> Nonzeros:
        """The nonzeros by row, and by column within a row."""
        row_analysis, nonzeros = self.analysis(ROW_IDS), self.by_row()
        if row_analysis.ascends or nonzeros.perm is not None:
            return nonzeros
        return self._derive_sorted(_SORTED, nonzeros)

    def _derive_sorted(self, key: DerivedKey[Nonzeros], nonzeros: Nonzeros) -> Nonzeros:
        """The nonzeros by row and by column within a row, kept with the pattern."""
        pattern = self._pattern

        def in_order() -> Nonzeros:
            return finished(by_row_and_column(nonzeros, pattern.shape), pattern.device)

        return pattern.derive(key, in_order)

    def _sorted_rows(self) -> CompressedView:
        """The sorted nonzeros, with the first of each row."""
        pattern, nonzeros = self._pattern, self._sorted()
        if pattern.is_csr:
            indptr = int32(pattern.major_indices)
        else:
            indptr = compress(nonzeros.rows, pattern.shape[0])
        return CompressedView(indptr, nonzeros.cols, nonzeros.perm)


def rows_are_known_to_fall(pattern: SparsePattern) -> bool:
    """Whether an analysis of the pattern has found that its rows do not ascend."""
    return any(not analysis.rows_ascend for analysis in pattern.derive(ANALYSES, list))
