"""How rows of a dense operand, and partial sums of a result, travel between the ranks of a ring.

Two ways. "ring": whole panels go from neighbour to neighbour, so that in step t a rank computes
with the panel of the rank t places before it while the next one arrives in the second of two
buffers. "rows": each rank receives, straight from their owner, only the rows that its nonzeros
touch.

In both ways a rank takes the panels in the same order at every call, so sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from sddmm.distributed.blocks import Block, Panel, Way, sends_touched
from sddmm.distributed.grid import Grid, Transfer
from sddmm.distributed.streams import behind_now


def panels_of(
    block: Block, way: Way, x: Tensor, sizes: list[int]
) -> Iterator[tuple[Panel, Tensor, str]]:
    """Each panel of the block, its rows of the operand, and a label; the next rows travel on.

    On a GPU they are asked for when the panel's kernels have been launched: the GPU computes while
    the ranks agree and while rows are packed.

    x: this rank's rows, ([h,] n_r, k). sizes: the rows at each position of the ring. The rows that
    come with a panel are valid until the next panel is asked for.
    """
    return _by_rows(block, x) if sends_touched(way) else _by_ring(block, x, sizes)


def _by_ring(block: Block, x: Tensor, sizes: list[int]) -> Iterator[tuple[Panel, Tensor, str]]:
    grid, q, here = block.grid, block.grid.rings, block.grid.ring
    buffers = _Buffers(x, max(sizes))
    held = x.contiguous()
    for t in range(q):
        s = (here - t) % q
        begin = None
        if t + 1 < q:
            after = buffers.rows(t, sizes[(s - 1) % q])
            sends, receives = {grid.ring_place(here + 1): held}, {grid.ring_place(here - 1): after}
            start = partial(grid.start, sends, receives, f"panel {(s - 1) % q}")
            begin = behind_now(x.device, start)
        yield block.panels[s], held, f"panel {s}"
        if begin is not None:
            begin().wait()
            held = after


def _by_rows(block: Block, x: Tensor) -> Iterator[tuple[Panel, Tensor, str]]:
    grid, q, here = block.grid, block.grid.rings, block.grid.ring
    held, x = x, x.contiguous()

    def start(t: int, sent: Tensor, after: Tensor) -> Transfer:
        """Begin the exchange of step t: to the rank t places on, from the rank t places before."""
        torch.index_select(x, -2, block.requested[(here + t) % q], out=sent)
        sends, receives = {grid.ring_place(here + t): sent}, {grid.ring_place(here - t): after}
        return grid.start(sends, receives, f"rows of panel {(here - t) % q}")

    for t in range(q):
        s, begin = (here - t) % q, None
        if t + 1 < q:
            touched = block.panels[(s - 1) % q].touched
            assert touched is not None
            counts = block.requested[(here + t + 1) % q].numel(), touched.numel()
            sent, after = (x.new_empty((*x.shape[:-2], rows, x.shape[-1])) for rows in counts)
            begin = behind_now(x.device, partial(start, t + 1, sent, after))
        yield block.panels[s], held, f"panel {s}"
        if begin is not None:
            begin().wait()
            held = after


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


def _reduce_by_ring(
    block: Block, sizes: list[int], compute: Callable[[Panel, str], Tensor]
) -> Tensor:
    grid, q, here = block.grid, block.grid.rings, block.grid.ring
    transfer: Transfer | None = None
    arriving: Tensor | None = None
    for t in range(q):
        s = (here - 1 - t) % q
        total = compute(block.panels[s], f"panel {s}").contiguous()
        if transfer is not None and arriving is not None:
            transfer.wait()
            total = arriving.add_(total)
        if t + 1 < q:
            before = (s - 1) % q
            arriving = total.new_empty((*total.shape[:-2], sizes[before], total.shape[-1]))
            sends = {grid.ring_place(here + 1): total}
            transfer = grid.start(
                sends, {grid.ring_place(here - 1): arriving}, f"sums of panel {before}"
            )
    return total


def _reduce_by_rows(block: Block, compute: Callable[[Panel, str], Tensor]) -> Tensor:
    grid, q, here = block.grid, block.grid.rings, block.grid.ring
    total = compute(block.panels[here], f"panel {here}").contiguous()
    pending: tuple[Transfer, Tensor, Tensor] | None = None
    for t in range(1, q):
        s = (here - t) % q
        part = compute(block.panels[s], f"panel {s}").contiguous()
        total = _added(total, pending)
        rows = block.requested[(here + t) % q]
        arriving = total.new_empty((*total.shape[:-2], rows.numel(), total.shape[-1]))
        receives = {grid.ring_place(here + t): arriving}
        transfer = grid.start({grid.ring_place(s): part}, receives, f"sums of panel {here}")
        pending = transfer, rows, arriving
    return _added(total, pending)


def _added(total: Tensor, pending: tuple[Transfer, Tensor, Tensor] | None) -> Tensor:
    """The total with the sums that arrive added to their rows, each of which occurs once."""
    if pending is not None:
        transfer, rows, arriving = pending
        transfer.wait()
        total[..., rows, :] += arriving
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
    grid, q, here = block.grid, block.grid.rings, block.grid.ring
    total: Tensor | None = None
    begun: tuple[Callable[[], Transfer], Tensor, Tensor] | None = None
    pending: tuple[Transfer, Tensor, Tensor] | None = None
    for t, (panel, rows, label) in enumerate(panels_of(block, way, x, sizes)):
        # Only now, as NCCL carries one after the other: the rows that come next wait for no sums.
        pending = _started(begun)
        part = compute(panel, rows, label).contiguous()
        if way == "rows":
            total = part if total is None else _added(total, pending)
            if t == 0:
                continue
            own_rows = block.requested[(here + t) % q]
            arriving = part.new_empty((*part.shape[:-2], own_rows.numel(), part.shape[-1]))
            sends = {grid.ring_place(here - t): part}
            receives = {grid.ring_place(here + t): arriving}
        else:
            total = part
            if pending is not None:
                pending[0].wait()
                total = pending[2].add_(part)
            if q == 1:
                continue
            own_rows, before = torch.empty(0), (here - t - 1) % q  # all rows arrive
            arriving = part.new_empty((*part.shape[:-2], sizes[before], part.shape[-1]))
            sends = {grid.ring_place(here + 1): total}
            receives = {grid.ring_place(here - 1): arriving}
        start = partial(grid.start, sends, receives, "sums")
        begun = behind_now(x.device, start), own_rows, arriving
    pending = _started(begun)
    assert total is not None
    if way == "rows":
        return _added(total, pending)
    if pending is not None:  # the sums of this rank's own panel, from the rank before it
        pending[0].wait()
        total = pending[2]
    return total


def _started(
    begun: tuple[Callable[[], Transfer], Tensor, Tensor] | None,
) -> tuple[Transfer, Tensor, Tensor] | None:
    return None if begun is None else (begun[0](), *begun[1:])


class _Buffers:
    """Memory for two panels of at most `most` rows like those of x, used in turn."""

    def __init__(self, x: Tensor, most: int) -> None:
        self._heads, self._width = x.shape[:-2], x.shape[-1]
        size = most * self._width * self._heads.numel()
        self._memory = [x.new_empty(0), x.new_empty(0)]
        self._size = size

    def rows(self, turn: int, count: int) -> Tensor:
        if self._memory[turn % 2].numel() == 0:
            self._memory[turn % 2] = self._memory[0].new_empty(self._size)
        shape = (*self._heads, count, self._width)
        return self._memory[turn % 2][: torch.Size(shape).numel()].view(shape)


def ring_sizes(grid: Grid, columns: list[int]) -> list[int]:
    """The columns of S at each position of this rank's ring. columns: by place."""
    return [columns[grid.ring_place(s)] for s in range(grid.rings)]
