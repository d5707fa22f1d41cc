"""The dense kernel core of `sddmm`: GEMM kernels compiled at run time, and fragment layouts."""

from gemm_core import fragments
from gemm_core.ladder.api import gemm
from gemm_core.ladder.registry import KERNELS
from gemm_core.runtime.variables import refuse_mistakes

refuse_mistakes()


def kernels() -> list[str]:
    """The names of all GEMM kernels, simplest first."""
    return list(KERNELS)


__all__ = ["fragments", "gemm", "kernels"]
