"""The ranks that share a matrix: their places in a grid, and the messages between them.

All messages are torch.distributed's, point to point: NCCL carries CUDA tensors, gloo CPU tensors.
Rows of dense operands and sums go by `lanes.py`, which writes into memory where it can.
"""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sddmm.distributed.timeline import mark, record_transfer, span

TIMEOUT_S = 300.0
"""Seconds after which a rank that does not answer is named in an error."""

_HOST_TAG = 1  # of messages about a call; tensors of the call travel with tag 0


Messages = Tensor | tuple[Tensor, ...]
"""What one rank sends to another at a time: a tensor or several."""


class DistributedError(RuntimeError):
    """Another rank raised an error, or does not answer; the message names it."""


@dataclass
class Ahead:
    """What a rank wrote into others' memory before all had agreed: the room of a lane, and of
    which ranks."""

    lane: str
    room: int
    ranks: list[int]


@dataclass
class Pending:
    """An agreement that is not reached yet. end: tells the other ranks what it is about, waits for
    them, and raises where there is none. ahead: what was written before; is_told: whether the
    others are told."""

    end: Callable[[], None]
    ahead: list[Ahead] = field(default_factory=list)
    is_told: bool = False

    def may_write(self, lane: str) -> bool:
        """Whether the others will be told of what is written into a lane now."""
        return not self.is_told and all(own.lane != lane for own in self.ahead)


@dataclass
class Traffic:
    """The bytes of tensors that this rank has sent and received in calls, status excluded; written:
    those of the sent ones that it wrote into others' memory."""

    sent: int = 0
    received: int = 0
    written: int = 0


@dataclass(frozen=True, eq=False)
class Grid:
    """p ranks of a group as a grid of p / c rings by c replicas; c = 1 is one ring of all ranks.

    group: the process group whose messages carry tensors. host_group: one that carries CPU tensors.
    ranks: the global rank at each place of the grid, row by row: place = ring * replicas + replica.
    place: that of this rank. timeout_s: how long to wait for another rank. pending: agreements
    that have begun, see `settle`. lanes: by name, see `lanes.py`. failures: the calls
    and transfers of the group that failed on this rank when rows of theirs could be on their way.
    """

    group: Any
    host_group: Any
    ranks: tuple[int, ...]
    place: int
    replicas: int = 1
    timeout_s: float = TIMEOUT_S
    traffic: Traffic = field(default_factory=Traffic)
    pending: list[Pending] = field(default_factory=list)
    lanes: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rings(self) -> int:
        """The number of ranks of one ring, between which panels travel."""
        return self.size // self.replicas

    @property
    def ring(self) -> int:
        return self.place // self.replicas

    @property
    def replica(self) -> int:
        return self.place % self.replicas

    def ring_place(self, ring: int) -> int:
        """The place of the rank at a position (modulo the ring's length) of this rank's ring."""
        return ring % self.rings * self.replicas + self.replica

    def peer(self, place: int) -> int:
        """The rank within the group at a place."""
        return self._peers[place]

    @cached_property
    def _peers(self) -> list[int]:
        return [dist.get_group_rank(self.group, rank) for rank in self.ranks]

    @cached_property
    def others(self) -> list[int]:
        """The other positions of this rank's ring, ascending."""
        return [s for s in range(self.rings) if s != self.ring]

    @cached_property
    def own_first(self) -> list[int]:
        """The positions of this rank's ring, its own first."""
        return [self.ring, *self.others]

    @property
    def block_places(self) -> range:
        """The places of the replicas that share this rank's block of rows."""
        return range(self.ring * self.replicas, (self.ring + 1) * self.replicas)

    def start(
        self, sends: Mapping[int, Messages], receives: Mapping[int, Messages], label: str = ""
    ) -> Transfer:
        """Begin to send and receive contiguous tensors, by place; empty ones are left out.

        Each pair of ranks must agree on the sizes and on the order. The transfer reads and writes
        the tensors until `Transfer.wait`. NCCL runs it on a stream of its own, behind what the
        current stream holds now, so that kernels launched afterwards overlap with it. Nothing
        travels before the ranks have agreed on the call.
        """
        self.settle()
        outgoing, incoming = _by_place(sends), _by_place(receives)
        operations = [
            dist.P2POp(operation, tensor, self.ranks[place], self.group)
            for operation, messages in ((dist.isend, outgoing), (dist.irecv, incoming))
            for place, tensor in messages
            if tensor.numel()
        ]
        self.traffic.sent += sum(x.numel() * x.element_size() for _, x in outgoing)
        self.traffic.received += sum(x.numel() * x.element_size() for _, x in incoming)
        begin = mark()
        works = dist.batch_isend_irecv(operations) if operations else []
        if works and operations[0].tensor.is_cuda:
            record_transfer(label, begin, works)
        names = [self.ranks[place] for place in (*sends, *receives)]
        return Transfer(works, names, self, label, tuple(x for _, x in (*outgoing, *incoming)))

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """Send and receive, and wait."""
        self.start(sends, receives, "exchange").wait()

    def settle(self) -> None:
        """End the agreements that have begun; raises what they raise."""
        while self.pending:
            self.pending.pop(0).end()

    def all_to_host(self, message: Tensor) -> list[Tensor]:
        """A CPU tensor of every rank, of one size and dtype, by place.

        DistributedError names the ranks that sent none within `timeout_s`.
        """
        self.settle()
        return self.exchange_on_host(message)

    def exchange_on_host(self, message: Tensor) -> list[Tensor]:
        """`all_to_host` in an agreement that is being ended, whatever others have begun."""
        messages = [
            message if p == self.place else torch.empty_like(message) for p in range(self.size)
        ]
        sent: list[Any] = []
        received: dict[int, Any] = {}
        lost: dict[int, str] = {}
        for place, rank in enumerate(self.ranks):
            if place == self.place:
                continue
            try:
                sent.append(dist.isend(message, rank, self.host_group, tag=_HOST_TAG))
                received[place] = dist.irecv(messages[place], rank, self.host_group, tag=_HOST_TAG)
            except RuntimeError as error:
                lost[place] = _first_line(error)
        for place, work in received.items():
            try:
                work.wait(self._timeout())
            except RuntimeError as error:
                lost[place] = _first_line(error)
        if lost:
            names = ", ".join(str(self.ranks[place]) for place in sorted(lost))
            raise DistributedError(
                f"rank {names} did not call within {self.timeout_s:g} s, or has ended "
                f"({next(iter(lost.values()))})"
            )
        for work in sent:
            work.wait(self._timeout())
        return messages

    def all_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """A list of integers of every rank, all of one length, by place."""
        return [x.tolist() for x in self.all_to_host(torch.tensor(numbers, dtype=torch.int64))]

    def _timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.timeout_s)


@dataclass(frozen=True)
class Transfer:
    """Messages on their way. ranks: the peers, for errors; label: for the timeline.

    tensors: their memory, which must live as long as they travel.
    """

    works: Sequence[Any]
    ranks: Sequence[int]
    grid: Grid
    label: str
    tensors: tuple[Tensor, ...]

    def wait(self) -> None:
        """Make what follows on the current stream (on a CPU, the caller) wait for the messages."""
        if not self.works:
            return
        with span("wait", self.label):
            try:
                is_cuda = any(x.is_cuda for x in self.tensors)
                for work in self.works:
                    # With a time-out NCCL would make the host wait too; its watchdog has one.
                    work.wait() if is_cuda else work.wait(self.grid._timeout())
            except RuntimeError as error:
                names = ", ".join(map(str, sorted(set(self.ranks))))
                raise DistributedError(
                    f"an exchange of {self.label} with rank {names} failed: {_first_line(error)}"
                ) from error


def _by_place(messages: Mapping[int, Messages]) -> list[tuple[int, Tensor]]:
    """Each tensor with its place, in the order in which both ends name them."""
    listed = []
    for place in sorted(messages):
        message = messages[place]
        tensors = message if isinstance(message, tuple) else (message,)
        listed += [(place, x) for x in tensors]
    return listed


def make_grid(group: Any = None, mesh: Any = None, timeout_s: float = TIMEOUT_S) -> Grid:
    """The grid of a process group (by default, of all ranks), or of a DeviceMesh.

    mesh: of one dimension, or of two: (rings, replicas). ValueError or RuntimeError in one line
    where there is no such group.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is not initialised; call torch.distributed.init_process_group, and "
            "start the program with torchrun"
        )
    if group is not None and mesh is not None:
        raise ValueError("give group or mesh, not both")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be > 0, got {timeout_s!r}")
    replicas = 1
    if mesh is not None:
        ranks, replicas = _ranks_of_mesh(mesh)
        group = _group_of(ranks)
    else:
        group = dist.group.WORLD if group is None else group
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"group does not hold this rank, {dist.get_rank()}")
        ranks = tuple(dist.get_process_group_ranks(group))
    if dist.get_rank() not in ranks:
        raise ValueError(
            f"the mesh of ranks {list(ranks)} does not hold this rank, {dist.get_rank()}"
        )
    place = ranks.index(dist.get_rank())
    failures = _FAILURES.setdefault(group, [])
    return Grid(
        group, _host_group(group, ranks), ranks, place, replicas, timeout_s, failures=failures
    )


_FAILURES: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


def _ranks_of_mesh(mesh: Any) -> tuple[tuple[int, ...], int]:
    if mesh.ndim not in (1, 2):
        raise ValueError(
            f"mesh must have one dimension, or two (rings, replicas); got {mesh.ndim} dimensions"
        )
    replicas = mesh.size(1) if mesh.ndim == 2 else 1
    return tuple(mesh.mesh.flatten().tolist()), replicas


def _group_of(ranks: tuple[int, ...]) -> Any:
    world: Any = dist.group.WORLD
    # Bound to a device, NCCL makes a smaller group with all ranks of the world, who do not come.
    if len(ranks) == dist.get_world_size() or world.bound_device_id is not None:
        return world
    return _new_group(ranks, None)


def _host_group(group: Any, ranks: tuple[int, ...]) -> Any:
    """The group itself where gloo carries its CPU tensors, else a gloo group of the same ranks."""
    if "cpu:gloo" in str(dist.get_backend_config(group)):
        return group
    return _new_group(ranks, "gloo")


_GROUPS: dict[tuple[tuple[int, ...], str | None], Any] = {}


def _new_group(ranks: tuple[int, ...], backend: str | None) -> Any:
    """A group that only its ranks make, once in a process while its default group lives."""
    key = ranks, backend
    group, world = _GROUPS.get(key, (None, None))
    if group is None or world is not dist.group.WORLD:
        group = dist.new_group(sorted(ranks), backend=backend, use_local_synchronization=True)
        _GROUPS[key] = group, dist.group.WORLD
    return group


def backend_of(group: Any, device: torch.device) -> str:
    """The engine that carries a device's tensors: "nccl", "gloo", or "none"."""
    pairs = (pair.partition(":") for pair in str(dist.get_backend_config(group)).split(","))
    return {name: backend for name, _, backend in pairs}.get(device.type, "none")


def check_engine(grid: Grid, device: torch.device) -> None:
    """Raise ValueError unless NCCL carries a GPU's tensors and gloo a CPU's."""
    needed = {"cuda": "nccl", "cpu": "gloo"}.get(device.type)
    backend = backend_of(grid.group, device)
    if needed is None or backend != needed:
        raise ValueError(
            f"S is on {device}, whose tensors {needed or 'NCCL or gloo'} must carry; "
            f"the group has {backend} for {device.type}"
        )


def connect(grid: Grid, device: torch.device) -> None:
    """Open NCCL's connections, at which all ranks of the group must be present.

    Messages between two ranks of a group come later, when the others may have none.
    """
    if device.type == "cuda" and grid.size > 1 and grid.group not in _CONNECTED:
        if grid.group.bound_device_id is None:
            dist.all_reduce(torch.zeros(1, device=device), group=grid.group)
        _CONNECTED.add(grid.group)


_CONNECTED: weakref.WeakSet[Any] = weakref.WeakSet()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
