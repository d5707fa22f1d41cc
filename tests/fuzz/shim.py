"""The GPU kernels' sources under random cases without a GPU."""

from __future__ import annotations

import contextlib

from sddmm.testing import emulated_gpu

_emulation = contextlib.ExitStack()


def install() -> None:
    """From now on CPU tensors go to the GPU backend, whose kernels run on the CPU."""
    _emulation.enter_context(emulated_gpu())
