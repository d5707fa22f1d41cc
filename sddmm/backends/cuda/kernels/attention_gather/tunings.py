"""The tunings of attention_gather where it computes scores itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.attention_gather.groups import Tuning

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

TUNING = Tuning(min_blocks=(6, 4), spared=1, one_load_lanes=8)
"""For most patterns."""
SHORT_TUNING = Tuning(batch=2, min_blocks=(6, 5), spared=1, one_load_lanes=4)
"""For short rows: groups of fewer lanes, so that more rows are begun and ended at a time."""
# The nonzeros of a row from which on it is not short.
_LONG_ROW = 11


def tuning_of(problem: AttentionProblem, device: Device) -> Tuning:
    """The tuning for a problem: that of short rows only where L2 holds all operands and results, as
    memory is the limit elsewhere."""
    columns = problem.heads * (problem.d + problem.dv)
    all_bytes = (problem.m + problem.n) * columns * problem.dtype.itemsize
    is_short = problem.nnz < _LONG_ROW * problem.m
    return SHORT_TUNING if is_short and all_bytes <= device.l2_bytes else TUNING
