"""Checks the lane that holds each WMMA accumulator, which CUDA does not specify, on each device."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from gemm_core.fragments import LAYOUTS
from gemm_core.ladder.spec import KERNEL_FOLDER
from gemm_core.runtime.compile import compile_kernel
from gemm_core.runtime.device import device
from gemm_core.runtime.launch import POINTER, Kernel, parameter_macros

SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")
ACCUMULATORS = ("fp32", "fp16")

_SHARED_BYTES = 2048  # two operands of at most 512 halves
PROBE_PARAMETERS = (POINTER,)
PROBE_MACROS = {"GEMM_SHARED_BYTES": str(_SHARED_BYTES), **parameter_macros(PROBE_PARAMETERS)}


class LayoutError(RuntimeError):
    """A device's WMMA accumulators differ from fragments.py, so no WMMA kernel can run on it."""


@functools.cache
def check_wmma_layout(device_index: int) -> None:
    """Compare the device's accumulators with fragments.py, once. Raises LayoutError."""
    refuse_other_layouts(probe(device_index), device(device_index).name)


def probe(device_index: int) -> NDArray[np.float32]:
    """32 row + column of each accumulator element: (shapes, accumulators, lanes, elements)."""
    source = KERNEL_FOLDER / "wmma_probe.cu"
    cubin = compile_kernel(source, PROBE_MACROS, device(device_index).arch)
    kernel = Kernel("probe", cubin.code, "probe", PROBE_PARAMETERS, 32, _SHARED_BYTES, device_index)
    out = torch.empty(
        len(SHAPES), len(ACCUMULATORS), 32, 8, dtype=torch.float32, device=f"cuda:{device_index}"
    )
    with torch.cuda.device(device_index):
        kernel(1, out.data_ptr())
    return out.cpu().numpy()


def refuse_other_layouts(probed: NDArray[np.float32], name: str) -> None:
    """Raise LayoutError if the result of `probe` differs from fragments.py."""
    lanes, elements = np.arange(32)[:, None], np.arange(8)[None, :]
    for shape, by_accumulator in zip(SHAPES, probed, strict=True):
        row, column = LAYOUTS[shape].position(lanes, elements)
        for accumulator, got in zip(ACCUMULATORS, by_accumulator, strict=True):
            wrong = np.argwhere(got != 32 * row + column)
            if len(wrong):
                lane, element = wrong[0]
                held = divmod(int(got[lane, element]), 32)
                raise LayoutError(
                    f"{name} keeps wmma {shape} accumulators ({accumulator}) otherwise than "
                    f"gemm_core.fragments says: element {element} of lane {lane} is {held}, not "
                    f"{(int(row[lane, element]), int(column[lane, element]))}; {len(wrong)} differ"
                )
