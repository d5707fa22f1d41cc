"""Loading cubins and launching kernels on torch's current stream."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

# The C types of a kernel's parameters; a pointer is an integer of its size.
POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
FLOAT, DOUBLE = ctypes.c_float, ctypes.c_double

# What the driver gives a kernel without being asked for more.
_DEFAULT_SHARED_BYTES = 48 * 1024


class LaunchError(RuntimeError):
    """The driver refused to load or launch a kernel; the message names the kernel."""


class Parameters(threading.local):
    """A thread's own copy of the parameters of a launch: made once, as making them costs 2 us.

    values: what they are to begin with.
    """

    def __init__(
        self, types: Sequence[Any] | type[ctypes.Structure], values: Sequence[Any] = ()
    ) -> None:
        self.values: list[Any]
        if isinstance(types, type):
            block = types()
            self.values = [
                kind.from_buffer(block, getattr(types, name).offset)
                for name, kind, *_ in types._fields_
            ]
            addresses = [ctypes.addressof(block)]
        else:
            self.values = [kind() for kind in types]
            addresses = [ctypes.addressof(value) for value in self.values]
        for slot, value in zip(self.values, values, strict=False):
            slot.value = value
        self.pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.address = ctypes.addressof(self.pointers)


class Kernel:
    """A kernel loaded on one device, ready to launch.

    parameters: the C types of its parameters, or of the fields of the one struct that it takes, as
    a ctypes.Structure. A launch passes raw values and does not wait; it can be captured in a CUDA
    graph.
    """

    def __init__(
        self,
        name: str,
        cubin: bytes,
        function: str,
        parameters: Sequence[Any] | type[ctypes.Structure],
        threads: int,
        shared_bytes: int,
        device_index: int,
    ) -> None:
        from cuda.bindings import driver

        self.name, self.threads, self.shared_bytes = name, threads, shared_bytes
        self.parameters, self._device = parameters, device_index
        self._arguments = Parameters(parameters)
        with torch.cuda.device(device_index):
            torch.cuda.current_stream()  # the primary context exists and is current
            self._module = self._call(driver.cuModuleLoadData(cubin))
            self._function = self._call(driver.cuModuleGetFunction(self._module, function.encode()))
            if shared_bytes > _DEFAULT_SHARED_BYTES:
                attribute = driver.CUfunction_attribute
                largest = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._call(driver.cuFuncSetAttribute(self._function, largest, shared_bytes))
        self._launch = driver.cuLaunchKernel

    def __call__(self, blocks: int, *values: int | float | bytes) -> None:
        """Launch `blocks` blocks with these parameter values; none at all for no blocks."""
        arguments = self._arguments
        for slot, value in zip(arguments.values, values, strict=True):
            slot.value = value
        self.launch(blocks, arguments)

    def launch(self, blocks: int, arguments: Parameters) -> None:
        """Launch `blocks` blocks with parameters whose values are set."""
        if blocks == 0:  # the driver takes an empty grid for an error
            return
        (status,) = self._launch(
            self._function, blocks, 1, 1, self.threads, 1, 1, self.shared_bytes,
            current_stream(self._device), arguments.address, 0,
        )  # fmt: skip
        if status != 0:
            raise LaunchError(f"kernel {self.name}: {status!r} on a launch of {blocks} blocks")

    def _call(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != 0:
            raise LaunchError(f"kernel {self.name}: {status!r} when it was loaded")
        return values[0] if values else None


@functools.cache
def _raw_stream() -> Callable[[int], int]:
    """torch._C._cuda_getCurrentRawStream takes 0.1 us where the public way takes 4; it may go."""
    fast = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if fast is not None:
        return fast  # type: ignore[no-any-return]
    return lambda index: torch.cuda.current_stream(index).cuda_stream


def current_stream(device_index: int) -> int:
    """Handle of torch's current stream on this device."""
    return _raw_stream()(device_index)


def wait(device_index: int) -> None:
    """Until torch's current stream on this device has done its work. LaunchError if it failed."""
    from cuda.bindings import driver

    (status,) = driver.cuStreamSynchronize(current_stream(device_index))
    if status != 0:
        raise LaunchError(f"waiting for a kernel: {status!r}")
