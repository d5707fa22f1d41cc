"""Agreement of the ranks on a call, before any of its tensors travel.

Every rank checks its own arguments and sends the others either what they must have in common or its
error. Then all go on, or all raise: none is left waiting for a rank that has given up.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch

from sddmm.distributed.grid import DistributedError, Grid, Pending

_BYTES = 4096
_ERROR = "error"
_FAILED = "a call that failed"
_ERROR_CHARACTERS = 500  # of which JSON makes at most six bytes each

ResultT = TypeVar("ResultT")


@contextlib.contextmanager
def agreement(
    grid: Grid, call: str, check: Callable[[], tuple[ResultT, Mapping[str, object]]]
) -> Iterator[ResultT]:
    """What `check` returns first. Within, a rank computes what it can before others have answered;
    they have where a tensor travels (`Grid.settle`), and at the end. They are told of a failure of
    the body before that. Where it fails later, rows may be on their way that the rank never takes,
    so all later calls raise.

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
        result, facts = check()
    except Exception as error:  # which is raised below, when the other ranks know of it
        failure = error
    if failure is not None:
        grid.all_to_host(_encoded(_of_error(failure)))
        raise failure
    agreed: list[bool] = []  # the verdict of all ranks, once it is known
    begun: list[Callable[[], list[torch.Tensor]]] = []

    def begin() -> None:
        if begun:
            return
        record = {"the call": call, **{name: str(fact) for name, fact in facts.items()}}
        if grid.failures:
            record[_FAILED] = grid.failures[0]
        begun.append(grid.start_to_host(_encoded(record)))

    def end() -> None:
        begin()
        messages = begun[0]()
        agreed.append(False)
        if grid.failures or any(not torch.equal(messages[0], other) for other in messages[1:]):
            _compare(grid, call, [_decoded(message) for message in messages])
        agreed[0] = True

    grid.pending.append(Pending(begin, end))  # the first kernels are launched before
    try:
        yield result
        grid.settle()
    except BaseException as error:
        if not begun:  # none knows of the call yet
            grid.pending.clear()
            grid.all_to_host(_encoded(_of_error(error)))
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
                f"{call}: {other[_FAILED]} failed on rank {grid.ranks[place]} before, when all "
                "ranks had agreed on it; its rows may still be on their way: make a new process "
                "group"
            )
    for place, other in enumerate(records):
        for name in {**records[0], **other}:
            first, here = records[0].get(name), other.get(name)
            if first != here:
                raise ValueError(
                    f"{call}: ranks differ in {name}: rank {grid.ranks[0]} has {first}, "
                    f"rank {grid.ranks[place]} has {here}"
                )


def _encoded(record: Mapping[str, str]) -> torch.Tensor:
    text = json.dumps(record).encode()[:_BYTES].ljust(_BYTES)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _decoded(message: torch.Tensor) -> dict[str, str]:
    decoded: dict[str, str] = json.loads(message.numpy().tobytes().decode())
    return decoded
