"""The kernel `row_gather` of sddmm, forward alone: the limit of gathering rows. A yardstick."""

from experiments.spmm.methods.row_gather import prepare, reference, refuses

__all__ = ["prepare", "reference", "refuses"]
