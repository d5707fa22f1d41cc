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
from sddmm.backends.cuda.kernels.attention_gather.groups import MAX_ROW_BYTES, THREADS
from sddmm.backends.cuda.kernels.attention_gather.launcher import Launcher, Part
from sddmm.backends.cuda.kernels.attention_gather.tunings import tuning_of
from sddmm.backends.cuda.kernels.attention_gradient.host import Gradients
from sddmm.backends.cuda.kernels.attention_passes import PlanWithGradients
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, Layouts

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem


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
