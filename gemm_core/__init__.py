"""The dense kernel core that `sddmm` stands on: today the fragment layouts of the tensor cores."""

from gemm_core import fragments

__all__ = ["fragments"]
