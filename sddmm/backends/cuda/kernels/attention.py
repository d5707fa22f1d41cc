"""What the kernels of sparse attention have in common: what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sddmm.backends.cuda.spec import KernelSpec, refuses_kind
from sddmm.dtypes import dtype_name

if TYPE_CHECKING:
    from gemm_core.runtime.device import Device
    from sddmm.problem import AttentionProblem

_INT32 = 2**31
_MAX_HEADS = 2**16 - 1


@dataclass(frozen=True, eq=False)
class AttentionSpec(KernelSpec):
    """A kernel of sparse attention, which computes d and dv up to `most_columns`."""

    def refuses(self, problem: AttentionProblem, device: Device) -> str | None:
        reason = refuses_kind(self, problem.dtype, "ieee", device)
        if reason is not None:
            return reason
        most = self.most_columns(problem)
        if max(problem.d, problem.dv) > most:
            return (
                f"computes d and dv of at most {most} in {dtype_name(problem.dtype)}, "
                f"got {problem.d} and {problem.dv}"
            )
        if max(problem.m, problem.n) >= _INT32:
            return f"counts rows and columns in 32 bits, got {problem.m} and {problem.n}"
        if problem.nnz > self.max_nnz:
            return f"counts at most {self.max_nnz} nonzeros, got {problem.nnz}"
        if problem.heads > _MAX_HEADS:
            return f"counts at most {_MAX_HEADS} heads, got {problem.heads}"
        return None

    def most_columns(self, problem: AttentionProblem) -> int:
        """The largest d and dv that it computes."""
        raise NotImplementedError
