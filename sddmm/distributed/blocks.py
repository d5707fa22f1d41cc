"""The part of S that one rank computes: a block of rows, cut into panels of columns.

With c replicas, the c ranks of a block of rows divide its columns: replica j holds the columns
whose rows of B travel in ring j (the 1.5D dense shifting of Bharadwaj, Buluc and Demmel,
Distributed-memory sparse kernels for machine learning, IPDPS 2022). With c = 1 the block is the
rank's own rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sddmm.distributed.cuts import Cuts, sizes
from sddmm.distributed.early import Early, find_early
from sddmm.distributed.grid import Grid
from sddmm.distributed.places import Places
from sddmm.sparse.indices import compress
from sddmm.sparse.pattern import SparsePattern

Way = Literal["ring", "rows", "slices", "row_slices"]
"""How a dense operand travels: whole panels round the ring; in each panel the touched rows alone;
all rows, or the touched ones, of a few columns or a head at a time. Samples do without slices."""
WAYS: tuple[Way, ...] = ("ring", "rows", "slices", "row_slices")


def sends_touched(way: Way) -> bool:
    """Whether only rows that nonzeros touch are sent."""
    return way in ("rows", "row_slices")


def is_sliced(way: Way) -> bool:
    """Whether products and attention go by slices."""
    return way in ("slices", "row_slices")


class Panel(NamedTuple):
    """The nonzeros of a block in the columns that one rank of the ring holds.

    pattern: CSR; its columns count from the first of the panel, or are positions in `touched`.
    places: where its nonzeros stand among the block's; None where they are all of them.
    touched: the columns that have nonzeros, ascending, where only their rows of B are sent.
    """

    pattern: SparsePattern
    places: Places | None
    touched: Tensor | None


class Counts(NamedTuple):
    """The numbers on which volumes depend; the same on every rank.

    rows, columns: of S, held by each place. touched: by place, the columns with nonzeros in each
    panel of its ring. pieces: by place, the nonzeros of its own rows that each replica computes.
    """

    replicas: int
    rows: list[int]
    columns: list[int]
    touched: list[list[int]]
    pieces: list[list[int]]


@dataclass(frozen=True, eq=False)
class Block:
    """This rank's block of S.

    panels: by ring position. requested: by ring position, the rows of this rank's part of B that
    the rank there touches; empty unless only those are sent. pieces: by replica, where the nonzeros
    that it computes stand among this rank's own. piece_sizes: by replica, how many of its own
    nonzeros this rank computes. whole: for slices, all panels side by side, the own one
    first, as its rows of B stay where they are.
    widths: by ring position, the columns of its panel. counts: of all ranks. prepared: the kinds of
    products that have been prepared; their plans are kept with the panels' patterns.
    """

    grid: Grid
    row_sizes: list[int]
    nnz: int
    panels: list[Panel]
    requested: list[Tensor]
    pieces: list[Tensor]
    piece_sizes: list[int]
    counts: Counts
    whole: SparsePattern | None = None
    prepared: set[Hashable] = field(default_factory=set)

    @functools.cached_property
    def widths(self) -> list[int]:
        return [panel.pattern.shape[1] for panel in self.panels]

    @property
    def rows(self) -> int:
        return sum(self.row_sizes)

    @functools.cached_property
    def early(self) -> Early | None:
        """What products by slices compute while the first slice travels."""
        if self.whole is None or self.grid.rings == 1:
            return None
        return find_early(self.whole, self.widths[self.grid.ring], self.other_rows)

    @functools.cached_property
    def other_rows(self) -> int:
        """The rows of all panels but this rank's own."""
        return sum(self.widths[s] for s in self.grid.others)

    def panel_rows(self, place: int, s: int) -> int:
        """The rows of B in the panel at a ring position, of the block that a place computes."""
        c = self.counts.replicas
        if self.requested and s != place // c:
            return self.counts.touched[place][s]
        return self.counts.columns[s * c + place % c]

    @functools.cached_property
    def panels_before(self) -> list[int]:
        """By ring position, the rows before this rank's panel among those that the rank there
        receives from all others."""
        return [
            sum(
                self.panel_rows(self.grid.ring_place(s), t) for t in range(self.grid.ring) if t != s
            )
            for s in range(self.grid.rings)
        ]

    @functools.cached_property
    def received_rows(self) -> list[int]:
        """By place, the rows that it receives from all others of its ring."""
        c, q = self.counts.replicas, self.grid.rings
        return [
            sum(self.panel_rows(place, s) for s in range(q) if s != place // c)
            for place in range(self.grid.size)
        ]

    @functools.cached_property
    def sums_rows(self) -> list[int]:
        """By ring position, the rows of sums that come from the rank there."""
        return [
            self.panel_rows(self.grid.ring_place(s), self.grid.ring) for s in range(self.grid.rings)
        ]

    @functools.cached_property
    def sums_before(self) -> list[int]:
        """By ring position, the rows of sums that come to the rank there from those before this
        one."""
        return [
            sum(
                self.panel_rows(self.grid.ring_place(t), s) for t in range(self.grid.ring) if t != s
            )
            for s in range(self.grid.rings)
        ]

    @functools.cached_property
    def most_panel_rows(self) -> int:
        """The rows of the largest panel that a rank receives at a time."""
        return max(self.panel_rows(p, s) for p, s in self._pairs())

    @functools.cached_property
    def most_rows(self) -> int:
        """The rows that the rank with most receives from all others."""
        return max(self.received_rows)

    @functools.cached_property
    def most_sums(self) -> int:
        """The rows of sums that the rank with most receives from all others."""
        c, totals = self.counts.replicas, [0] * self.grid.size
        for place, s in self._pairs():
            if s != place // c:
                totals[s * c + place % c] += self.panel_rows(place, s)
        return max(totals)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return itertools.product(range(self.grid.size), range(self.grid.rings))

    def gather_rows(self, x: Tensor) -> Tensor:
        """The rows of a dense operand that the replicas of the block hold, in order."""
        grid = self.grid
        if grid.replicas == 1:
            return x
        x = x.contiguous()
        parts = [x if p == grid.place else _rows_like(x, n) for p, n in self._sized_places()]
        others = [p for p in grid.block_places if p != grid.place]
        received = {p: parts[p - grid.block_places.start] for p in others}
        grid.exchange(dict.fromkeys(others, x), received)
        return torch.cat(parts, dim=-2)

    def scatter_rows(self, partial: Tensor) -> Tensor:
        """This rank's rows of the sum of all replicas' partial results of the block.

        The sum is in the order of the replicas, so its bits are the same on every run.
        """
        first, *others = self.collect_rows(partial)
        if not others:
            return first
        total = first.clone()
        for other in others:
            total += other
        return total

    def collect_rows(self, partial: Tensor) -> list[Tensor]:
        """This rank's rows of every replica's partial results of the block, by replica."""
        grid = self.grid
        if grid.replicas == 1:
            return [partial]
        parts = dict(
            zip(grid.block_places, torch.split(partial, self.row_sizes, dim=-2), strict=True)
        )
        own = parts.pop(grid.place)
        received = {p: torch.empty_like(own, memory_format=torch.contiguous_format) for p in parts}
        grid.exchange({p: part.contiguous() for p, part in parts.items()}, received)
        received[grid.place] = own
        return [received[p] for p in grid.block_places]

    def gather_values(self, values: Tensor) -> Tensor:
        """The block's values, (..., nnz), from those of the replicas' own rows."""
        grid = self.grid
        if grid.replicas == 1:
            return values
        sends = dict(zip(grid.block_places, (values[..., at] for at in self.pieces), strict=True))
        parts = {
            p: sends[p] if p == grid.place else values.new_empty((*values.shape[:-1], size))
            for p, size in zip(grid.block_places, self.piece_sizes, strict=True)
        }
        self._exchange_with_replicas(sends, parts)
        return torch.cat(list(parts.values()), dim=-1)

    def scatter_values(self, values: Tensor) -> Tensor:
        """The values of this rank's own rows from the block's: the inverse of gather_values."""
        grid = self.grid
        if grid.replicas == 1:
            return values
        sends = dict(
            zip(grid.block_places, torch.split(values, self.piece_sizes, dim=-1), strict=True)
        )
        parts = {
            p: sends[p] if p == grid.place else values.new_empty((*values.shape[:-1], at.numel()))
            for p, at in zip(grid.block_places, self.pieces, strict=True)
        }
        self._exchange_with_replicas(sends, parts)
        own = values.new_empty((*values.shape[:-1], sum(at.numel() for at in self.pieces)))
        for part, at in zip(parts.values(), self.pieces, strict=True):
            own[..., at] = part
        return own

    def _exchange_with_replicas(self, sends: dict[int, Tensor], parts: dict[int, Tensor]) -> None:
        here = self.grid.place
        self.grid.exchange(
            {p: x.contiguous() for p, x in sends.items() if p != here},
            {p: x for p, x in parts.items() if p != here},
        )

    def _sized_places(self) -> list[tuple[int, int]]:
        return list(zip(self.grid.block_places, self.row_sizes, strict=True))


def _rows_like(x: Tensor, rows: int) -> Tensor:
    return x.new_empty((*x.shape[:-2], rows, x.shape[-1]))


class BlockRows(NamedTuple):
    """The nonzeros of a block before it is cut into panels, and its pieces (see `Block`)."""

    row_ids: Tensor
    columns: Tensor
    owners: Tensor
    pieces: list[Tensor]
    piece_sizes: list[int]


def gather_block(grid: Grid, local: SparsePattern, rows: Cuts, columns: Cuts) -> BlockRows:
    """The nonzeros of this rank's block, from those of its replicas' own rows."""
    row_ids, cols = local.row_ids.long(), local.col_indices.long()
    ends = torch.tensor(columns[1:], device=cols.device)
    owners = torch.bucketize(cols, ends, right=True)
    if grid.replicas == 1:
        return BlockRows(row_ids, cols, owners, [], [])
    pieces = [(owners % grid.replicas == j).nonzero()[:, 0] for j in range(grid.replicas)]
    all_sizes = grid.all_numbers([at.numel() for at in pieces])
    piece_sizes = [all_sizes[place][grid.replica] for place in grid.block_places]
    first_row = rows[grid.block_places.start]
    triples = torch.stack([row_ids + (rows[grid.place] - first_row), cols, owners])
    sends = {
        p: triples[:, at].contiguous() for p, at in zip(grid.block_places, pieces, strict=True)
    }
    parts = {
        p: sends[p] if p == grid.place else triples.new_empty((3, size))
        for p, size in zip(grid.block_places, piece_sizes, strict=True)
    }
    here = grid.place
    grid.exchange(
        {p: x for p, x in sends.items() if p != here}, {p: x for p, x in parts.items() if p != here}
    )
    block_rows, block_cols, block_owners = torch.cat(list(parts.values()), dim=1)
    return BlockRows(block_rows, block_cols, block_owners, pieces, piece_sizes)


def touched_columns(grid: Grid, block: BlockRows) -> list[Tensor]:
    """By ring position, the columns of S with nonzeros of this rank's block, ascending."""
    rings = block.owners // grid.replicas
    return [torch.unique(block.columns[rings == s]) for s in range(grid.rings)]


def count(
    grid: Grid, rows: Cuts, columns: Cuts, touched: list[Tensor], pieces: list[Tensor], nnz: int
) -> Counts:
    """The numbers of all ranks. nnz: of this rank's own rows."""
    computed = [at.numel() for at in pieces] if pieces else [nnz]
    numbers = [*(x.numel() for x in touched), *computed]
    by_place = grid.all_numbers(numbers)
    rings = grid.rings
    return Counts(
        grid.replicas, sizes(rows), sizes(columns),
        [numbers[:rings] for numbers in by_place], [numbers[rings:] for numbers in by_place],
    )  # fmt: skip


def make_block(
    grid: Grid,
    block: BlockRows,
    rows: Cuts,
    columns: Cuts,
    touched: list[Tensor] | None,
    counts: Counts,
    index_dtype: torch.dtype,
    has_whole: bool,
) -> Block:
    """Cut a block into panels. touched: the columns whose rows of B are sent; None for all.

    The lists of touched columns are exchanged here, once for each pattern.
    """
    row_sizes = [counts.rows[place] for place in grid.block_places]
    rings = block.owners // grid.replicas
    panels: dict[int, Panel] = {}
    side_by_side, before = torch.empty_like(block.columns) if has_whole else None, 0
    for s in grid.own_first:
        own_touched = None if touched is None or s == grid.ring else touched[s]
        begin, end = (columns[grid.ring_place(s) + side] for side in (0, 1))
        places = None if grid.rings == 1 else Places.of(rings == s)
        ids, cols = block.row_ids, block.columns
        if places is not None:
            ids, cols = (torch.index_select(x, 0, places.at) for x in (ids, cols))
        if own_touched is None:
            cols, width = cols - begin, end - begin
        else:
            cols, width = torch.searchsorted(own_touched, cols), own_touched.numel()
            own_touched = own_touched - begin
        pattern = _csr(ids, cols, (sum(row_sizes), width), index_dtype)
        panels[s] = Panel(pattern, places, own_touched)
        if side_by_side is not None:
            if places is None:
                side_by_side.copy_(cols + before)
            else:
                side_by_side.index_copy_(0, places.at.long(), cols + before)
        before += width
    by_ring = [panels[s] for s in range(grid.rings)]
    requested = [] if touched is None else _exchange_requests(grid, by_ring, counts)
    whole = None
    if side_by_side is not None:
        whole = _csr(block.row_ids, side_by_side, (sum(row_sizes), before), index_dtype)
    nnz = block.columns.numel()
    return Block(
        grid, row_sizes, nnz, by_ring, requested, block.pieces, block.piece_sizes, counts, whole
    )


def _exchange_requests(grid: Grid, panels: list[Panel], counts: Counts) -> list[Tensor]:
    here = grid.ring
    sends: dict[int, Tensor] = {}
    requested: list[Tensor] = []
    for s, panel in enumerate(panels):
        place = grid.ring_place(s)
        rows = panel.pattern.col_indices.new_empty(counts.touched[place][here], dtype=torch.int64)
        requested.append(rows if s != here else rows[:0])
        if s != here:
            assert panel.touched is not None
            sends[place] = panel.touched
    receives = {grid.ring_place(s): rows for s, rows in enumerate(requested) if s != here}
    grid.exchange(sends, receives)
    return requested


def _csr(rows: Tensor, cols: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> SparsePattern:
    """The CSR pattern of nonzeros that are ordered by row."""
    crow = compress(rows, shape[0])
    return SparsePattern.from_csr(crow.to(dtype), cols.to(dtype), shape)
