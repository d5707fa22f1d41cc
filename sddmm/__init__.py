"""SDDMM, sampled dense-dense matrix multiplication: (A @ B) at the nonzeros of a sparse S."""

from importlib.metadata import PackageNotFoundError, version

from sddmm import op as op  # registers the torch operators
from sddmm.api import plan, sampled_addmm, sddmm
from sddmm.pattern import SparsePattern
from sddmm.plan import Plan

try:
    __version__ = version("sddmm")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "unknown"

__all__ = ["Plan", "SparsePattern", "__version__", "plan", "sampled_addmm", "sddmm"]
