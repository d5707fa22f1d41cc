"""Who can compute an SDDMM. A backend that cannot says why; the first that can serves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from sddmm.backends.cpu.backend import CpuBackend
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.reference import ReferenceBackend
from sddmm.backends.torch_csr import TorchCsrBackend
from sddmm.problem import Problem
from sddmm.sparse.pattern import SparsePattern

Execute = Callable[[Tensor, Tensor, "Tensor | None", float, Tensor], None]
"""execute(a, b, values, alpha, out): out = alpha * (a @ b) at the pattern, times values.

a is ([heads,] m, k); b ([heads,] k, n); values, if any, (nnz,) of a's dtype; out ([heads,] nnz),
contiguous, of the problem's out_dtype. Any strides of a and b.
"""


class Backend(Protocol):
    """One way to compute. `prepare` does a pattern's work once and returns what runs it."""

    name: str

    def available(self) -> str | None:
        """None, or why this backend cannot run in this environment."""

    def refuses(self, problem: Problem) -> str | None:
        """None, or why this backend does not serve `problem`."""

    def prepare(self, pattern: SparsePattern, problem: Problem) -> Execute:
        """Everything that depends on the pattern alone; the pattern has been checked."""


CUDA = CudaBackend()

# In the order in which they are asked.
BACKENDS: tuple[Backend, ...] = (
    CUDA,
    CpuBackend(),
    TorchCsrBackend(),
    ReferenceBackend(),
)


def reason_against(backend: Backend, problem: Problem) -> str | None:
    """None if `backend` can serve `problem` here, else why not."""
    return backend.available() or backend.refuses(problem)


@functools.lru_cache(maxsize=1024)
def choose(problem: Problem, name: str | None = None) -> tuple[Backend, Mapping[str, str]]:
    """The backend that serves `problem`, and the reasons of those asked before it; asked once.

    name: ask this backend only; its refusal is a ValueError.
    """
    if name is not None and name not in {backend.name for backend in BACKENDS}:
        names = ", ".join(backend.name for backend in BACKENDS)
        raise ValueError(f"backend must be one of {names}, got {name!r}")
    refusals: dict[str, str] = {}
    for backend in BACKENDS:
        if name is not None and backend.name != name:
            continue
        reason = reason_against(backend, problem)
        if reason is None:
            return backend, refusals
        refusals[backend.name] = reason
    told = "; ".join(f"{backend}: {reason}" for backend, reason in refusals.items())
    raise ValueError(f"no backend serves this problem: {told}")
