"""The GPU kernels of spmm as methods, each by its name."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.bench.methods import Method, Run
from experiments.sddmm import forced_kernel
from experiments.spmm.case import Case, OnSampled
from experiments.spmm.methods import ours
from experiments.spmm.methods.sddmm_tiles import MASKS
from experiments.spmm.prepared import Product, new_product_by
from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS

# Tile kernels are measured on these classes, whose nonzeros are near each other, and where at least
# 1 in so many positions is stored.
_NEAR = (*MASKS, "bands", "stencils", "molecules")
_POSITIONS = 500


class ForcedKernel(forced_kernel.ForcedKernel):
    """A kernel of spmm as a method."""

    __file__ = ours.__file__

    def refuses(self, case: Case) -> str | None:
        has_tiles = bool(SPMM_KERNELS[self.kernel].tile_sizes)
        return (few_dense_tiles(case, _NEAR) if has_tiles else None) or super().refuses(case)

    def new_plan(self, case: Case) -> Product:
        return new_product_by(self.kernel, case)

    def prepare(self, case: Case) -> Run:
        return self.new_plan(case).run


def few_dense_tiles(case: OnSampled, near: Sequence[str]) -> str | None:
    """Why no tile kernel is measured, where tiles are so empty that their product takes a hundred
    times as long as gathering. near: the classes of patterns some of whose tiles are dense."""
    if case.family in near or case.nnz * _POSITIONS >= case.m * case.n:
        return None
    return f"not measured: few tiles are dense where 1 in {_POSITIONS} positions is stored"


def forced_kernels() -> dict[str, Method]:
    """A method for every kernel that the planner of spmm knows."""
    return {name: ForcedKernel(name) for name in SPMM_KERNELS}
