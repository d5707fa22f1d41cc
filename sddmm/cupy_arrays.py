"""CuPy arrays as torch tensors and back, each on its library's current stream.

DLPack makes the library that takes an array wait, on its current stream, for the current stream of
the library that gives it. What it leaves open is the memory's reuse: it must not be allocated anew,
or written to, by one library while the other still reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_DL_CUDA = 2  # DLPack's number of the device type


def is_cupy(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "cupy" and hasattr(x, "__dlpack__")


def from_cupy(array: Any, name: str) -> Tensor:
    """The tensor over an array's memory; a copy's if its strides are none that torch takes.

    torch's current stream waits for CuPy's. After work that reads the tensor `make_cupy_wait` or
    `to_cupy` must be called.
    """
    if array.size == 0:  # its address is 0, of which CUDA knows no device
        empty = torch.from_numpy(np.empty(array.shape, array.dtype))
        return empty.to(torch.device("cuda", array.device.id))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    kind, index = array.__dlpack_device__()
    try:
        with torch.cuda.device(index if kind == _DL_CUDA else -1):
            return torch.utils.dlpack.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"{name} is a cupy array of {array.dtype} that torch cannot share: {error}"
        ) from None


def to_cupy(values: Tensor) -> Any:
    """The array of a tensor, for CuPy's current stream, which waits for torch's.

    It shares the tensor's memory where both streams are the same, and is a copy elsewhere: torch
    reuses memory in the order of its own stream, before CuPy's work on another one is done.
    (Tensor.record_stream would delay that, but aborts the process if CuPy's stream goes first.)
    """
    import cupy

    if values.dtype == torch.bfloat16:
        raise TypeError("cupy has no bfloat16; pass out_dtype=torch.float32")
    values = values.detach()
    if not values.is_cuda:
        return cupy.from_dlpack(values)
    with torch.cuda.device(values.device):
        shared = cupy.from_dlpack(values)
        stream = _other_stream_of_cupy()
        if stream is None:
            return shared
        copy = shared.copy()
        torch.cuda.current_stream().wait_stream(stream)
        return copy


def to_tensor(values: Tensor) -> Tensor:
    """The result of a call with CuPy arrays and others: a tensor, whose work CuPy waits for."""
    make_cupy_wait(values.device)
    return values


def make_cupy_wait(device: torch.device) -> None:
    """Make CuPy's current stream wait for the work on torch's, which reads CuPy's memory."""
    if device.type != "cuda":
        return
    with torch.cuda.device(device):
        stream = _other_stream_of_cupy()
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())


def _other_stream_of_cupy() -> torch.cuda.Stream | None:
    """CuPy's current stream on the current device; None if it is torch's current stream."""
    import cupy

    pointer: int = cupy.cuda.get_current_stream().ptr
    if pointer == torch.cuda.current_stream().cuda_stream:
        return None
    # torch takes the address 0, CUDA's default stream, for no address.
    if pointer == 0:
        return torch.cuda.default_stream()
    return torch.cuda.ExternalStream(pointer)  # type: ignore[no-untyped-call]
