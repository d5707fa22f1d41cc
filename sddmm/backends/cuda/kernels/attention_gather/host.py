"""attention_gather: every warp has the same number of nonzeros and rows, whatever the pattern.

It needs the nonzeros sorted by row, and how warps share them (spmm_shares). Rows that warps cut
leave pieces, which a second launch merges. The gradients are attention_gradient's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda.attention import AttentionPlan
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.attention import AttentionSpec
from sddmm.backends.cuda.kernels.attention_gather.costs import one_step_us
from sddmm.backends.cuda.kernels.attention_gather.groups import (
    MAX_ROW_BYTES,
    THREADS,
    Tuning,
    has_few,
)
from sddmm.backends.cuda.kernels.attention_gather.launcher import Launcher, Part
from sddmm.backends.cuda.kernels.attention_gradient.host import Gradients
from sddmm.backends.cuda.kernels.attention_passes import PlanWithGradients
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, Layouts

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem


# For most patterns; and where rows have few nonzeros: smaller groups load more rows at a time.
TUNING = Tuning(min_blocks=(6, 4), spared=1, one_load_lanes=8)
SHORT_TUNING = Tuning(batch=2, min_blocks=(6, 5), spared=1, one_load_lanes=4)


def tuning_of(problem: AttentionProblem, device: Device) -> Tuning:
    """The tuning for a problem. Where L2 does not hold the operands and the results, memory is the
    limit, however many rows are loaded at a time."""
    elements = problem.heads * (problem.m + problem.n) * (problem.d + problem.dv)
    is_in_l2 = elements * problem.dtype.itemsize <= device.l2_bytes
    return SHORT_TUNING if is_in_l2 and has_few(problem.nnz, problem.m) else TUNING


@dataclass(frozen=True, eq=False)
class AttentionGather(AttentionSpec):
    """Serves every pattern, with rows that the lanes of a warp hold in registers."""

    def most_columns(self, problem: AttentionProblem) -> int:
        return MAX_ROW_BYTES // problem.dtype.itemsize

    def needs_ahead(self, problem: AttentionProblem, model: DeviceModel) -> AnalysisRequest:
        return ROW_IDS

    def cost_us(
        self, problem: AttentionProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        return Cost(one_step_us(problem, model))

    def prepare(
        self, layouts: Layouts, problem: AttentionProblem, model: DeviceModel
    ) -> tuple[AttentionPlan, ...]:
        return (_Plan(self, layouts.by_row(), problem, model.device),)


class _Plan(PlanWithGradients):
    """Launches attention over one pattern."""

    reads_beyond = True

    def __init__(
        self, spec: AttentionGather, nonzeros: Nonzeros, problem: AttentionProblem, device: Device
    ) -> None:
        self._heads = problem.heads
        tuning = tuning_of(problem, device)
        self._launcher = launcher = Launcher(spec, tuning, nonzeros, problem, device)
        self._all = Part(0, problem.heads, 0, launcher.rows.number)
        super().__init__(Gradients(nonzeros, problem, device))

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        launcher = self._launcher
        launcher.run(operands, out, lse, self._all, launcher.new_pieces(self._heads))


ATTENTION_GATHER = AttentionGather(
    "attention_gather",
    "attention_gather",
    (torch.float16, torch.bfloat16, torch.float32),
    threads=THREADS,
)
