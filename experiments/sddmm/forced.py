"""The GPU kernels of this package as methods, each by its name."""

from __future__ import annotations

import sddmm
from experiments.bench.methods import Method, Run
from experiments.sddmm import forced_kernel
from experiments.sddmm.case import Case
from experiments.sddmm.methods import ours
from sddmm.backends.cuda.kernels.registry import KERNELS


class ForcedKernel(forced_kernel.ForcedKernel):
    """A kernel of sddmm as a method."""

    __file__ = ours.__file__
    scales = ours.scales

    def new_plan(self, case: Case) -> sddmm.Plan:
        return ours.new_plan(case, self.kernel)

    def prepare(self, case: Case) -> Run:
        plan = self.new_plan(case)
        return lambda: plan.run(case.a, case.b)


def forced_kernels() -> dict[str, Method]:
    """A method for every kernel that sddmm's planner knows."""
    return {name: ForcedKernel(name) for name in KERNELS}
