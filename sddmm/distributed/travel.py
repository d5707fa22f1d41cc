"""How rows of a dense operand, and partial sums of a result, travel between the ranks of a ring.

Two ways. "ring": whole panels go from neighbour to neighbour, so that in step t a rank computes
with the panel of the rank t places before it while the next one arrives in the second of two
rooms. "rows": each rank receives, straight from their owner, only the rows that its nonzeros
touch.

In both ways a rank takes the panels in the same order at every call, so sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sddmm.distributed.blocks import Block, Panel, Way, sends_touched
from sddmm.distributed.lanes import Incoming, LaneName, Outgoing, lane_of
from sddmm.distributed.streams import behind_now, beside


def panels_of(
    block: Block, way: Way, x: Tensor, sizes: list[int]
) -> Iterator[tuple[Panel, Tensor, str]]:
    """Each panel of the block, its rows of the operand, and a label; the next rows travel on.

    On a GPU they are asked for when the panel's kernels have been launched: the GPU computes while
    the ranks agree and while rows are sent.

    x: this rank's rows, ([h,] n_r, k). sizes: the rows at each position of the ring. The rows that
    come with a panel are valid until the next panel is asked for.
    """
    return _by_rows(block, x) if sends_touched(way) else _by_ring(block, x, sizes)


class PanelTransfer(NamedTuple):
    """Rows on their way. arriving: what comes, ([h,] rows, k)."""

    transfer: Any
    arriving: Tensor


def _step(
    block: Block, lane: LaneName, x: Tensor, rows: int, *,
    to: int, come_from: int, most: int, label: str, at: Tensor | None = None,
) -> Callable[[], PanelTransfer]:  # fmt: skip
    """A function that begins a transfer to one rank and from another, by ring position: rows of x,
    or those numbered `at`, leave, and `rows` others like them arrive. most: the rows that any rank
    receives at most."""
    grid, shape = block.grid, (*x.shape[:-2], rows, x.shape[-1])
    own = lane_of(grid, lane)
    row = torch.Size((*x.shape[:-2], 1, x.shape[-1])).numel() * x.element_size()
    room = own.room(x, rows * row, most * row)

    def parts() -> tuple[Outgoing, Tensor]:
        return own.outgoing(room, x, at), room.rows(shape, x.dtype)

    # As in slices.py: what is allocated must be now, and what is not can wait.
    allocated = parts() if room.number is None else None

    def start() -> PanelTransfer:
        outgoing, arriving = allocated or parts()
        place = grid.ring_place(come_from)
        incoming = Incoming({place: rows * row}, lambda: {place: [arriving]})
        sends = {grid.ring_place(to): [outgoing]}
        return PanelTransfer(own.start(room, sends, incoming, label), arriving)

    return start


def _by_ring(block: Block, x: Tensor, sizes: list[int]) -> Iterator[tuple[Panel, Tensor, str]]:
    q, here, most = block.grid.rings, block.grid.ring, block.most_panel_rows
    held = x.contiguous()
    for t in range(q):
        s = (here - t) % q
        begin = None
        if t + 1 < q:
            following = (s - 1) % q
            step = _step(
                block, "panels", held, sizes[following], to=here + 1, come_from=here - 1,
                most=most, label=f"panel {following}",
            )  # fmt: skip
            begin = behind_now(x.device, step)
            del step
        yield block.panels[s], held, f"panel {s}"
        if begin is not None:
            held = _next_rows(block, begin)
            del begin  # and with it the panel before


def _by_rows(block: Block, x: Tensor) -> Iterator[tuple[Panel, Tensor, str]]:
    q, here, most = block.grid.rings, block.grid.ring, block.most_panel_rows
    held, x = x, x.contiguous()
    for t in range(q):
        s, begin = (here - t) % q, None
        if t + 1 < q:
            following = (s - 1) % q
            touched = block.panels[following].touched
            assert touched is not None
            step = _step(
                block, "panels", x, touched.numel(), to=here + t + 1, come_from=here - t - 1,
                most=most, label=f"rows of panel {following}",
                at=block.requested[(here + t + 1) % q],
            )  # fmt: skip
            begin = behind_now(x.device, step)
        yield block.panels[s], held, f"panel {s}"
        if begin is not None:
            held = _next_rows(block, begin)


def _next_rows(block: Block, begin: Callable[[], PanelTransfer]) -> Tensor:
    """The rows that come next, for which the current stream waits; begun now that the kernels of
    the panel before them have been launched."""
    lane_of(block.grid, "panels").settle()
    coming = begin()
    coming.transfer.wait()
    return coming.arriving


def reduce_panels(
    block: Block, way: Way, sizes: list[int], compute: Callable[[Panel, str], Tensor]
) -> Tensor:
    """This rank's panel of the sum of all ranks' partial results, ([h,] n_r, d).

    compute: returns the partial result of one panel of this rank, ([h,] columns of the panel, d);
    it runs while the sums of other ranks travel. The order of every sum is fixed: by ring position,
    from the one after the panel's owner ("ring") or from the owner backwards ("rows").
    """
    return (
        _reduce_by_rows(block, compute) if way == "rows" else _reduce_by_ring(block, sizes, compute)
    )


class _Sums(NamedTuple):
    """Sums on their way to this rank. at: the rows to which they are added; None for all."""

    coming: PanelTransfer
    at: Tensor | None


def _reduce_by_ring(
    block: Block, sizes: list[int], compute: Callable[[Panel, str], Tensor]
) -> Tensor:
    q, here = block.grid.rings, block.grid.ring
    pending: _Sums | None = None
    for t in range(q):
        s = (here - 1 - t) % q
        total = compute(block.panels[s], f"panel {s}").contiguous()
        total = _added(total, pending)
        if t + 1 < q:
            pending = _sums(block, total, sizes[(s - 1) % q], here + 1, here - 1, None)
    return total


def _reduce_by_rows(block: Block, compute: Callable[[Panel, str], Tensor]) -> Tensor:
    q, here = block.grid.rings, block.grid.ring
    total = compute(block.panels[here], f"panel {here}").contiguous()
    pending: _Sums | None = None
    for t in range(1, q):
        s = (here - t) % q
        part = compute(block.panels[s], f"panel {s}").contiguous()
        total = _added(total, pending)
        rows = block.requested[(here + t) % q]
        pending = _sums(block, part, rows.numel(), s, here + t, rows)
    return _added(total, pending)


def _sums(
    block: Block, part: Tensor, rows: int, to: int, come_from: int, at: Tensor | None
) -> _Sums:
    """Send sums to one rank; `rows` others arrive from another. Both by ring position."""
    step = _step(
        block, "sums", part, rows, to=to, come_from=come_from, most=block.most_panel_rows,
        label="sums",
    )  # fmt: skip
    with beside(part.device):
        return _Sums(step(), at)


def _added(total: Tensor, pending: _Sums | None) -> Tensor:
    """The total with the sums that arrive added to their rows, each of which occurs once."""
    if pending is None:
        return total
    transfer, arriving = pending.coming
    transfer.wait()
    if pending.at is None:
        return total.add_(arriving)
    total[..., pending.at, :] += arriving
    return total


def exchange_panels(
    block: Block,
    way: Way,
    x: Tensor,
    sizes: list[int],
    compute: Callable[[Panel, Tensor, str], Tensor],
) -> Tensor:
    """This rank's panel of the sum of partial results that are computed from the panels of x.

    compute(panel, rows of x, label) returns a partial result, ([h,] rows of x, d). In the ring the
    sums follow the panels from rank to rank, and take one step more to their owner; their order is
    by ring position, from the owner's. In the other way it is from the owner's backwards.
    """
    q, here = block.grid.rings, block.grid.ring
    total: Tensor | None = None
    begun: tuple[Callable[[], PanelTransfer], Tensor | None] | None = None
    pending: _Sums | None = None
    for t, (panel, rows, label) in enumerate(panels_of(block, way, x, sizes)):
        # Only now, as NCCL carries one after the other: the rows that come next wait for no sums.
        pending = _started(begun)
        part = compute(panel, rows, label).contiguous()
        own_rows: Tensor | None = None
        if way == "rows":
            total = part if total is None else _added(total, pending)
            if t == 0:
                continue
            own_rows = block.requested[(here + t) % q]
            to, come_from, count = here - t, here + t, own_rows.numel()
        else:
            total = part = _added(part, pending)
            if q == 1:
                continue
            to, come_from, count = here + 1, here - 1, sizes[(here - t - 1) % q]
        step = _step(
            block, "sums", part, count, to=to, come_from=come_from, most=block.most_panel_rows,
            label="sums",
        )  # fmt: skip
        begun = behind_now(x.device, step), own_rows
    pending = _started(begun)
    assert total is not None
    if way == "rows" or pending is None:
        return _added(total, pending)
    pending.coming.transfer.wait()  # the sums of this rank's own panel, from the rank before it
    return pending.coming.arriving.clone()


def _started(begun: tuple[Callable[[], PanelTransfer], Tensor | None] | None) -> _Sums | None:
    return None if begun is None else _Sums(begun[0](), begun[1])
