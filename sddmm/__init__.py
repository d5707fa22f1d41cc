"""SDDMM, sampled dense-dense matrix multiplication: (A @ B) at the nonzeros of a sparse S."""

from importlib.metadata import PackageNotFoundError, version

from sddmm import op as op  # registers the torch operators
from sddmm.api import plan, sampled_addmm, sddmm
from sddmm.pattern import SparsePattern
from sddmm.pattern_cache import CacheInfo, cache_info, clear_cache, set_cache_limit
from sddmm.plan import Plan

try:
    __version__ = version("sddmm")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "unknown"

__all__ = [
    "CacheInfo",
    "Plan",
    "SparsePattern",
    "__version__",
    "cache_info",
    "clear_cache",
    "plan",
    "sampled_addmm",
    "sddmm",
    "set_cache_limit",
]
