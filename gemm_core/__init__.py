"""The dense kernel core that `sddmm` stands on: GEMM kernels compiled at run time, fragments."""

from gemm_core import fragments
from gemm_core.ladder.api import gemm
from gemm_core.ladder.registry import KERNELS


def kernels() -> list[str]:
    """Names of all kernels, simplest first."""
    return list(KERNELS)


__all__ = ["fragments", "gemm", "kernels"]
