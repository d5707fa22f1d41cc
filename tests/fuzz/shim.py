"""The GPU kernels' sources under random cases without a GPU, by gemm_core.emulation.

Each variant of a kernel is compiled by g++ when it is first met, in seconds, and kept on disk.
"""

from __future__ import annotations

import pytest
import torch

from gemm_core.emulation.kernel import missing_compiler
from sddmm.backends.cuda import backend as cuda
from sddmm.backends.cuda import loader
from sddmm.problem import Problem
from tests.conftest import H200
from tests.sddmm import cpu_kernels


def install() -> None:
    """From now on CPU tensors go to the GPU backend, whose kernels run on the CPU."""
    if missing_compiler() is not None:
        raise SystemExit("--device shim needs g++")
    patch = pytest.MonkeyPatch()
    cpu_kernels.use(patch)

    def refuses(self: cuda.CudaBackend, problem: Problem) -> str | None:
        return cuda._refusal(problem, H200)

    patch.setattr(loader, "unavailable", lambda: None)
    patch.setattr(cuda, "_index", lambda problem: H200.index)
    patch.setattr(cuda, "device_of", lambda index: H200)
    patch.setattr(cuda.CudaBackend, "refuses", refuses)
    patch.setattr(torch.cuda, "current_device", lambda: H200.index)
