"""Families of GPU kernels: what each prepares of a pattern, and how it is launched.

A module of this folder has a `prepare` that makes a Launch of a spec and its work arrays.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.compile import INCLUDE_FOLDER, compile_kernel, missing
from gemm_core.runtime.device import Device
from gemm_core.runtime.device import device as device_of
from gemm_core.runtime.launch import Kernel, Parameters, parameter_macros, wait
from gemm_core.runtime.tensor_map import tensor_map
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.dtypes import DTYPES
from sddmm.problem import Problem

INCLUDE = (INCLUDE_FOLDER, Path(__file__).parent / "include")

Bound = Callable[[int, int, float], None]
"""bound(values, out, alpha): launch on bound operands; addresses, values 0 for none."""

OPEN = ("values", "out", "alpha")


Macros = tuple[tuple[str, str], ...]
"""The macros of one specialisation of a kernel, as C++ spells them."""


class Launch(NamedTuple):
    """A kernel with its work arrays.

    fits(x): whether it can read the rows of x as they lie. lay_out(x): a copy that it can read.
    bind(a, b_t): everything that follows from where two such operands lie.
    """

    bind: Callable[[Tensor, Tensor], Bound]
    fits: Callable[[Tensor], bool]
    lay_out: Callable[[Tensor], Tensor] = Tensor.contiguous


def bound(
    kernel: Kernel, blocks: int, parameters: Mapping[str, Any], still_open: tuple[str, ...] = OPEN
) -> Callable[..., None]:
    """The launch of a kernel with these parameters, to be called with those still open."""
    places = _places(kernel.parameters)
    assert parameters.keys() <= places.keys(), f"{kernel.name} has no {parameters.keys() - places}"
    arguments = Parameters(
        kernel.parameters,
        [parameters.get(name, 0) for name in places],
        [places[name] for name in still_open],
    )

    def launch(*values: float) -> None:
        for slot, value in zip(arguments.slots, values, strict=True):
            slot.value = value
        kernel.launch(blocks, arguments)

    return launch


@functools.cache
def _places(parameters: type[ctypes.Structure]) -> dict[str, int]:
    """The place of each parameter of a struct."""
    return {name: place for place, (name, *_) in enumerate(parameters._fields_)}


def rows_are_contiguous(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] <= 1


class CudaRuntime:
    """Everything that the backend asks of CUDA.

    All callers look it up as `loader.runtime`, which sddmm.testing.emulated_gpu replaces.
    """

    def unavailable(self) -> str | None:
        """None, or the reason why no kernel can be compiled or launched in this environment."""
        return _unavailable()

    def refuses(self, place: torch.device) -> str | None:
        """None, or why kernels cannot read tensors of this torch device."""
        return None if place.type == "cuda" else f"the pattern is on {place}"

    def device(self, place: torch.device) -> Device:
        """The GPU whose kernels read tensors of this torch device."""
        return device_of(self.current_device() if place.index is None else place.index)

    # The index of torch's current device. Every call asks, so no frame of ours is in between.
    current_device = staticmethod(torch.cuda.current_device)

    def can_measure(self) -> bool:
        """Whether kernels can be timed now."""
        return torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()

    def wait(self, device_index: int) -> None:
        """Block until torch's current stream is done. LaunchError if one of its kernels failed."""
        wait(device_index)

    def load_kernel(
        self, spec: KernelSpec, macros: Macros, parameters: Any, device_index: int
    ) -> Kernel:
        """Compile a kernel with these macros and load it; once per device.

        This is the only place where a source becomes a kernel.
        """
        return _load_kernel(spec, macros, parameters, device_index)

    def tensor_map(self, x: Tensor, box_rows: int, box_columns: int) -> bytes:
        """The bytes by which TMA knows x, for boxes of this size."""
        return tensor_map(x, box_rows, box_columns)


runtime = CudaRuntime()


@functools.cache
def _unavailable() -> str | None:
    return missing() if torch.cuda.is_available() else "torch sees no CUDA device"


@functools.cache
def _load_kernel(spec: KernelSpec, macros: Macros, parameters: Any, device_index: int) -> Kernel:
    all_macros = compile_macros(spec, macros, parameters)
    code = compile_kernel(spec.path, all_macros, device_of(device_index).arch, INCLUDE).code
    return Kernel(
        spec.name, code, "sddmm_kernel", parameters, spec.threads, spec.shared_bytes, device_index
    )


def compile_macros(
    spec: KernelSpec, macros: tuple[tuple[str, str], ...], parameters: type[ctypes.Structure]
) -> dict[str, str]:
    """All macros of a kernel's source: `macros`, the size of its launch, the layout of its struct.

    The kernel compares the layout with its own (gemm_core/parameters.cuh).
    """
    launch = {"SDDMM_THREADS": str(spec.threads), "SDDMM_SHARED_BYTES": str(spec.shared_bytes)}
    return {**dict(macros), **launch, **parameter_macros(parameters)}


def types(problem: Problem) -> dict[str, str]:
    """The macros of what every kernel reads and writes."""
    return {
        "ELEMENT": DTYPES[problem.dtype].cpp_name,
        "OUTPUT": DTYPES[problem.out_dtype].cpp_name,
    }


def pitch_of(x: Tensor) -> int:
    """Elements from row to row."""
    return x.stride(-2)


def head_stride(x: Tensor) -> int:
    """Elements from head to head."""
    return x.stride(0) if x.dim() == 3 else 0


def placed(a: Tensor, b_t: Tensor) -> dict[str, int]:
    """The parameters that say where the operands lie, by name."""
    return {
        "a": a.data_ptr(),
        "b": b_t.data_ptr(),
        "pitch_a": pitch_of(a),
        "pitch_b": pitch_of(b_t),
        "head_a": head_stride(a),
        "head_b": head_stride(b_t),
    }


def alignment(a: Tensor, b: Tensor, extra: int = 0) -> int:
    """The largest power of two, up to 16, of which every row of a and of b starts at a multiple.

    extra: bytes that must be such a multiple too.
    """
    size = a.element_size()
    strides = pitch_of(a) | pitch_of(b) | head_stride(a) | head_stride(b)
    bits = a.data_ptr() | b.data_ptr() | strides * size | extra | 16
    return bits & -bits


def address(x: Tensor | None) -> int:
    """Of the first element; 0 for None."""
    return 0 if x is None else x.data_ptr()
