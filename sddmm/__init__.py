"""SDDMM, sampled dense-dense matrix multiplication: (A @ B) at the nonzeros of a sparse S."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from sddmm.backends.base import BACKENDS
from sddmm.backends.cpu.backend import CpuBackend
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.reference import ReferenceBackend
from sddmm.backends.torch_csr import TorchCsrBackend
from sddmm.cache import CacheInfo, cache_info, clear_cache, set_cache_limit
from sddmm.ops import sddmm_operator as sddmm_operator  # registers torch.ops.sddmm.sddmm
from sddmm.ops.attention import sparse_attention
from sddmm.ops.sddmm import plan, sampled_addmm, sddmm
from sddmm.ops.softmax import softmax
from sddmm.ops.spmm import spmm
from sddmm.plan import Plan
from sddmm.sparse.module import PatternModule
from sddmm.sparse.pattern import SparsePattern

if TYPE_CHECKING:
    from sddmm import distributed as distributed
    from sddmm import testing as testing

BACKENDS += [CudaBackend(), CpuBackend(), TorchCsrBackend(), ReferenceBackend()]

try:
    __version__ = version("sddmm")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "unknown"

__all__ = [
    "CacheInfo",
    "PatternModule",
    "Plan",
    "SparsePattern",
    "__version__",
    "cache_info",
    "clear_cache",
    "plan",
    "sampled_addmm",
    "sddmm",
    "set_cache_limit",
    "softmax",
    "sparse_attention",
    "spmm",
]


def __getattr__(name: str) -> Any:
    """`sddmm.testing` and `sddmm.distributed` are imported at their first use: most programs need
    neither test tools nor torch.distributed."""
    if name in ("testing", "distributed"):
        return importlib.import_module(f"sddmm.{name}")
    raise AttributeError(f"module 'sddmm' has no attribute {name!r}")
