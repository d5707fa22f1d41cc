"""The GPU kernels of spmm as methods, each by its name."""

from __future__ import annotations

from experiments.bench.methods import Method, Run
from experiments.spmm.case import Case
from experiments.spmm.methods import ours
from experiments.spmm.methods.sddmm_tiles import MASKS
from experiments.spmm.prepared import new_product_by
from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS

# Tile kernels are measured on masks, and where at least 1 in so many positions is stored.
_POSITIONS = 500


class ForcedKernel:
    """A method that runs one kernel of spmm, whatever the planner would choose."""

    __file__ = ours.__file__

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def refuses(self, case: Case) -> str | None:
        """The words in which the kernel refuses the problem, or the pattern."""
        if SPMM_KERNELS[self.kernel].tile_sizes and _is_sparse(case):
            return f"not measured: few tiles are dense where 1 in {_POSITIONS} positions is stored"
        try:
            new_product_by(self.kernel, case)
        except ValueError as error:
            return str(error)
        return None

    def prepare(self, case: Case) -> Run:
        return new_product_by(self.kernel, case).run


def _is_sparse(case: Case) -> bool:
    """Whether tiles are so empty that their product takes a hundred times as long as gathering."""
    return case.family not in MASKS and case.nnz * _POSITIONS < case.m * case.n


def forced_kernels() -> dict[str, Method]:
    """A method for every kernel that the planner of spmm knows."""
    return {name: ForcedKernel(name) for name in SPMM_KERNELS}
