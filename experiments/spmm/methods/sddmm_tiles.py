"""The sddmm that the planner chooses on masks, whose tiles are full: the limit of tile kernels.

It is a yardstick, not a way to compute the product.
"""

from __future__ import annotations

from experiments.bench.methods import Run
from experiments.spmm import yardstick
from experiments.spmm.case import OnSampled
from experiments.spmm.yardstick import reference

__all__ = ["MASKS", "prepare", "reference", "refuses"]

# The classes of patterns whose nonzeros lie in full tiles.
MASKS = ("window", "causal", "packed", "blocks")


def refuses(case: OnSampled) -> str | None:
    if case.family not in MASKS:
        return f"row_gather is the yardstick, as the pattern is none of {', '.join(MASKS)}"
    return yardstick.refuses(case, None)


def prepare(case: OnSampled) -> Run:
    return yardstick.prepare(case, None)
