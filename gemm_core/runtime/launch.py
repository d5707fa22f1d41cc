"""Loads cubins and launches kernels on torch's current stream."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gemm_core.arithmetic import ceil_div

# The C types of a kernel's parameters; a pointer is an integer of its size.
POINTER, INT, UINT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_longlong
FLOAT, DOUBLE = ctypes.c_float, ctypes.c_double

# The driver's status in a thread that has not used CUDA yet, as torch's own thread for gradients.
_NO_CONTEXT = 201

# Dynamic shared memory that a kernel may use without setting its attribute.
_DEFAULT_SHARED_BYTES = 48 * 1024


class LaunchError(RuntimeError):
    """The driver refused to load or launch a kernel; the message names the kernel."""


class _Layout(NamedTuple):
    """The layout of parameter values in one block of memory.

    fields: type and offset of each value. parameters: the offset of each parameter of the kernel,
    a single one if it takes a struct.
    """

    block: type[ctypes.Structure]
    packer: struct.Struct
    fields: tuple[tuple[Any, int], ...]
    parameters: tuple[int, ...]


@functools.cache
def _layout(types: tuple[Any, ...] | type[ctypes.Structure]) -> _Layout:
    if isinstance(types, type):
        block = types
    else:
        members = [(f"p{i}", kind) for i, kind in enumerate(types)]
        block = type("Values", (ctypes.Structure,), {"_fields_": members})
    fields = tuple((kind, getattr(block, name).offset) for name, kind, *_ in block._fields_)
    # A type without a struct code, such as a tensor map, is packed as bytes.
    codes = (getattr(kind, "_type_", f"{ctypes.sizeof(kind)}s") for kind, _ in fields)
    parameters = (0,) if block is types else tuple(offset for _, offset in fields)
    return _Layout(block, struct.Struct("@" + "".join(codes)), fields, parameters)


def parameter_macros(types: tuple[Any, ...] | type[ctypes.Structure]) -> dict[str, str]:
    """Macros by which gemm_core/parameters.cuh compares the kernel's parameters with these.

    A field of a nested struct of the kernel carries a dotted name here, as in C++: "tiles.count".
    """
    if not isinstance(types, type):
        return {"PARAMETER_SIZES": ", ".join(str(ctypes.sizeof(kind)) for kind in types)}
    offsets = {name: getattr(types, name).offset for name, *_ in types._fields_}
    return {
        "PARAMETER_BYTES": str(ctypes.sizeof(types)),
        "PARAMETER_FIELDS": " ".join(f"GEMM_CORE_FIELD({n}, {at})" for n, at in offsets.items()),
    }


class Parameters(threading.local):
    """The packed parameters of a launch; each thread has its own copy.

    values: all of them. slot_indices: the indices of those that `slots` can change later.
    """

    def __init__(
        self,
        types: tuple[Any, ...] | type[ctypes.Structure],
        values: Sequence[int | float | bytes] = (),
        slot_indices: Sequence[int] = (),
    ) -> None:
        layout = _layout(types)
        self.block = layout.block()
        self.pack = functools.partial(layout.packer.pack_into, self.block, 0)
        if values:
            self.pack(*values)
        fields = (layout.fields[index] for index in slot_indices)
        self.slots = [kind.from_buffer(self.block, offset) for kind, offset in fields]
        begin = ctypes.addressof(self.block)
        addresses = [begin + offset for offset in layout.parameters]
        self.pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.address = ctypes.addressof(self.pointers)


def percent_of_shared_memory(blocks: int, block_bytes: int, sm_bytes: int) -> int:
    """How much of a multiprocessor's shared memory so many blocks need, in whole percent."""
    return min(100, ceil_div(100 * blocks * block_bytes, sm_bytes))


class Kernel:
    """A kernel loaded on one device, ready to launch.

    parameters: the C types of its parameters, or the ctypes.Structure of the one struct that it
    takes. blocks_per_sm: the blocks that a multiprocessor holds at a time. prefers_l1: ask the
    driver to give these blocks no more shared memory than they need, and L1 the rest; it takes that
    as a hint, in steps of its own. A launch passes raw values and does not synchronize; a CUDA
    graph can capture it.
    """

    def __init__(
        self,
        name: str,
        cubin: bytes,
        function: str,
        parameters: tuple[Any, ...] | type[ctypes.Structure],
        threads: int,
        shared_bytes: int,
        device_index: int,
        prefers_l1: bool = False,
    ) -> None:
        from cuda.bindings import driver

        self.name, self.threads, self.shared_bytes = name, threads, shared_bytes
        self.parameters, self._device = parameters, device_index
        self._arguments = Parameters(parameters)
        with torch.cuda.device(device_index):
            torch.cuda.current_stream()  # the primary context exists
            _enter_context(device_index)
            self._module = self._call(driver.cuModuleLoadData(cubin))
            self._function = self._call(driver.cuModuleGetFunction(self._module, function.encode()))
            if shared_bytes > _DEFAULT_SHARED_BYTES:
                attribute = driver.CUfunction_attribute
                largest = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._call(driver.cuFuncSetAttribute(self._function, largest, shared_bytes))
            self.blocks_per_sm: int = self._call(
                driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    self._function, threads, shared_bytes
                )
            )
            if prefers_l1:
                self._leave_memory_to_l1(driver)
        self._launch, self._stream_of = driver.cuLaunchKernel, _raw_stream()

    def _leave_memory_to_l1(self, driver: Any) -> None:
        function_attribute = driver.CUfunction_attribute
        device_attribute = driver.CUdevice_attribute
        static = function_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        reserved = device_attribute.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK
        of_sm = device_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        block_bytes = (
            self.shared_bytes
            + self._call(driver.cuFuncGetAttribute(static, self._function))
            + self._call(driver.cuDeviceGetAttribute(reserved, self._device))
        )
        sm_bytes = self._call(driver.cuDeviceGetAttribute(of_sm, self._device))
        percent = percent_of_shared_memory(self.blocks_per_sm, block_bytes, sm_bytes)
        carveout = function_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self._call(driver.cuFuncSetAttribute(self._function, carveout, percent))

    def __call__(self, blocks: int, *values: int | float | bytes) -> None:
        """Launch `blocks` blocks with these parameter values; 0 blocks launch nothing."""
        arguments = self._arguments
        arguments.pack(*values)
        self.launch(blocks, arguments)

    def launch(self, blocks: int, arguments: Parameters) -> None:
        """Launch `blocks` blocks with packed parameters."""
        if blocks == 0:  # the driver refuses an empty grid
            return
        (status,) = self._launch(
            self._function, blocks, 1, 1, self.threads, 1, 1, self.shared_bytes,
            self._stream_of(self._device), arguments.address, 0,
        )  # fmt: skip
        if status != 0:
            if status != _NO_CONTEXT or not _enter_context(self._device):
                raise LaunchError(f"kernel {self.name}: {status!r} on a launch of {blocks} blocks")
            self.launch(blocks, arguments)

    def _call(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != 0:
            raise LaunchError(f"kernel {self.name}: {status!r} when it was loaded")
        return values[0] if values else None


def _enter_context(device_index: int) -> bool:
    """Make the context that torch uses on this device current, if this thread has none.

    CUDA's runtime does so at a thread's first work. A thread in which torch has only taken memory
    from its cache has done none. False if the thread has a context.
    """
    from cuda.bindings import driver

    status, current = driver.cuCtxGetCurrent()
    if status != 0 or int(current) != 0:
        return False
    status, device = driver.cuDeviceGet(device_index)
    if status == 0:
        status, context = driver.cuDevicePrimaryCtxRetain(device)
    if status == 0:
        (status,) = driver.cuCtxSetCurrent(context)
    if status != 0:
        raise LaunchError(f"device {device_index}: {status!r} when its context was entered")
    return True


@functools.cache
def _raw_stream() -> Callable[[int], int]:
    """torch._C._cuda_getCurrentRawStream if it exists: it takes 0.1 us, the public call 4 us."""
    fast = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if fast is not None:
        return fast  # type: ignore[no-any-return]
    return lambda index: torch.cuda.current_stream(index).cuda_stream


def current_stream(device_index: int) -> int:
    """The handle of torch's current stream on this device."""
    return _raw_stream()(device_index)


def copy_to_host(target: int, source: int, size: int, stream: torch.cuda.Stream) -> None:
    """Begin to copy `size` bytes of a GPU's memory into pinned memory, on a stream of that GPU.

    target, source: addresses. torch's own copy, with the change to another stream, takes the host
    25 us. Raises LaunchError if it failed.
    """
    from cuda.bindings import driver

    (status,) = driver.cuMemcpyDtoHAsync(target, source, size, stream.cuda_stream)
    if status == _NO_CONTEXT and _enter_context(stream.device_index):
        copy_to_host(target, source, size, stream)
    elif status != 0:
        raise LaunchError(f"a copy of {size} bytes to the host: {status!r}")


def wait(device_index: int) -> None:
    """Wait until torch's current stream on this device is idle. Raises LaunchError if it failed."""
    from cuda.bindings import driver

    (status,) = driver.cuStreamSynchronize(current_stream(device_index))
    if status == _NO_CONTEXT and _enter_context(device_index):
        wait(device_index)
    elif status != 0:
        raise LaunchError(f"waiting for a kernel: {status!r}")
