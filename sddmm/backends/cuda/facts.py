"""The facts of a pattern on which costs depend: the order of its nonzeros, and its tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gemm_core.arithmetic import ceil_div

Block = tuple[int, int]
"""Rows and columns of a tile."""


class TileCounts(NamedTuple):
    """Counts of the tiles of one size.

    nonempty: those with nonzeros; full: those without any zero. by_class: entry c counts the tiles
    of at least 2^c nonzeros, but fewer than 2^(c+1), and their nonzeros. launched_empty: tiles
    without nonzeros that are launched all the same, where tiles are not listed.
    """

    nonempty: int
    full: int
    by_class: tuple[tuple[int, int], ...]
    launched_empty: int = 0

    def from_class(self, first: int) -> tuple[int, int]:
        """The number of tiles of at least 2^first nonzeros, and of their nonzeros."""
        dense = self.by_class[first:]
        return sum(tiles for tiles, _ in dense), sum(nnz for _, nnz in dense)

    @property
    def unevenness(self) -> float:
        """The standard deviation of the nonzeros of these tiles over their mean, those of one class
        taken to be equal; 0 where tiles are not classified, or all are full."""
        tiles, nnz = self.from_class(0)
        if tiles == 0 or self.full == self.nonempty:
            return 0.0
        squares = sum(n * n / count for count, n in self.by_class if count)
        return math.sqrt(max(0.0, squares * tiles / nnz**2 - 1))


def fewest_tiles(nnz: int, parts: int, width: int, block: Block) -> TileCounts:
    """The fewest and densest tiles that can hold distinct nonzeros which are in at least so many
    parts of rows, of `width` columns each: a row of a tile has one of them at most, or two if the
    width is no multiple of the tile's. Nothing is known of parts that are narrower than tiles.

    T tiles with N nonzeros, 2^c or more in each, have `in_tile` T parts at most, and N less the
    nonzeros that share a part at least: N <= shared + in_tile N / 2^c. They are counted as if in
    full tiles, the fewest that can hold them.
    """
    (rows, columns), area = block, block[0] * block[1]
    if width < columns:
        parts = 0
    in_tile, shared = rows if width % columns == 0 else 2 * rows, max(0, nnz - parts)
    most = [
        min(nnz, (shared << c) // ((1 << c) - in_tile)) if 1 << c > in_tile else nnz
        for c in range(area.bit_length())
    ]
    dense = (here - above for here, above in zip(most, [*most[1:], 0], strict=True))
    by_class = tuple((n // area, n) for n in dense)
    fewest = max(ceil_div(nnz, area), ceil_div(parts, in_tile))
    return TileCounts(fewest, fewest, by_class)


class PatternFacts(Protocol):
    """What costs may depend on, beside the problem.

    runs: the maximal sequences of nonzeros of a row in consecutive columns. ascends: nonzeros come
    by row, and by column within a row, so that none must be sorted. is_uniform: nonzeros are
    spread by chance, so that all tiles are alike. ascends_by_column: they come by column instead,
    and by row within a column. distinct: it is known that no position has two nonzeros.
    """

    @property
    def runs(self) -> int: ...

    @property
    def ascends(self) -> bool: ...

    @property
    def is_uniform(self) -> bool: ...

    @property
    def ascends_by_column(self) -> bool: ...

    @property
    def distinct(self) -> bool: ...

    def tiles(self, block: Block) -> TileCounts | None:
        """The counts of tiles of this size; None if they are not known."""

    def row_parts(self, width: int) -> float:
        """An estimate of the non-empty parts of rows, of `width` columns each."""


@dataclass(frozen=True, eq=False)
class UniformFacts:
    """The facts of a pattern whose nonzeros are spread by chance.

    every_tile: each tile is computed, whether it holds nonzeros or not, and none is classified.
    ascends: else they come by column, and are those of a transpose.
    """

    shape: tuple[int, int]
    nnz: int
    every_tile: bool = False
    ascends: bool = True
    is_uniform = True
    distinct = False

    @property
    def ascends_by_column(self) -> bool:
        return not self.ascends

    @property
    def runs(self) -> int:
        """Each nonzero begins a run, unless chance has put one before it."""
        area = max(1, self.shape[0] * self.shape[1])
        return round(self.nnz * max(0.0, 1 - self.nnz / area))

    def tiles(self, block: Block) -> TileCounts:
        m, n = self.shape
        tiles = ceil_div(m, block[0]) * ceil_div(n, block[1])
        if tiles == 0 or self.nnz == 0:
            return TileCounts(0, 0, ())
        if self.every_tile:
            return TileCounts(tiles, 0, ())
        nonempty = min(tiles, self.nnz)
        mean = max(1, self.nnz // nonempty)
        full = tiles if self.nnz >= m * n else 0
        by_class = ((0, 0),) * (mean.bit_length() - 1) + ((nonempty, self.nnz),)
        return TileCounts(nonempty, full, by_class)

    def row_parts(self, width: int) -> float:
        return expected_row_parts(self.shape, self.nnz, width)


@dataclass(frozen=True, eq=False)
class CountedFacts:
    """The facts of a pattern that was analysed.

    counts: those of each size of tiles. parts: the non-empty parts of rows by their width, which
    ascends; those of single columns are all nonzeros, and those of a transpose are estimated by its
    tiles. Where nonzeros come by column, the runs are those of a column in consecutive rows.
    """

    nnz: int
    runs: int
    ascends: bool
    counts: Mapping[Block, TileCounts]
    parts: tuple[tuple[int, int], ...]
    ascends_by_column: bool = False
    distinct: bool = True
    is_uniform = False

    def tiles(self, block: Block) -> TileCounts | None:
        return self.counts.get(block)

    def row_parts(self, width: int) -> float:
        """Between two counted widths, and past the last, logarithms are taken to be linear."""
        points = [(1, max(1, self.nnz)), *((w, max(1, parts)) for w, parts in self.parts if w > 1)]
        if len(points) == 1 or width <= 1:
            return self.nnz
        (w0, p0), (w1, p1) = next(
            (pair for pair in itertools.pairwise(points) if pair[1][0] >= width),
            (points[-2], points[-1]),
        )
        slope = math.log(p1 / p0) / math.log(w1 / w0)
        return float(min(self.nnz, p1 * (width / w1) ** slope))


def expected_row_parts(shape: tuple[int, int], nnz: int, width: int) -> float:
    """The non-empty parts of rows, of `width` columns each, that chance leaves."""
    parts = shape[0] * ceil_div(shape[1], width)
    return 0.0 if parts == 0 else -parts * math.expm1(-nnz / parts)
