"""The sddmm that the planner chooses, forward alone. A yardstick."""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.spmm import yardstick
from experiments.spmm.case import OnSampled
from experiments.spmm.yardstick import reference

__all__ = ["prepare", "reference", "refuses"]


def refuses(case: OnSampled) -> str | None:
    return yardstick.refuses(case, None)


def prepare(case: OnSampled) -> Run:
    return yardstick.prepare(case, None)
