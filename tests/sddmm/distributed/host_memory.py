"""Memory that processes of one machine share, in the place of that which GPUs share.

These are the rooms of `sddmm.distributed.peer_memory` for any number of CPU processes. A signal is
a number in shared memory, from 0 to 1 and back.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from sddmm.distributed.grid import Grid
from sddmm.distributed.peer_memory import CHANNELS, ROOMS, RemoteWrite, Rooms

_MOST = 1 << 20  # bytes of a room; more travels by messages
_SECONDS = 20.0


class HostMemory(Rooms):
    """Rooms in files; they hold NaN when all others may write into them anew."""

    def __init__(self, folder: Path) -> None:
        self._size, self._rank = dist.get_world_size(), dist.get_rank()
        super().__init__(self._size, self._rank, _MOST)
        self._folder = folder
        self._rooms: list[Tensor] = []

    def grow(self, grid: Grid, size: int) -> bool:
        if size > self.most:
            return False
        if size > self.capacity:
            grid.all_numbers([0])
            self.capacity = (size + 63) // 64 * 64
            names = [f"{self.capacity} {rank}" for rank in range(self._size)]
            self._rooms = [self._map(name, ROOMS * self.capacity) for name in names]
            self._signals = self._map(f"signals {self.capacity}", CHANNELS * self._size**2)
            self._let_all_write()
        return True

    def rest(self) -> None:
        if self._transfers:  # so no other has written for the next call
            self._rooms[self._rank].fill_(255)
        super().rest()

    @property
    def memory(self) -> Tensor:
        return self._rooms[self._rank]

    def follow(self) -> None:
        """There are no streams."""

    def start_reading_signals(self) -> None:
        """They are the host's own."""

    def write(self, room: int, parts: Sequence[RemoteWrite], thread_blocks: int) -> None:
        for peer, before, x, at in parts:
            rows = x if at is None else x[..., at, :]
            raw = torch.empty(rows.numel(), dtype=rows.dtype).copy_(rows.reshape(-1))
            raw = raw.view(torch.uint8)
            self._room(peer, room)[before : before + raw.numel()] = raw

    def _put(self, peers: Sequence[int], channel: int) -> None:
        for peer in peers:
            self._change(channel, self._rank, peer, 1)

    def _take(self, peers: Sequence[int], channel: int) -> None:
        for peer in peers:
            self._change(channel, peer, self._rank, 0)

    def _has_come(self, peers: Sequence[int], channel: int) -> bool:
        numbers = [self._number(channel, peer, self._rank) for peer in peers]
        return all(self._signals[number] == 1 for number in numbers)

    def _number(self, channel: int, sender: int, receiver: int) -> int:
        return (channel * self._size + sender) * self._size + receiver

    def _room(self, rank: int, number: int) -> Tensor:
        return self._rooms[rank][number * self.capacity : (number + 1) * self.capacity]

    def _map(self, name: str, size: int) -> Tensor:
        path = self._folder / name
        with path.open("ab") as file:
            file.truncate(size)
        return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)

    def _change(self, channel: int, sender: int, receiver: int, to: int) -> None:
        number = self._number(channel, sender, receiver)
        deadline = time.monotonic() + min(self.timeout_s, _SECONDS)
        while self._signals[number] == to:
            assert time.monotonic() < deadline, f"rank {sender} to {receiver}: channel {channel}"
            time.sleep(0)
        self._signals[number] = to


@contextmanager
def shared_memory() -> Iterator[None]:
    """Within, the ranks of every pattern that is made write into each other's memory."""
    with tempfile.TemporaryDirectory() as own:
        folders = [own] * dist.get_world_size()
        dist.all_gather_object(folders, own)
        memories: dict[str, HostMemory] = {}

        def open_memory(grid: Grid, device: torch.device, lane: str, is_served: bool) -> HostMemory:
            if lane not in memories:
                folder = Path(folders[0]) / lane
                folder.mkdir(exist_ok=True)
                memories[lane] = HostMemory(folder)
            return memories[lane]

        with mock.patch("sddmm.distributed.lanes.open_memory", open_memory):
            yield
        dist.barrier()
