"""Sparse operators over several GPUs or processes, by torch.distributed.

`DistributedPattern` divides a sparse matrix among ranks by rows; `sddmm.sddmm`, `sampled_addmm`,
`spmm`, `softmax` and `plan` take it in place of S. `record` gives the timeline of calls.
"""

from sddmm.distributed import functions
from sddmm.distributed.grid import DistributedError, Traffic
from sddmm.distributed.pattern import DistributedPattern
from sddmm.distributed.plan import DistributedPlan
from sddmm.distributed.timeline import Span, Timeline, record
from sddmm.ops.routing import ELSEWHERE

ELSEWHERE[DistributedPattern] = functions

__all__ = [
    "DistributedError",
    "DistributedPattern",
    "DistributedPlan",
    "Span",
    "Timeline",
    "Traffic",
    "record",
]
