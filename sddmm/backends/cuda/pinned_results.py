"""The words in which kernels report to the host."""

from __future__ import annotations

import ctypes
import functools
import threading
from array import array

import torch

from sddmm.backends.cuda import loader

_PENDING = -1  # the first words until a kernel has written them all
_NO_STREAM = -1
_MAX_POLLS = 2000  # before the host waits for the driver; some 0.1 ms


class PinnedResults:
    """The words in which kernels report to one thread: pinned memory that the host polls.

    A copy from the device would cost more than the analysis of a small pattern, and so would the
    driver's wait. The thread waits for one report before it asks for another. `state` is memory of
    the device, zero at first, that the blocks of one launch share, and `next_state` that of the
    next. A kernel behind may read it too (`read_by_next_launch`). polled: the number of words, one
    or two, the first, that a kernel writes last.
    """

    def __init__(self, device: torch.device, words: int, state_words: int, polled: int = 1) -> None:
        self._states = torch.zeros(2, state_words, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._results = torch.zeros(words, dtype=torch.int64, device="cpu", pin_memory=pinned)
        self.address = self._results.data_ptr()
        array_type = ctypes.c_int64 * words
        self.words = memoryview(array_type.from_address(self.address)).cast("B").cast("q")
        self._initial = array("q", [_PENDING] * polled + [0] * (words - polled))
        self._last_polled = polled - 1
        self.state: int = self._states[0].data_ptr()
        self.next_state: int = self._states[1].data_ptr()
        self._is_awaited = False
        self._reader = _NO_STREAM

    def reset(self) -> None:
        """Mark the results as pending."""
        if self._is_awaited:
            self._forget_last()
        if self._reader != _NO_STREAM:
            self._wait_for_reader()
        self._is_awaited = True
        self.words[:] = self._initial

    def _forget_last(self) -> None:
        """Wait for a launch whose report nobody took, as Ctrl-C ended the wait: it must not be
        taken for that of the next launch, nor its counts be added to."""
        loader.runtime.synchronize(self._device_index())
        self._states.zero_()

    def read_by_next_launch(self) -> None:
        """Note that the next kernel on torch's current stream reads the last launch's state."""
        self._reader = loader.runtime.current_stream(self._device_index())

    def _wait_for_reader(self) -> None:
        """Launches on another stream would write what it reads."""
        index = self._device_index()
        if self._reader != loader.runtime.current_stream(index):
            loader.runtime.synchronize(index)  # its stream may be no more
        self._reader = _NO_STREAM

    def _device_index(self) -> int:
        return loader.runtime.index_of(self._states.device)

    def swap_state(self) -> None:
        """Exchange the states after a launch that has set `next_state` to zero."""
        self.state, self.next_state = self.next_state, self.state

    def wait(self, device_index: int) -> list[int]:
        """The words that the last launch reported."""
        words, last = self.words, self._last_polled
        for _ in range(_MAX_POLLS):
            if words[0] != _PENDING and words[last] != _PENDING:
                break
        else:  # a long launch; or one that failed, which this raises
            loader.runtime.wait(device_index)
        self._is_awaited = False
        return words.tolist()


class ThreadResults(threading.local):
    """The results of each thread."""

    def __init__(self, device: torch.device, words: int, state_words: int, polled: int = 1) -> None:
        self.own = PinnedResults(device, words, state_words, polled)


@functools.cache
def validity_result(device: torch.device) -> ThreadResults:
    """The word in which a kernel that checks a pattern, and counts nothing, reports whether it is
    invalid."""
    return ThreadResults(device, words=1, state_words=1)
