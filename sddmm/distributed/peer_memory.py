"""Memory of a GPU into which the other GPUs of its host write, so that rows travel without NCCL.

NCCL's kernels take multiprocessors from those that compute. Copies of whole panels take none, and
the kernel that writes chosen rows takes a few. The memory is torch's symmetric memory
(torch.distributed._symmetric_memory), of which multicast is never used; signals are words of it.
"""

from __future__ import annotations

import functools
import socket
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.send_rows.host import Parcel, send_rows
from sddmm.backends.cuda.kernels.signals.host import copy_signals, put_signals, take_signals
from sddmm.backends.cuda.kernels.signals.host import load as load_signals
from sddmm.distributed.streams import current_stream, index_of

if TYPE_CHECKING:
    from sddmm.distributed.grid import Grid

ROOMS = 2
"""How many transfers have memory at a time: while one is read, the next one arrives."""

# A part of a GPU's memory that the rooms of one lane take at most; transfers of more go by NCCL.
_MOST = 1 / 6
_STEP = 1 << 25  # bytes of a room are a multiple of it, so that few sizes ask for new memory
# The channels of signals: one for a lane, and two times one for each room.
_REST, _GRANT, _ARRIVED = 0, 1, 1 + ROOMS
CHANNELS = 1 + 2 * ROOMS


class RemoteWrite(NamedTuple):
    """What is written into a room of one rank: x, ([h,] rows, k), or its rows with the numbers
    `at`, after `before` bytes."""

    peer: int
    before: int
    x: Tensor
    at: Tensor | None


class Rooms(ABC):
    """The rooms of every rank of a group, of `capacity` bytes each, and who may write into them.

    At the end of a call a rank lets all others write, so that the first transfer of the next call
    into each room waits for none. Within a call it grants later ones, when whatever reads the room
    has been launched. Who writes waits for that, and tells the rank when it has written. All of it
    is in the order of torch's current stream.

    turn: the room of the next transfer. timeout_s: of signals, the present call's. most: the bytes
    of a room at most.
    """

    def __init__(self, size: int, rank: int, most: int) -> None:
        """size: the ranks of the group. rank: this one's number in it."""
        self.capacity, self.most, self.turn, self.timeout_s = 0, most, 0, 0.0
        self._peers = [peer for peer in range(size) if peer != rank]
        self._transfers = 0  # of this call
        self._let: set[int] = set()  # the ranks that are known to let this one write

    @abstractmethod
    def grow(self, grid: Grid, size: int) -> bool:
        """Whether a room holds so many bytes now. All ranks call it, with the same size."""

    @abstractmethod
    def follow(self) -> None:
        """Make the current stream wait for the one on which rooms were read before, if another."""

    @property
    @abstractmethod
    def memory(self) -> Tensor:
        """The rooms of this rank, one after the other, uint8; other memory may follow."""

    @abstractmethod
    def write(self, room: int, parts: Sequence[RemoteWrite], thread_blocks: int) -> None:
        """Write into the room of this number of other ranks. thread_blocks: of the kernel that
        writes chosen rows."""

    @abstractmethod
    def _put(self, peers: Sequence[int], channel: int) -> None:
        """Signal to ranks."""

    @abstractmethod
    def _take(self, peers: Sequence[int], channel: int) -> None:
        """Wait for the signals of ranks, which may come again then."""

    @abstractmethod
    def _has_come(self, peers: Sequence[int], channel: int) -> bool:
        """Whether the signals of these ranks are there, so that `_take` waits for none."""

    @abstractmethod
    def start_reading_signals(self) -> None:
        """Begin a copy of this rank's signals to the host, which `may_begin_at_once` reads."""

    def may_begin_at_once(self, peers: Sequence[int]) -> bool:
        """Whether a first transfer to these ranks waits for none: they have ended the last call."""
        return self._transfers == 0 and self._has_come(peers, _REST)

    def begin(self, room: int, writers: Sequence[int]) -> None:
        """Begin a transfer, of which some ranks write into this one's room."""
        self.turn = (room + 1) % ROOMS
        self._transfers += 1
        if self._transfers > ROOMS:
            self._put(writers, _GRANT + room)

    def await_rooms(self, peers: Sequence[int], room: int) -> None:
        """Wait until this transfer may write into the rooms of ranks."""
        if self._transfers > ROOMS:
            self._take(peers, _GRANT + room)
        else:
            self._await_rest(peers)

    def signal_arrival(self, peers: Sequence[int], room: int) -> None:
        self._put(peers, _ARRIVED + room)

    def await_arrivals(self, peers: Sequence[int], room: int) -> None:
        self._take(peers, _ARRIVED + room)

    def rest(self) -> None:
        """End a call: let all write, when what has been launched has read the rooms."""
        if self._transfers:
            self._await_rest(self._peers)
            self._let_all_write()

    def _await_rest(self, peers: Sequence[int]) -> None:
        new = [peer for peer in peers if peer not in self._let]
        self._take(new, _REST)
        self._let.update(new)

    def _let_all_write(self) -> None:
        self._transfers = 0
        self._let.clear()
        self._put(self._peers, _REST)

    def discard(self, peer: int, room: int) -> None:
        """Discard what a rank writes in the first transfer of a call that is given up, and let it
        write again."""
        self.await_arrivals([peer], room)
        self._put([peer], _REST)

    def give_up(self, room: int) -> None:
        """Give up a call in whose first transfer this rank has written, which others discard."""
        self.turn, self._transfers = room, 0
        self._let.clear()


class PeerMemory(Rooms):
    """Memory of the GPUs of one host. The host waits for new memory and for copies of signals."""

    def __init__(self, group: Any, device: torch.device, most: int) -> None:
        """most: the bytes of a room at most, the same on all ranks."""
        super().__init__(group.size(), group.rank(), most)
        self._group, self._device = group.group_name, device  # no more, as groups hold this
        self._size, self._rank = group.size(), group.rank()
        self._agreed = most  # 0 where the GPUs cannot reach each other's memory
        self._stream: torch.cuda.Stream | None = None
        self._buffer: Tensor | None = None
        self._handle: Any = None
        self._words: list[int] = []  # by rank, where the signals that have come to it begin
        self._taken: dict[int, torch.cuda.Event] = {}  # by rank, behind what takes its last _REST
        self._copy = torch.empty(CHANNELS * self._size, dtype=torch.int32, pin_memory=True)
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._is_reading = False

    def grow(self, grid: Grid, size: int) -> bool:
        if size <= self.capacity:
            return True
        if size > self.most:
            return False
        torch.cuda.synchronize(self._device)
        grid.all_numbers([0])  # no rank writes into memory that another one gives back
        # With the memory go the signals in it: nothing is taken or told before there are new ones.
        self.capacity, self._buffer, self._handle, self._words = 0, None, None, []
        self._transfers = 0
        self._let.clear()
        capacity = ceil_div(size, _STEP) * _STEP
        if not _all(grid, self._allocate(capacity)):
            self.most, self._buffer = size - 1, None
            return False
        if not _all(grid, self._share()):
            self.most, self._agreed, self._buffer, self._handle = 0, 0, None, None
            return False
        self.capacity = capacity
        self._words = [self._signals(rank).data_ptr() for rank in range(self._size)]
        self._let_all_write()
        torch.cuda.synchronize(self._device)
        grid.all_numbers([0])
        return True

    def ask_again(self, grid: Grid) -> bool:
        """Whether there is a room now, also where there was no memory for a larger one before. All
        ranks call it."""
        self.most = self._agreed
        return self.grow(grid, 1)

    def follow(self) -> None:
        stream = current_stream(self._device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    @property
    def memory(self) -> Tensor:
        assert self._buffer is not None
        return self._buffer

    def write(self, room: int, parts: Sequence[RemoteWrite], thread_blocks: int) -> None:
        chosen: dict[int, tuple[Tensor, list[Parcel]]] = {}  # by the number of the operand
        for peer, before, x, at in parts:
            shape = x.shape if at is None else (*x.shape[:-2], at.numel(), x.shape[-1])
            first = (room * self.capacity + before) // x.element_size()
            target = self._handle.get_buffer(peer, shape, x.dtype, first)
            if at is None:
                target.copy_(x)  # by a copy engine
            else:
                chosen.setdefault(id(x), (x, []))[1].append(Parcel(at, target))
        for x, parcels in chosen.values():
            send_rows(x, parcels, thread_blocks)

    def _put(self, peers: Sequence[int], channel: int) -> None:
        words = [self._word(peer, channel, self._rank) for peer in peers]
        put_signals(words, self.timeout_s, index_of(self._device))

    def _take(self, peers: Sequence[int], channel: int) -> None:
        words = [self._word(self._rank, channel, peer) for peer in peers]
        take_signals(words, self.timeout_s, index_of(self._device))
        self._is_reading = False  # what is read now may be a signal that is taken here
        if channel == _REST and peers:
            taken = current_stream(self._device).record_event()
            self._taken.update(dict.fromkeys(peers, taken))

    def start_reading_signals(self) -> None:
        self._is_reading = self._handle is not None and self._begin_to_read()

    def _has_come(self, peers: Sequence[int], channel: int) -> bool:
        was_reading, self._is_reading = self._is_reading, False
        if was_reading and self._have_been_read(peers, channel):
            return True
        return self._begin_to_read() and self._have_been_read(peers, channel)

    def _begin_to_read(self) -> bool:
        """Copy the signals to the host; False while the GPU is still to take older ones."""
        if not all(event.query() for event in {*self._taken.values()}):  # type: ignore[no-untyped-call]
            return False
        copy_signals(self._words[self._rank], self._copy, self._copying)
        return True

    def _have_been_read(self, peers: Sequence[int], channel: int) -> bool:
        self._copying.synchronize()  # waits for no kernel
        signals = self._copy.tolist()
        return all(signals[channel * self._size + peer] == 1 for peer in peers)

    def _word(self, rank: int, channel: int, sender: int) -> int:
        """The address of a signal that `sender` puts, and `rank` takes."""
        number: int = channel * self._size + sender
        return self._words[rank] + 4 * number

    def _signals(self, rank: int) -> Tensor:
        """All signals that come to a rank, (channels * ranks,) int32, behind its rooms."""
        first, count = ROOMS * self.capacity // 4, CHANNELS * self._size
        signals: Tensor = self._handle.get_buffer(rank, (count,), torch.int32, first)
        return signals

    def _allocate(self, capacity: int) -> bool:
        # Not by torch's pool of such memory: its blocks would have to be the same on the ranks of
        # groups that overlap, and come with the signals of calls that failed.
        from torch._C._distributed_c10d import _SymmetricMemory

        torch.cuda.empty_cache()  # what torch keeps for later is not there for this memory
        try:
            size = ROOMS * capacity + 4 * CHANNELS * self._size
            self._buffer = _SymmetricMemory.empty_strided_p2p(
                (size,), (1,), torch.uint8, self._device
            )
        except RuntimeError:  # out of memory
            return False
        self._buffer[ROOMS * capacity :] = 0  # no signal is there
        torch.cuda.synchronize(self._device)
        return True

    def _share(self) -> bool:
        import torch.distributed._symmetric_memory as symmetric

        assert self._buffer is not None
        try:
            self._handle = symmetric.rendezvous(self._buffer, self._group)
        except RuntimeError:  # GPUs that cannot reach each other's memory
            return False
        return True


def open_memory(grid: Grid, device: torch.device, lane: str, is_served: bool) -> Rooms | None:
    """The memory of a lane between the ranks of a grid; None where messages serve.

    All ranks call it. They share memory where they are all on one host, is_served says on all of
    them that NCCL serves their GPUs, and a group of no others, and a first room can be made.
    """
    if grid.size == 1:
        return None
    here, most = zlib.crc32(socket.gethostname().encode()), 0
    if is_served and _has_symmetric_memory(device) and _has_signals(device):
        most = int(torch.cuda.get_device_properties(device).total_memory * _MOST / ROOMS)
    facts = grid.all_numbers([here, most])
    least = min(fact[1] for fact in facts)
    if not least or any(fact[0] != here for fact in facts):
        return None
    memories = _MEMORIES.setdefault(grid.group, {})
    key = lane, device.index
    if key not in memories:
        memories[key] = PeerMemory(grid.group, device, least)
    return memories[key] if memories[key].ask_again(grid) else None


_MEMORIES: weakref.WeakKeyDictionary[Any, dict[Any, PeerMemory]] = weakref.WeakKeyDictionary()


@functools.cache
def _has_symmetric_memory(device: torch.device) -> bool:
    """Whether torch has it, with the backend that writes into memory and has signals."""
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError:
        return False
    if not (hasattr(symmetric, "rendezvous") and hasattr(symmetric, "empty")):
        return False
    return not hasattr(symmetric, "get_backend") or symmetric.get_backend(device) == "CUDA"


def _has_signals(device: torch.device) -> bool:
    """Whether the kernel that sends and takes signals can be launched."""
    if loader.runtime.unavailable() or loader.runtime.refuses(device):
        return False
    try:
        load_signals(loader.runtime, index_of(device))
    except RuntimeError:  # as of a compiler that is not there
        return False
    return True


def _all(grid: Grid, is_done: bool) -> bool:
    return all(number == [1] for number in grid.all_numbers([int(is_done)]))
