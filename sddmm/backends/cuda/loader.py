"""Loading kernels: from a spec and its macros to a kernel that can be launched.

`runtime` is everything that the backend asks of CUDA, and the one seam of the backend:
sddmm.testing.emulated_gpu replaces it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gemm_core.runtime.compile import INCLUDE_FOLDER, compile_kernel, missing_compiler
from gemm_core.runtime.device import Device, current_device
from gemm_core.runtime.device import device as device_of
from gemm_core.runtime.launch import Kernel, current_stream, parameter_macros, wait
from gemm_core.runtime.tensor_map import tensor_map

if TYPE_CHECKING:
    from sddmm.backends.cuda.spec import KernelSpec, Macros

INCLUDE = (INCLUDE_FOLDER, Path(__file__).parent / "include")


@functools.cache
def _unavailable() -> str | None:
    return missing_compiler() if torch.cuda.is_available() else "torch sees no CUDA device"


@functools.cache
def _load_kernel(spec: KernelSpec, macros: Macros, parameters: Any, device_index: int) -> Kernel:
    all_macros = compile_macros(spec, macros, parameters)
    code = compile_kernel(spec.path, all_macros, device_of(device_index).arch, INCLUDE).code
    return Kernel(
        spec.name, code, "sddmm_kernel", parameters, spec.threads, spec.shared_bytes, device_index,
        spec.prefers_l1,
    )  # fmt: skip


def compile_macros(
    spec: KernelSpec, macros: Macros, parameters: type[ctypes.Structure]
) -> dict[str, str]:
    """All macros of a kernel's source: `macros`, the size of its launch, the layout of its struct.

    The kernel compares the layout with its own (gemm_core/parameters.cuh).
    """
    launch = {"SDDMM_THREADS": str(spec.threads), "SDDMM_SHARED_BYTES": str(spec.shared_bytes)}
    return {**dict(macros), **launch, **parameter_macros(parameters)}


class CudaRuntime:
    """Everything that the backend asks of CUDA.

    All callers look it up as `loader.runtime`, which sddmm.testing.emulated_gpu replaces.
    """

    def unavailable(self) -> str | None:
        """None, or the reason why no kernel can be compiled or launched in this environment."""
        return _unavailable()

    def refuses(self, device: torch.device) -> str | None:
        """None, or why kernels cannot read tensors of this torch device."""
        return None if device.type == "cuda" else f"the pattern is on {device}"

    # The index of torch's current device.
    current_device: Callable[[], int] = staticmethod(current_device)

    def index_of(self, device: torch.device) -> int:
        """The number of a GPU; of the current one for a device without a number."""
        return self.current_device() if device.index is None else device.index

    def can_measure(self) -> bool:
        """Whether kernels can be timed now."""
        return torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()

    # The GPU with this index.
    device: Callable[[int], Device] = staticmethod(device_of)

    # Block until torch's current stream on the device with this index is done. LaunchError if one
    # of its kernels failed.
    wait: Callable[[int], None] = staticmethod(wait)

    # Block until all streams of the device with this index are done.
    synchronize: Callable[[int], None] = staticmethod(torch.cuda.synchronize)

    # The handle of torch's current stream on the device with this index.
    current_stream: Callable[[int], int] = staticmethod(current_stream)

    # Compile a kernel with these macros and load it; once per device. This is the only place where
    # a source becomes a kernel.
    load_kernel: Callable[[KernelSpec, Macros, Any, int], Kernel] = staticmethod(_load_kernel)

    # The bytes by which TMA knows a tensor, for boxes of this size.
    tensor_map: Callable[[Tensor, int, int], bytes] = staticmethod(tensor_map)


runtime = CudaRuntime()
