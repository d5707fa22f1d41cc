"""Yardsticks: an SDDMM on the pattern, d and heads of a case, with whose time ours is compared."""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.sddmm.methods import ours
from experiments.sddmm.verify import Reference
from experiments.spmm.case import OnSampled

# Multiply-adds that are verified: a sample, as the study of SDDMM verifies the same kernels.
_WORK = 200_000_000


def refuses(case: OnSampled, kernel: str | None) -> str | None:
    """The words in which a kernel of sddmm refuses the case."""
    if kernel is not None and not case.device.startswith("cuda"):
        return f"{kernel} is a GPU kernel"
    try:
        ours.new_plan(case.sampled, kernel)
    except ValueError as error:
        return str(error)
    return None


def prepare(case: OnSampled, kernel: str | None) -> Run:
    plan = ours.new_plan(case.sampled, kernel)
    return lambda: plan.run(case.sampled.a, case.sampled.b)


def reference(case: OnSampled) -> Reference:
    return Reference(case.sampled, full_work=_WORK)
