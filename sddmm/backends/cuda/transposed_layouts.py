"""The arrays that kernels read of the transpose of a pattern whose rows never fall."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.facts import Block, CountedFacts
from sddmm.backends.cuda.layouts import Nonzeros, TileWork, WindowList
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern


class TransposedLayouts:
    """The arrays of the transpose of a pattern whose rows never fall, from what is known of the
    pattern: the transpose is not analysed, unless a kernel asks for what is not known.

    tile_sizes: as of PatternLayouts, of the transpose.
    """

    def __init__(
        self, pattern: SparsePattern, device: Device, tile_sizes: tuple[Block, ...] = ()
    ) -> None:
        self._pattern, self._device = pattern, device
        turned = tuple(map(_turned, tile_sizes)) if tile_sizes else ()
        self._stored = PatternLayouts(pattern, device, turned)

    def analysis_of_pattern(self, request: AnalysisRequest) -> Analysis:
        """That of the pattern itself, when it is done."""
        return self._stored.analysis(request)

    def by_row(self) -> Nonzeros:
        return self._stored.by_column()

    def tiles(self, block: Block, min_nnz: int = 1) -> TileWork:
        return self._analysed().tiles(block, min_nnz)

    def distinct_tiles(self, block: Block) -> tuple[TileWork, bool]:
        if self._stored.analysis(ROW_IDS).distinct:
            return self._stored.tiles_in_order(_turned(block)), True
        return self._analysed().distinct_tiles(block)

    def outside_tiles(self, block: Block, min_nnz: int) -> Nonzeros:
        return self._analysed().outside_tiles(block, min_nnz)

    def windows(self, width: int) -> WindowList:
        return self._analysed().windows(width)

    def facts(self, count_tiles: bool = True) -> CountedFacts:
        facts = self._stored.facts(count_tiles)
        counts = {_turned(block): tiles for block, tiles in facts.counts.items()}
        return replace(
            facts, ascends=False, counts=counts, parts=(), ascends_by_column=facts.ascends
        )

    def _analysed(self) -> PatternLayouts:
        return PatternLayouts(self._pattern.T, self._device)


def _turned(block: Block) -> Block:
    return block[1], block[0]
