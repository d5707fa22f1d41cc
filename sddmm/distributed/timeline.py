"""The timeline of distributed calls: when a rank computed, and when it waited for others.

Nothing is recorded outside of `record`. Times are the host's on a CPU; on a GPU they are CUDA
events of the current stream, where a wait is the time that the stream itself waits for a transfer.
On a GPU transfers are recorded too: each begins when what it sends is computed and the transfer
before it has ended, and ends when the engine's stream does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch


class Span(NamedTuple):
    """A part of a call. kind: "compute", "wait" or "transfer"; in us since the timeline began."""

    kind: str
    label: str
    begin_us: float
    end_us: float


class Timeline:
    """The spans of the calls within `record`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, str, Any, Any]] = []
        self._begin = self.mark()

    @contextlib.contextmanager
    def span(self, kind: str, label: str) -> Iterator[None]:
        begin = self.mark()
        try:
            yield
        finally:
            self.add(kind, label, begin)

    def add(self, kind: str, label: str, begin: Any) -> None:
        self._marks.append((kind, label, begin, self.mark()))

    def transfer(self, label: str, begin: Any, works: Sequence[Any]) -> None:
        """Record messages that a GPU's engine carries. begin: the mark when they were asked for."""
        # A stream that waits for the messages shows their end, and holds up no other.
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for work in works:
                work.wait()
            self._marks.append(("transfer", label, begin, self.mark()))

    def spans(self) -> list[Span]:
        """What was recorded, in order; waits for the GPU."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        spans, ended = [], 0.0
        for kind, label, begin, end in self._marks:
            span = Span(kind, label, self._since(begin), self._since(end))
            if kind == "transfer":
                span = span._replace(begin_us=max(span.begin_us, ended))
                ended = span.end_us
            spans.append(span)
        return spans

    def mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since(self, mark: Any) -> float:
        if self._device.type != "cuda":
            return float(mark - self._begin) * 1e6
        return float(self._begin.elapsed_time(mark)) * 1e3


_active: list[Timeline] = []


@contextlib.contextmanager
def record(device: torch.device | str) -> Iterator[Timeline]:
    """Record the distributed calls of this process within the context."""
    timeline = Timeline(torch.device(device))
    _active.append(timeline)
    try:
        yield timeline
    finally:
        _active.remove(timeline)


def span(kind: str, label: str) -> contextlib.AbstractContextManager[None]:
    """A span of the innermost timeline, or nothing where none is recorded."""
    return _active[-1].span(kind, label) if _active else contextlib.nullcontext()


def mark() -> Any:
    """The present on the innermost timeline; None where none is recorded."""
    return _active[-1].mark() if _active else None


def record_span(kind: str, label: str, begin: Any) -> None:
    """Record a span that ends now on the innermost timeline, where there is one."""
    if _active:
        _active[-1].add(kind, label, begin)


def record_transfer(label: str, begin: Any, works: Sequence[Any]) -> None:
    """Record messages on the innermost timeline, where there is one."""
    if _active:
        _active[-1].transfer(label, begin, works)
