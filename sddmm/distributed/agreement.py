"""Agreement of the ranks on a call, before any of them reads another one's tensors.

Every rank checks its own arguments and sends the others either what they must have in common or its
error. Then all go on, or all raise: none is left waiting for a rank that has given up.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch

from sddmm.distributed.grid import Ahead, DistributedError, Grid, Pending

_BYTES = 4096
_ERROR = "error"
_FAILED = "a call that failed"
_ERROR_CHARACTERS = 500  # of which JSON makes at most six bytes each
_AHEAD_BYTES = 2048

ResultT = TypeVar("ResultT")


@contextlib.contextmanager
def agreement(
    grid: Grid, call: str, check: Callable[[], tuple[ResultT, Mapping[str, object]]]
) -> Iterator[ResultT]:
    """Gives what `check` returns first, before the other ranks have answered.

    `Grid.settle` waits for their answers; it is called before rows of others are read, and at the
    end. The first rows may be written into other ranks' memory before (`lanes.py`). If the body
    fails before this rank has told the others of the call, it tells them the error, and all raise.
    If it fails later, rows may be on their way that nobody takes, so all later calls raise.

    check: returns a result, and by name the facts that all ranks must have in common. This rank's
    own error is raised as it is, at once; DistributedError names a rank whose check raised or that
    does not answer, ValueError the facts that differ.
    """
    if grid.size == 1:
        yield check()[0]
        return
    failure: Exception | None = None
    result: ResultT
    try:
        panels = grid.lanes.get("panels")
        if panels is not None and not grid.pending:
            # The first rows may be written before the ranks agree, if all receivers have ended the
            # last call; what shows it is copied to the host while check() runs.
            panels.start_reading_signals()
        result, facts = check()
    except Exception as error:  # which is raised below, when the other ranks know of it
        failure = error
    if failure is not None:
        _discard(grid, grid.all_to_host(_encoded(_of_error(failure), [])), [])
        raise failure
    agreed: list[bool] = []  # the verdict of all ranks, once it is known

    def end() -> None:
        record = {"the call": call, **{name: str(fact) for name, fact in facts.items()}}
        if grid.failures:
            record[_FAILED] = grid.failures[0]
        own = _encoded(record, pending.ahead)
        pending.is_told = True
        messages = grid.exchange_on_host(own)
        agreed.append(False)
        try:
            if grid.failures or len({_record(message) for message in messages}) > 1:
                _compare(grid, call, [_decoded(message) for message in messages])
        except BaseException:
            _discard(grid, messages, pending.ahead)
            raise
        agreed[0] = True

    pending = Pending(end)
    grid.pending.append(pending)  # the first kernels are launched before
    try:
        yield result
        grid.settle()
        for lane in grid.lanes.values():
            lane.rest()
    except BaseException as error:
        if not pending.is_told:
            grid.pending.clear()
            messages = grid.all_to_host(_encoded(_of_error(error), pending.ahead))
            _discard(grid, messages, pending.ahead)
            raise
        try:
            grid.settle()
        finally:
            if agreed != [False]:
                grid.failures.append(call)
        raise


def agree(
    grid: Grid, call: str, check: Callable[[], tuple[ResultT, Mapping[str, object]]]
) -> ResultT:
    """`agreement`, with nothing to compute before its end."""
    with agreement(grid, call, check) as result:
        pass
    return result


def _of_error(error: BaseException) -> dict[str, str]:
    text = (str(error).splitlines() or [""])[0]
    return {_ERROR: f"{type(error).__name__}: {text}"[:_ERROR_CHARACTERS]}


def _compare(grid: Grid, call: str, records: list[dict[str, str]]) -> None:
    for place, other in enumerate(records):
        if _ERROR in other:
            raise DistributedError(f"{call}: rank {grid.ranks[place]} raised {other[_ERROR]}")
        if _FAILED in other:
            raise DistributedError(
                f"{call}: {other[_FAILED]} failed on rank {grid.ranks[place]} before; its rows may "
                "still be on their way: make a new process group"
            )
    for place, other in enumerate(records):
        for name in {**records[0], **other}:
            first, here = records[0].get(name), other.get(name)
            if first != here:
                raise ValueError(
                    f"{call}: ranks differ in {name}: rank {grid.ranks[0]} has {first}, "
                    f"rank {grid.ranks[place]} has {here}"
                )


def _discard(grid: Grid, messages: list[torch.Tensor], own: list[Ahead]) -> None:
    """Discard what ranks have written for a call on which all did not agree."""
    here = grid.ranks[grid.place]
    for place, message in enumerate(messages):
        for ahead in _decoded_ahead(message) if place != grid.place else []:
            if here in ahead.ranks:
                grid.lanes[ahead.lane].discard(place, ahead.room)
    for ahead in own:
        grid.lanes[ahead.lane].give_up(ahead.room)


def _encoded(record: Mapping[str, str], ahead: list[Ahead]) -> torch.Tensor:
    text = json.dumps(record).encode()[:_BYTES].ljust(_BYTES)
    rooms = json.dumps([[x.lane, x.room, x.ranks] for x in ahead]).encode().ljust(_AHEAD_BYTES)
    assert len(rooms) == _AHEAD_BYTES, "rooms are those of the GPUs of one host"
    return torch.frombuffer(bytearray(text + rooms), dtype=torch.uint8)


def _record(message: torch.Tensor) -> bytes:
    return message.numpy()[:_BYTES].tobytes()


def _decoded(message: torch.Tensor) -> dict[str, str]:
    decoded: dict[str, str] = json.loads(_record(message).decode())
    return decoded


def _decoded_ahead(message: torch.Tensor) -> list[Ahead]:
    return [Ahead(*x) for x in json.loads(message[_BYTES:].numpy().tobytes().decode())]
