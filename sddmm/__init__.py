"""SDDMM, sampled dense-dense matrix multiplication: (A @ B) at the nonzeros of a sparse S."""

from importlib.metadata import PackageNotFoundError, version

from sddmm.cache import CacheInfo, cache_info, clear_cache, set_cache_limit
from sddmm.ops import torch_library as torch_library  # registers the torch operators
from sddmm.ops.sddmm import plan, sampled_addmm, sddmm
from sddmm.plan import Plan
from sddmm.sparse.pattern import SparsePattern

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
