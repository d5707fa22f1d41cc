"""The GPU kernels' sources under random cases without a GPU, by the shim of tests/sddmm.

Each variant of a kernel is compiled by g++ when it is first met, in seconds, and kept in a folder
of the machine's temporary files by the content of the sources.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest
import torch

from gemm_core.runtime.compile import INCLUDE_FOLDER
from sddmm.backends.cuda import backend as cuda
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.spec import KERNEL_FOLDER
from sddmm.problem import Problem
from tests.conftest import H200
from tests.sddmm import cpu_kernels


def install() -> None:
    """From now on CPU tensors go to the GPU backend, whose kernels run on the CPU."""
    if cpu_kernels.COMPILER is None:
        raise SystemExit("--device shim needs g++")
    patch = pytest.MonkeyPatch()
    cpu_kernels.use(patch, _folder())

    def refuses(self: cuda.CudaBackend, problem: Problem) -> str | None:
        return cuda._refusal(problem, H200)

    patch.setattr(cuda, "_missing", lambda: None)
    patch.setattr(cuda, "_index", lambda problem: H200.index)
    patch.setattr(cuda, "device_of", lambda index: H200)
    patch.setattr(cuda.CudaBackend, "refuses", refuses)
    patch.setattr(torch.cuda, "current_device", lambda: H200.index)


def _folder() -> Path:
    digest = hashlib.sha1()
    for root in (*loader.INCLUDE, KERNEL_FOLDER, INCLUDE_FOLDER, *cpu_kernels.SHIMS):
        for path in sorted(root.rglob("*.cu*")) + sorted(root.rglob("*.[hc]*")):
            if path.is_file():
                digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"sddmm-shim-{digest.hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    return folder
