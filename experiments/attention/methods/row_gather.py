"""The kernel `row_gather` of sddmm on the same pattern, d and heads: the limit of gathering rows.

It is a yardstick, not a way to compute attention.
"""

from experiments.spmm.methods.row_gather import prepare, reference, refuses

__all__ = ["prepare", "reference", "refuses"]
