"""The GPU kernels of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sddmm.pattern import SparsePattern
from sddmm.problem import Problem

if TYPE_CHECKING:
    from sddmm.backends import Execute


class CudaBackend:
    name = "cuda"

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        return "this version has no GPU kernels yet"

    def refuses(self, problem: Problem) -> str | None:
        if problem.device.type != "cuda":
            return f"the pattern is on {problem.device}"
        return None

    def prepare(self, pattern: SparsePattern, problem: Problem) -> Execute:
        raise NotImplementedError(self.available())
