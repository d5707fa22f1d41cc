"""Where the rows that come from other ranks are stored, and how they get there.

A lane is the memory of one kind of transfer: "panels" of dense operands, or "sums". Between the
GPUs of one host rows are written straight into the receiver's room (`peer_memory`); elsewhere they
are messages of torch.distributed. All ranks begin the transfers of a lane in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sddmm.backends.cuda.kernels.send_rows.host import SendBlocks
from sddmm.distributed.grid import Ahead, Grid, Transfer, backend_of
from sddmm.distributed.peer_memory import RemoteWrite, Rooms, open_memory
from sddmm.distributed.streams import record_event, wait_for
from sddmm.distributed.timeline import mark, record_span, span

LaneName = Literal["panels", "sums"]


class Outgoing(NamedTuple):
    """Rows for another rank: all of x, ([h,] rows, k) contiguous, or those with the numbers `at`.

    before: the bytes of the receiver's room before them. size: their own. packed: where chosen rows
    are put together first, if they travel as a message.
    """

    x: Tensor
    at: Tensor | None
    before: int
    size: int
    packed: Tensor | None


class Incoming(NamedTuple):
    """What arrives in a room, by place. sizes: its bytes. parts: the tensors of the room."""

    sizes: Mapping[int, int]
    parts: Callable[[], Mapping[int, Sequence[Tensor]]]


class Room(NamedTuple):
    """Memory of one transfer: that of (bytes,) uint8 from `first` on. number: of the room in shared
    memory; None for a tensor of its own.

    What it holds is valid until the second next room of the lane is asked for.
    """

    memory: Tensor
    first: int
    number: int | None

    def rows(self, shape: Sequence[int], dtype: torch.dtype, before: int = 0) -> Tensor:
        """A tensor of the room, behind so many bytes of others."""
        begin = self.first + before
        end = begin + math.prod(shape) * dtype.itemsize
        return self.memory[begin:end].view(dtype).view(*shape)


class Lane:
    """The transfers of one kind between the ranks of a grid. memory: None where all are messages.

    Everything is allocated by `room` and `outgoing`, before a stream beside the current one is
    used, as `streams.behind_now` asks for.
    """

    def __init__(self, grid: Grid, name: LaneName, memory: Rooms | None) -> None:
        self._grid, self._name, self._memory = grid, name, memory

    @property
    def is_shared(self) -> bool:
        """Whether transfers write into other ranks' memory, where they find room."""
        return self._memory is not None

    def finds_room(self, size: int) -> bool:
        """Whether a transfer of so many bytes writes into other ranks' memory."""
        return self._memory is not None and size <= self._memory.most

    def room(self, like: Tensor, size: int, largest: int) -> Room:
        """Memory for the next transfer. like: a tensor on its device. size: its bytes; largest:
        those of the rank of all that receives most."""
        memory = self._memory
        if memory is None or not self._holds(memory, largest):
            return Room(like.new_empty(size, dtype=torch.uint8), 0, None)
        memory.follow()
        return Room(memory.memory, memory.turn * memory.capacity, memory.turn)

    def outgoing(
        self, room: Room, x: Tensor, at: Tensor | None = None, before: int = 0
    ) -> Outgoing:
        """Rows of x for another rank's room of the same transfer."""
        packed, rows = None, x.shape[-2] if at is None else at.numel()
        shape = (*x.shape[:-2], rows, x.shape[-1])
        if at is not None and room.number is None:
            packed = x.new_empty(shape)
        return Outgoing(x, at, before, math.prod(shape) * x.element_size(), packed)

    def start_reading_signals(self) -> None:
        """See `Rooms`."""
        if self._memory is not None:
            self._memory.start_reading_signals()

    def settle(self) -> None:
        """End the agreements that have begun if all transfers are messages, which wait for that;
        in shared memory `start` decides."""
        if not self.is_shared:
            self._grid.settle()

    def start(
        self,
        room: Room,
        sends: Mapping[int, Sequence[Outgoing]],
        incoming: Incoming,
        label: str,
        thread_blocks: int = SendBlocks.BESIDE_KERNELS,
    ) -> Transfer | Arrival:
        """Begin a transfer on the current stream. sends: by place.

        No message is sent before the ranks have agreed on the call. Into shared memory a lane's
        first transfer is written before, if all receivers have ended the last call; it is read when
        they have agreed.

        thread_blocks: of a kernel that writes chosen rows.
        """
        if room.number is None:
            messages = {place: tuple(_packed(x) for x in parts) for place, parts in sends.items()}
            receives = {place: tuple(parts) for place, parts in incoming.parts().items()}
            return self._grid.start(messages, receives, label)
        return self._write(room.number, sends, incoming.sizes, label, thread_blocks)

    def _write(
        self,
        number: int,
        sends: Mapping[int, Sequence[Outgoing]],
        arriving: Mapping[int, int],
        label: str,
        thread_blocks: int,
    ) -> Arrival:
        """`start` in shared memory. arriving: bytes by place."""
        grid, memory = self._grid, self._memory
        assert memory is not None
        told = self._agree_or_note(number, sends)
        memory.timeout_s = grid.timeout_s
        senders = [grid.peer(place) for place, size in arriving.items() if size]
        memory.begin(number, senders)  # only now, as a call may end before on some rank
        try:
            told += self._write_to_all(number, sends, label, thread_blocks)
        except BaseException:
            grid.failures.append(f"the transfer of {label}")  # as others may wait for it
            raise
        grid.traffic.received += sum(arriving.values())
        kept = [part for parts in sends.values() for part in parts]
        sent = record_event(kept[0].x.device) if kept else None
        return Arrival(grid, memory, number, senders, label, sent, kept)

    def _write_to_all(
        self, number: int, sends: Mapping[int, Sequence[Outgoing]], label: str, thread_blocks: int
    ) -> list[int]:
        """Write into the rooms of others; returns the global ranks of all to whom it has written.
        They are told when all is written."""
        grid, memory = self._grid, self._memory
        assert memory is not None
        parts, places = [], []
        # Each rank begins with the one after it, so that none is written to by all.
        for place in sorted(sends, key=lambda place: (place - grid.place) % grid.size):
            own = [part for part in sends[place] if part.size]
            parts += [RemoteWrite(grid.peer(place), part.before, part.x, part.at) for part in own]
            places += [place] if own else []
            size = sum(part.size for part in own)
            grid.traffic.sent += size
            grid.traffic.written += size
        if parts:
            peers = [grid.peer(place) for place in places]
            memory.await_rooms(peers, number)
            begin = mark()
            memory.write(number, parts, thread_blocks)
            record_span("transfer", label, begin)
            memory.signal_arrival(peers, number)
        return [grid.ranks[place] for place in places]

    def _agree_or_note(self, number: int, sends: Mapping[int, Sequence[Outgoing]]) -> list[int]:
        """A list to which the caller adds the ranks that it has written to.

        If the others have not been told of the call and have ended the last one, the list is part
        of what they will be told. Else this waits for their agreement, and nobody reads the list.
        An agreement within another one is waited for: what was written would belong to either.
        """
        pending, memory = self._grid.pending, self._memory
        assert memory is not None
        if (
            len(pending) == 1
            and pending[0].may_write(self._name)
            and memory.may_begin_at_once([self._grid.peer(place) for place in sends])
        ):
            ahead = Ahead(self._name, number, [])
            pending[0].ahead.append(ahead)
            return ahead.ranks
        self._grid.settle()
        return []

    def rest(self) -> None:
        """End the transfers of a call, behind what the current stream holds now."""
        if self._memory is not None:
            self._memory.timeout_s = self._grid.timeout_s
            self._memory.rest()

    def discard(self, place: int, number: int) -> None:
        """Discard what a rank has written for a call on which the ranks have not agreed."""
        assert self._memory is not None
        self._memory.timeout_s = self._grid.timeout_s
        self._memory.follow()  # so that no later call, on another stream, takes what comes now
        self._memory.discard(self._grid.peer(place), number)

    def give_up(self, number: int) -> None:
        """Give up such a call, for which this rank has written."""
        assert self._memory is not None
        self._memory.give_up(number)

    def _holds(self, memory: Rooms, size: int) -> bool:
        if size > memory.capacity:
            self._grid.settle()  # as all ranks must be there
        return size > 0 and memory.grow(self._grid, size)


@dataclass(frozen=True)
class Arrival:
    """Rows on their way into the room of a number. peers: who writes them. sent: when this rank has
    written its own; kept: what it writes, which must live as long."""

    grid: Grid
    memory: Rooms
    number: int
    peers: Sequence[int]
    label: str
    sent: torch.cuda.Event | None
    kept: Sequence[Outgoing]

    def wait(self) -> None:
        """Make what follows on the current stream wait for the rows."""
        self.grid.settle()
        with span("wait", self.label):
            if self.sent is not None:
                wait_for(self.sent, self.kept[0].x.device)
            self.memory.await_arrivals(self.peers, self.number)


def open_lanes(grid: Grid, device: torch.device) -> None:
    """Make the lanes of a grid; all ranks call it."""
    is_served = (
        device.type == "cuda"
        and backend_of(grid.group, device) == "nccl"
        and dist.get_world_size(grid.group) == grid.size
    )
    names: tuple[LaneName, ...] = ("panels", "sums")
    for name in names:
        grid.lanes[name] = Lane(grid, name, open_memory(grid, device, name, is_served))


def lane_of(grid: Grid, name: LaneName) -> Lane:
    """A lane of a grid, which `open_lanes` has made."""
    lane: Lane = grid.lanes[name]
    return lane


def _packed(rows: Outgoing) -> Tensor:
    if rows.at is None:
        return rows.x
    assert rows.packed is not None
    return torch.index_select(rows.x, -2, rows.at, out=rows.packed)
