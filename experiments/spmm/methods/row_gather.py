"""The kernel `row_gather` of sddmm on the same pattern, d and heads: the limit of gathering rows.

It is a yardstick, not a way to compute the product.
"""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.spmm import yardstick
from experiments.spmm.case import OnSampled
from experiments.spmm.yardstick import reference

__all__ = ["prepare", "reference", "refuses"]


def refuses(case: OnSampled) -> str | None:
    return yardstick.refuses(case, "row_gather")


def prepare(case: OnSampled) -> Run:
    return yardstick.prepare(case, "row_gather")
