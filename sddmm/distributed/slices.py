"""Dense operands that travel in slices: a head, or a few columns, of all rows that are sent.

While a rank computes with one slice, the next one comes from all others. A slice's result is whole:
nothing is merged, and sums are added in one process's order, which panels cannot offer. Partial
sums of the transposed product go straight to their owners, who add them by ring position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.distributed.blocks import Block
from sddmm.distributed.grid import Grid, Transfer
from sddmm.distributed.lanes import Arrival, Outgoing, Room, lane_of
from sddmm.distributed.streams import beside
from sddmm.distributed.timeline import span
from sddmm.dtypes import DTYPES, common_accumulator
from sddmm.products import find_or_prepare, product, product_problem
from sddmm.sparse.pattern import SparsePattern

# The bytes of a row of a slice: kernels gather shorter rows at a lower rate, which costs more than
# is gained by computing while other slices travel.
_SLICE_BYTES = 512
_MOST = 8


class Slice(NamedTuple):
    """A head of an operand, or some columns of one without heads."""

    head: int | None
    columns: slice

    def of(self, x: Tensor) -> Tensor:
        """The slice of ([h,] rows, k), (rows, columns of the slice); a view."""
        return (x if self.head is None else x[self.head])[:, self.columns]

    def values(self, x: Tensor) -> Tensor:
        """The values, (nnz,), of ([h,] nnz); all heads may share them."""
        return x if x.dim() == 1 or self.head is None else x[self.head]


def slices_of(x: Tensor) -> list[Slice]:
    """The slices of ([h,] rows, k): its heads, or some of its columns each."""
    if x.dim() == 3:
        return [Slice(head, slice(None)) for head in range(x.shape[0])]
    width = max(_SLICE_BYTES // x.element_size(), ceil_div(x.shape[-1], _MOST))
    begins = range(0, x.shape[-1], width)
    return [Slice(None, slice(begin, begin + width)) for begin in begins]


def whole_pattern(block: Block) -> SparsePattern:
    assert block.whole is not None
    return block.whole


def gathered(
    block: Block, like: Tensor, widths: list[int], write: Callable[[int, Tensor], object]
) -> Iterator[tuple[int, Tensor, str]]:
    """Number, rows, and a label, of each slice, while the next one travels.

    The rows are those of the columns of `whole_pattern`, (rows, w), of the dtype of `like`. widths:
    w of each slice. write: copies this rank's rows of a slice, by its number, into (n_r, w).
    """
    grid, lane = block.grid, lane_of(block.grid, "panels")

    def start(j: int) -> tuple[Callable[[], None], Transfer | Arrival, Tensor]:
        row = widths[j] * like.element_size()
        room = lane.room(like, sum(block.widths) * row, block.most_rows * row)
        every = room.rows((sum(block.widths), widths[j]), like.dtype)
        pieces = torch.split(every, block.widths)
        own, others = pieces[grid.ring], _others(grid)
        receives = {grid.ring_place(s): [pieces[s]] for s in others}
        sends = {
            grid.ring_place(s): [
                lane.outgoing(
                    room, own, block.requested[s] if block.requested else None,
                    block.panels_before(s) * row,
                )
            ]
            for s in others
        }  # fmt: skip
        with beside(like.device) as wait:  # so that kernels need not wait until it is sent
            write(j, own)
            transfer = lane.start(room, sends, receives, f"slice {j}")
        return wait, transfer, every

    begun = start(0) if widths else None
    for j in range(len(widths)):
        assert begun is not None
        wait, transfer, every = begun
        wait()
        transfer.wait()
        begun = start(j + 1) if j + 1 < len(widths) else None
        yield j, every, f"slice {j}"


class _Arriving(NamedTuple):
    """Partial sums of a slice: this rank's own, and those of others by ring position."""

    number: int
    own: tuple[Tensor, ...]
    others: dict[int, tuple[Tensor, ...]]
    transfer: Transfer | Arrival


def add_up(
    block: Block,
    parts: Iterable[tuple[int, tuple[Tensor, ...]]],
    results: Callable[[int], tuple[Tensor, ...]],
) -> None:
    """Write this rank's rows of all ranks' sums into the `results` of each slice, (n_r, w) each.

    parts: number and this rank's partial sums, each (columns of `whole_pattern`, w). They travel
    while the next ones are computed, and are added in their accumulator's dtype, the own ones
    first, then by ring position.
    """
    pending: _Arriving | None = None
    for j, part in parts:
        following = _send_sums(block, j, part)
        if pending is not None:
            _add(block, pending, results(pending.number))
        pending = following
    if pending is not None:
        _add(block, pending, results(pending.number))


def _send_sums(block: Block, j: int, part: tuple[Tensor, ...]) -> _Arriving:
    """Begin to send a slice's partial sums to the owners of their rows."""
    grid, lane = block.grid, lane_of(block.grid, "sums")
    pieces = [torch.split(x.contiguous(), block.widths) for x in part]
    row = sum(x.shape[-1] * x.element_size() for x in part)
    counts = {s: block.panel_rows(grid.ring_place(s), grid.ring) for s in _others(grid)}
    room = lane.room(part[0], sum(counts.values()) * row, block.most_sums * row)
    arriving: dict[int, tuple[Tensor, ...]] = {}
    sends: dict[int, list[Outgoing]] = {}
    before = 0
    for s, rows in counts.items():
        arriving[s] = _split(room, before * row, rows, part)
        before += rows
        sent = block.sums_before(s) * row
        sends[grid.ring_place(s)] = []
        for own in pieces:
            sends[grid.ring_place(s)].append(lane.outgoing(room, own[s], None, sent))
            sent += own[s].numel() * own[s].element_size()
    receives = {grid.ring_place(s): x for s, x in arriving.items()}
    with beside(part[0].device):
        transfer = lane.start(room, sends, receives, f"sums of slice {j}")
    return _Arriving(j, tuple(own[grid.ring] for own in pieces), arriving, transfer)


def _split(room: Room, before: int, rows: int, part: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The sums of one rank in a room, behind so many bytes, in rows like those of each tensor."""
    tensors = []
    for x in part:
        tensors.append(room.rows((rows, x.shape[-1]), x.dtype, before))
        before += rows * x.shape[-1] * x.element_size()
    return tuple(tensors)


def _others(grid: Grid) -> list[int]:
    return [s for s in range(grid.rings) if s != grid.ring]


def _add(block: Block, pending: _Arriving, results: tuple[Tensor, ...]) -> None:
    pending.transfer.wait()
    for i, (own, result) in enumerate(zip(pending.own, results, strict=True)):
        others = {s: sums[i] for s, sums in pending.others.items()}
        if len(others) == 1:  # two terms, whose sum is rounded once
            ((s, sums),) = others.items()
            if not block.requested:
                torch.add(own, sums, out=result)
                continue
            rows = block.requested[s]
            result.copy_(own)
            result[rows] = (own[rows] + sums).to(result.dtype)
            continue
        total = own.to(DTYPES[own.dtype].accumulator, copy=True)
        for s, sums in others.items():
            if block.requested:
                total[block.requested[s]] += sums  # each row occurs once
            else:
                total += sums
        result.copy_(total)


def sliced_product(
    block: Block, weights: Tensor, dense: Tensor, alpha: float, dtype: torch.dtype
) -> Tensor:
    """The block's rows of alpha * W X, ([h,] rows, d). weights: ([h,] nnz) of the block.

    dense: this rank's rows of X. dtype: of the result.
    """
    cut = slices_of(dense)
    shape = (*dense.shape[:-2], block.rows, dense.shape[-1])
    out: Tensor | None = None
    widths = [at.of(dense).shape[-1] for at in cut]
    slices = gathered(block, dense, widths, lambda j, own: own.copy_(cut[j].of(dense)))
    for j, rows, label in slices:
        with span("compute", label):
            own = cut[j].values(weights)
            part = product(whole_pattern(block), own, rows, alpha=alpha, out_dtype=dtype)
            if part.shape == shape:  # the only slice
                return part
            out = part.new_empty(shape) if out is None else out
            cut[j].of(out).copy_(part)
    return dense.new_empty(shape, dtype=dtype) if out is None else out


def sliced_transposed_product(
    block: Block, weights: Tensor, rows: Tensor, alpha: float, dtype: torch.dtype
) -> Tensor:
    """This rank's rows of alpha * W^T X, ([h,] n_r, d). rows: the block's rows of X."""
    cut, wide = slices_of(rows), common_accumulator(weights.dtype, rows.dtype)
    count = block.widths[block.grid.ring]
    out = rows.new_empty((*rows.shape[:-2], count, rows.shape[-1]), dtype=dtype)

    def parts() -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        for j, at in enumerate(cut):
            with span("compute", f"slice {j}"):
                part = product(
                    whole_pattern(block), at.values(weights), at.of(rows).contiguous(),
                    transpose=True, alpha=alpha, out_dtype=wide,
                )  # fmt: skip
            yield j, (part,)

    add_up(block, parts(), lambda j: (cut[j].of(out),))
    return out


def prepare_sliced_product(
    block: Block, values: Tensor, dense: Tensor, transpose: bool, dtype: torch.dtype
) -> None:
    """Prepare the products of slices of operands like these."""
    pattern = whole_pattern(block)
    for at in slices_of(dense):
        own = at.of(dense)
        problem = product_problem(pattern, at.values(values), own, None, transpose, dtype)
        if problem.nnz and own.shape[-1]:
            find_or_prepare(pattern, problem, transpose)
