"""The GPU kernels of this package as methods, each by its name."""

from __future__ import annotations

from experiments.bench.methods import Method, Run
from experiments.sddmm.case import Case
from experiments.sddmm.methods import ours
from sddmm.backends.cuda.kernels.registry import KERNELS


class ForcedKernel:
    """A method that runs one kernel of ours, whatever the planner would choose."""

    __file__ = ours.__file__

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def refuses(self, case: Case) -> str | None:
        """The words in which the kernel refuses the problem, or the pattern."""
        try:
            ours.new_plan(case, self.kernel)
        except ValueError as error:
            return str(error)
        return None

    def prepare(self, case: Case) -> Run:
        plan = ours.new_plan(case, self.kernel)
        return lambda: plan.run(case.a, case.b)


def forced_kernels() -> dict[str, Method]:
    """A method for every kernel that sddmm's planner knows."""
    return {name: ForcedKernel(name) for name in KERNELS}
