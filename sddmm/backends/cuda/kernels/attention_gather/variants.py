"""The two launches of a kernel that gathers rows for attention: nonzeros, then pieces of rows."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.attention_gather.groups import THREADS
from sddmm.backends.cuda.spec import KernelSpec, macros

# The blocks that share a multiprocessor at least where pieces are merged: several of them are in
# registers at a time, and few blocks run.
_MERGING_BLOCKS = 2


class Variant(NamedTuple):
    """One specialisation of both launches. merge: None if the pattern has no cut rows."""

    kernel: Kernel
    merge: Kernel | None


def load_variant(
    runtime: loader.CudaRuntime,
    spec: KernelSpec,
    parameters: type[ctypes.Structure],
    defines: Mapping[str, str | int | bool],
    piece_floats: int,
    bias_or_dropout: bool,
    merges: bool,
    device: Device,
) -> Variant:
    """Compile and load both. piece_floats: those that a lane holds of a piece of a row."""
    spec = _with_memory(spec, (2 * piece_floats + 1) * THREADS * 4)
    min_blocks = int(defines["MIN_BLOCKS"])

    def load(merges: bool) -> Kernel:
        own: dict[str, int | bool] = {"MERGES": merges, "BIAS_OR_DROPOUT": bias_or_dropout}
        if merges:  # it reads no nonzeros
            own |= {"BIAS_OR_DROPOUT": False, "MIN_BLOCKS": min(_MERGING_BLOCKS, min_blocks)}
        return runtime.load_kernel(spec, macros({**defines, **own}), parameters, device.index)

    return Variant(load(False), load(True) if merges else None)


@functools.lru_cache(maxsize=64)
def _with_memory(spec: KernelSpec, shared_bytes: int) -> KernelSpec:
    return replace(spec, shared_bytes=shared_bytes)
