"""A stream of a GPU beside the current one, for what is packed and sent while kernels run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

ResultT = TypeVar("ResultT")


def behind_now(device: torch.device, start: Callable[[], ResultT]) -> Callable[[], ResultT]:
    """A function that calls `start` on a stream beside the current one, behind what that one holds
    now, however much has been launched since.

    What start() writes must be allocated before. Freed memory of the stream beside could be written
    again while it is sent, if the next call comes on another stream. On a CPU start() is called at
    once: what runs there meanwhile is what overlaps.
    """
    if device.type != "cuda":
        begun = start()
        return lambda: begun
    now = current_stream(device).record_event()

    def begin() -> ResultT:
        side = _stream(index_of(device))
        side.wait_event(now)
        with on(side):
            return start()

    return begin


def current_stream(device: torch.device) -> torch.cuda.Stream:
    # By number, as torch takes ten times as long to find out which GPU a device is.
    return torch.cuda.current_stream(index_of(device))


@contextlib.contextmanager
def on(stream: torch.cuda.Stream) -> Iterator[None]:
    """`torch.cuda.stream`, in less time where the stream is one of the current device."""
    index = stream.device_index
    if torch.cuda.current_device() != index:
        with torch.cuda.stream(stream):
            yield
        return
    before = torch.cuda.current_stream(index)
    torch.cuda.set_stream(stream)
    try:
        yield
    finally:
        torch.cuda.set_stream(before)


def record_event(device: torch.device) -> torch.cuda.Event | None:
    """An event recorded on the current stream; None on a CPU."""
    if device.type != "cuda":
        return None
    event: torch.cuda.Event = current_stream(device).record_event()
    return event


def wait_for(event: torch.cuda.Event, device: torch.device) -> None:
    """Make a device's current stream wait; the device need not be the current one."""
    current_stream(device).wait_event(event)


@contextlib.contextmanager
def beside(device: torch.device) -> Iterator[Callable[[], None]]:
    """Launch what follows on a stream beside the current one, behind what that one holds now.

    Gives a function that makes the current stream wait for what was launched within; it must be
    called before the memory in use is freed, which must be allocated before, as in `behind_now`. On
    a CPU nothing runs beside the caller.
    """
    if device.type != "cuda":
        yield lambda: None
        return
    packed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    side = _stream(index_of(device))
    side.wait_event(current_stream(device).record_event())
    with on(side):
        yield lambda: wait_for(packed, device)
        packed.record(side)


def index_of(device: torch.device) -> int:
    """The number of a GPU."""
    return torch.cuda.current_device() if device.index is None else device.index


@functools.cache
def _stream(index: int) -> torch.cuda.Stream:
    """Before other streams, whose kernels would else fill the GPU first."""
    return torch.cuda.Stream(index, priority=-1)  # type: ignore[no-untyped-call]
