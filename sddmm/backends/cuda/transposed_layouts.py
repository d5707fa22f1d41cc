"""The arrays that kernels read of the transpose of a pattern that is sorted by row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.facts import Block, CountedFacts, TileCounts, expected_row_parts
from sddmm.backends.cuda.layouts import Nonzeros, TileWork, WindowList
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.spec import ROW_IDS

if TYPE_CHECKING:
    from sddmm.sparse.pattern import SparsePattern


class TransposedLayouts:
    """The arrays of the transpose of a pattern whose rows never fall, or have been sorted, from
    what is known of it: the transpose is analysed only for a kernel that asks for more.

    stored: the layouts of the pattern itself. tile_sizes: as of PatternLayouts, of the transpose.
    """

    def __init__(
        self, pattern: SparsePattern, device: Device, tile_sizes: tuple[Block, ...] = ()
    ) -> None:
        self._pattern, self._device = pattern, device
        turned = tuple(map(_turned, tile_sizes)) if tile_sizes else ()
        self.stored = PatternLayouts(pattern, device, turned)

    def by_row(self) -> Nonzeros:
        return self.stored.by_column()

    def tiles(self, block: Block, min_nnz: int = 1) -> TileWork:
        return self._analysed().tiles(block, min_nnz)

    def distinct_tiles(self, block: Block) -> tuple[TileWork, bool]:
        if self.stored.analysis(ROW_IDS).distinct:
            return self.stored.tiles_in_order(_turned(block)), True
        return self._analysed().distinct_tiles(block)

    def outside_tiles(self, block: Block, min_nnz: int) -> Nonzeros:
        return self._analysed().outside_tiles(block, min_nnz)

    def windows(self, window: Block) -> WindowList:
        return self._analysed().windows(window)

    def facts(self, count_tiles: bool = True) -> CountedFacts:
        facts = self.stored.facts(count_tiles)
        counts = {_turned(block): tiles for block, tiles in facts.counts.items()}
        return replace(
            facts, ascends=False, counts=counts, parts=_parts_by_chance(counts),
            ascends_by_column=facts.ascends,
        )  # fmt: skip

    def _analysed(self) -> PatternLayouts:
        return PatternLayouts(self._pattern.T, self._device)


def _parts_by_chance(counts: Mapping[Block, TileCounts]) -> tuple[tuple[int, int], ...]:
    """The `parts` of CountedFacts as wide as the smallest tiles, if these are counted and nonzeros
    are spread by chance within tiles of about as many."""
    if not counts:
        return ()
    height, width = smallest = min(counts, key=math.prod)
    parts = sum(
        expected_row_parts((tiles * height, width), nnz, width)
        for tiles, nnz in counts[smallest].by_class
    )
    return ((width, round(parts)),)


def _turned(block: Block) -> Block:
    return block[1], block[0]
