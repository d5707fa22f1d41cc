"""The kernels of sparse attention compile without spills for the architectures we name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.attention_gather.host import ATTENTION_GATHER, specialise
from sddmm.backends.cuda.kernels.attention_gradient import host as gradient
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache

__all__ = ["compiler", "own_cache"]

BLACKWELL = replace(DEVICES["sm_90a"], capability=(10, 0))
# d, dv, the bytes at whose multiples rows start, and the dtype.
SIZES = {
    "sm_80": (64, 64, 16, torch.bfloat16),
    "sm_89": (13, 20, 2, torch.float16),
    "sm_90a": (64, 64, 16, torch.float16),
    "sm_100": (256, 256, 16, torch.float32),
}


@pytest.mark.parametrize("arch", SIZES)
def test_it_compiles_without_spilling(arch: str, compiler: Callable[[Device], Compiler]) -> None:
    """One size for each architecture; the tests on a GPU compile all of them for it."""
    device = DEVICES.get(arch, BLACKWELL)
    made = compiler(device)
    *sizes, step, dtype = SIZES[arch]
    size = (*sizes, dtype)
    compile_sizes(size, step, device, merges=arch == "sm_90a")
    assert set(made.cubins) == {"attention_gather", "attention_gradient", "attention_delta"}
    for cubins in made.cubins.values():
        for cubin in cubins:
            assert cubin.resources.spill_bytes == 0


def compile_sizes(
    size: tuple[int, int, torch.dtype], step: int, device: Device, merges: bool
) -> None:
    specialise(loader.runtime, ATTENTION_GATHER, size, step, step, merges, device)
    for by_columns in (False, True):
        gradient.specialise(
            loader.runtime, ATTENTION_GATHER.gradient_tuning, size, step, step, by_columns, merges,
            device,
        )  # fmt: skip
    gradient.load_delta(loader.runtime, size[1], size[2], step, device)
