"""Dense operands that travel in slices: a head, or a few columns, of all rows that are sent.

While a rank computes with one slice, the next one comes from all others. A slice's result is whole:
nothing is merged, and sums are added in one process's order, which panels cannot offer. Partial
sums of the transposed product go straight to their owners, who add them by ring position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cuda.kernels.add_rows.host import add_rows
from sddmm.backends.cuda.kernels.send_rows.host import SendBlocks
from sddmm.distributed.blocks import Block
from sddmm.distributed.grid import Transfer
from sddmm.distributed.lanes import Arrival, Incoming, Outgoing, Room, lane_of
from sddmm.distributed.streams import behind_now, beside, current_stream
from sddmm.dtypes import DTYPES
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


Operands = tuple[Tensor, ...]
"""This rank's rows of what travels together in a slice, (n_r, w) each."""


class ReceivedSlice(NamedTuple):
    """A slice that has come. number: from 0 on. rows: of all other ranks, side by side, which
    follow this rank's in the columns of `whole_pattern`, (rows, w) each.

    send_next: begins to send the slice after it, behind what was launched before this one came. Who
    calls it when the slice's kernels are launched leaves the GPU no gap.
    """

    number: int
    rows: Operands
    label: str
    send_next: Callable[[], object]


def gathered(
    block: Block,
    count: int,
    own: Callable[[int], Operands],
    before: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], object] = lambda: None,
    is_busy: bool = False,
) -> Iterator[ReceivedSlice]:
    """Each of `count` slices. The first one is begun by the call itself.

    own: this rank's rows of a slice. before, meanwhile: launch what needs no slice, before the
    first one is sent and behind that. is_busy: whether that takes about as long as the first one.
    """
    if not count:
        return iter(())
    begin = _prepare_slice(
        block, own(0), 0, SendBlocks.BESIDE_KERNELS if is_busy else SendBlocks.FULL_RATE
    )
    before()
    lane_of(block.grid, "panels").settle()
    first = begin()  # now that kernels are launched
    meanwhile()
    block.grid.settle()

    def every() -> Iterator[ReceivedSlice]:
        coming = first
        for j in range(count):
            coming.transfer.wait()
            if j + 1 == count:
                yield ReceivedSlice(j, coming.rows, f"slice {j}", _nothing)
                return
            send_next = cache(_prepare_slice(block, own(j + 1), j + 1))
            yield ReceivedSlice(j, coming.rows, f"slice {j}", send_next)
            coming = send_next()

    return every()


Rows = tuple[Operands, "Operands | None"]
"""Rows for the columns of `whole_pattern`; the last ones may stand in tensors of their own."""


def side_by_side(own: Operands, others: Operands) -> Rows:
    """All rows of a slice; in one tensor each where the own ones, or those of others, are none."""
    if own[0].shape[0] and others[0].shape[0]:
        return own, others
    return (own if own[0].shape[0] else others), None


class SliceTransfer(NamedTuple):
    """A slice on its way. rows: of all others, side by side."""

    rows: Operands
    transfer: Transfer | Arrival


def _prepare_slice(
    block: Block, own: Operands, j: int, thread_blocks: int = SendBlocks.BACKGROUND
) -> Callable[[], SliceTransfer]:
    """A function that begins to send a slice, behind what the current stream holds now."""
    lane = lane_of(block.grid, "panels")
    if not block.requested:  # whole panels travel from contiguous memory
        own = tuple(x.contiguous() for x in own)
    row = sum(_row_bytes(own))
    room = lane.room(own[0], block.other_rows * row, block.most_rows * row)
    # Memory must be allocated before the stream beside is used. In shared memory none is, so that
    # this work of the host waits until kernels have been launched.
    parcels = partial(_parcels, block, own, room)
    allocated = parcels() if room.number is None else None

    def start() -> SliceTransfer:
        rows, sends, incoming = allocated or parcels()
        transfer = lane.start(room, sends, incoming, f"slice {j}", thread_blocks)
        return SliceTransfer(rows, transfer)

    return behind_now(own[0].device, start)


def _parcels(
    block: Block, own: Operands, room: Room
) -> tuple[Operands, dict[int, list[Outgoing]], Incoming]:
    """The rows of all others in the room, what is sent, by place, and what is received."""
    grid, lane, sizes = block.grid, lane_of(block.grid, "panels"), _row_bytes(own)
    rows, row = _split(room, 0, block.other_rows, own), sum(sizes)
    sends: dict[int, list[Outgoing]] = {}
    for s in grid.others:
        at, place = block.requested[s] if block.requested else None, grid.ring_place(s)
        before, received = block.panels_before[s], block.received_rows[place]
        sends[place] = [
            lane.outgoing(room, x, at, received * sum(sizes[:i]) + before * sizes[i])
            for i, x in enumerate(own)
        ]

    def parts() -> dict[int, list[Tensor]]:
        pieces = [torch.split(x, [block.widths[s] for s in grid.others]) for x in rows]
        return {
            grid.ring_place(s): [x[number] for x in pieces] for number, s in enumerate(grid.others)
        }

    arriving = {grid.ring_place(s): block.widths[s] * row for s in grid.others}
    return rows, sends, Incoming(arriving, parts)


def _row_bytes(own: Operands) -> list[int]:
    return [x.shape[-1] * x.element_size() for x in own]


class _Arriving(NamedTuple):
    """Partial sums of a slice: this rank's own, and those of others by ring position."""

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
    begin_to_add_up(block, parts, results)()


def begin_to_add_up(
    block: Block,
    parts: Iterable[tuple[int, tuple[Tensor, ...]]],
    results: Callable[[int], tuple[Tensor, ...]],
) -> Callable[[], None]:
    """`add_up`, but for the sums that travel last, which the function that it gives adds."""
    end: Callable[[], None] = _nothing
    for j, part in parts:
        if not part:  # no sums are asked for
            continue
        following = _add_beside(block, _send_sums(block, j, part), results(j))
        end()
        end = following
    return end


def _nothing() -> None:
    pass


def _add_beside(
    block: Block, pending: _Arriving, results: tuple[Tensor, ...]
) -> Callable[[], None]:
    """Add sums that are on their way, on a GPU on the stream beside the current one, which the
    function that it gives makes wait; on a CPU that function adds them."""
    device = pending.own[0].device
    if device.type != "cuda":
        return lambda: _add(block, pending, results)
    with beside(device) as wait:
        _add(block, pending, results)
        # What was allocated on another stream is not used again before these sums are done.
        for x in (*pending.own, *(x for sums in pending.others.values() for x in sums)):
            x.record_stream(current_stream(device))
    return wait


def _send_sums(block: Block, j: int, part: tuple[Tensor, ...]) -> _Arriving:
    """Begin to send a slice's partial sums to the owners of their rows."""
    grid, lane = block.grid, lane_of(block.grid, "sums")
    order = grid.own_first
    widths = [block.widths[s] for s in order]
    pieces = [dict(zip(order, torch.split(x.contiguous(), widths), strict=True)) for x in part]
    row = sum(_row_bytes(part))
    counts = {s: block.sums_rows[s] for s in grid.others}
    room = lane.room(part[0], sum(counts.values()) * row, block.most_sums * row)
    arriving: dict[int, tuple[Tensor, ...]] = {}
    sends: dict[int, list[Outgoing]] = {}
    before = 0
    for s, rows in counts.items():
        arriving[s] = _split(room, before * row, rows, part)
        before += rows
        sent = block.sums_before[s] * row
        sends[grid.ring_place(s)] = []
        for own in pieces:
            sends[grid.ring_place(s)].append(lane.outgoing(room, own[s], None, sent))
            sent += own[s].numel() * own[s].element_size()
    incoming = Incoming(
        {grid.ring_place(s): rows * row for s, rows in counts.items()},
        lambda: {grid.ring_place(s): sums for s, sums in arriving.items()},
    )
    with beside(part[0].device):
        transfer = lane.start(room, sends, incoming, f"sums of slice {j}")
    return _Arriving(tuple(own[grid.ring] for own in pieces), arriving, transfer)


def _split(room: Room, before: int, rows: int, part: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Consecutive tensors in a room, behind so many bytes: `rows` rows for each of `part`, as wide
    and of its dtype."""
    tensors = []
    for x in part:
        tensors.append(room.rows((rows, x.shape[-1]), x.dtype, before))
        before += rows * x.shape[-1] * x.element_size()
    return tuple(tensors)


def _add(block: Block, pending: _Arriving, results: tuple[Tensor, ...]) -> None:
    """results[i] = the own sums and all that arrive, rounded once."""
    if block.requested or not pending.others:
        for own, result in zip(pending.own, results, strict=True):
            result.copy_(own)
    pending.transfer.wait()
    for i, (own, result) in enumerate(zip(pending.own, results, strict=True)):
        arrived = [(s, sums[i]) for s, sums in pending.others.items()]
        if len(arrived) == 1:
            _add_rows(block, *arrived[0], own, result)
        elif arrived:
            total = own.to(DTYPES[own.dtype].accumulator, copy=True)
            for s, sums in arrived:
                _add_rows(block, s, sums, total, total)
            result.copy_(total)


def _add_rows(block: Block, s: int, arrived: Tensor, own: Tensor, totals: Tensor) -> None:
    """totals = own + what arrived from the rank at a ring position; of the rows that it sends."""
    if block.requested:
        add_rows(own, arrived, block.requested[s], totals)
    else:
        torch.add(own, arrived, out=totals)
