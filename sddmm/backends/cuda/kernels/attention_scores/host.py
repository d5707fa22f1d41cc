"""attention_scores: the scores by a kernel of SDDMM, then their softmax and V in another launch.

The two steps read K and V apart, so L2 has to hold the rows of one of them at a time, and the
scores come from whichever kernel of SDDMM is the fastest. In between the scores are in memory as
float32, those of so many heads or nonzeros at a time that they take little of it. It has no source
of its own: attention_gather's launches the second step, and attention_gradient has the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.device import Device
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda.attention import AttentionPlan
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.executor import GpuExecutor, KernelPlan
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.attention_gather.costs import by_scores_us
from sddmm.backends.cuda.kernels.attention_gather.groups import Tuning, heads_at_a_time
from sddmm.backends.cuda.kernels.attention_gather.launcher import Launcher, Part
from sddmm.backends.cuda.kernels.attention_gradient.host import Gradients
from sddmm.backends.cuda.kernels.attention_passes import PlanWithGradients
from sddmm.backends.cuda.layouts import Nonzeros, WindowList, window_list
from sddmm.backends.cuda.spec import Layouts
from sddmm.memory import new_memory
from sddmm.problem import SddmmProblem

if TYPE_CHECKING:
    from sddmm.backends.cuda.kernels.attention_gather.host import AttentionGather
    from sddmm.backends.cuda.kernels.row_gather.host import RowGather
    from sddmm.backends.cuda.kernels.windows.host import Windows
    from sddmm.problem import AttentionProblem

# The most scores that are in memory at a time, beside which SDDMM may keep as many partial sums;
# and where it keeps none, as its rows, of at most so many bytes, are gathered whole.
MOST_SCORES = 2**22
MOST_SCORES_ALONE, _WHOLE_ROW_BYTES = 2**23, 512

# The tuning of the second step.
TUNING = Tuning(batch=8, min_blocks=(6, 4), min_lanes=8, one_load_lanes=8)


class _Step(NamedTuple):
    """Some nonzeros of a group of heads: the launches of their scores, by the number of heads, and
    the shares of warps that read them."""

    scores: dict[int, GpuExecutor]
    first_share: int
    shares: int
    first_nonzero: int
    nonzeros: int


@dataclass(frozen=True, eq=False)
class AttentionScores:
    """Pays where rows are long, whose bytes count more than those of scores written and read.

    one_step: the kernel that serves the same problems, and the gradients of all. row_gather,
    windows: the kernels of SDDMM, which serve every pattern; the second is not asked where scores
    are computed in pieces of a head.
    """

    name: str
    one_step: AttentionGather
    row_gather: RowGather
    windows: Windows
    parts = ()
    tile_sizes = ()
    needs_uniform = False

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return self.one_step.dtypes

    def refuses(self, problem: AttentionProblem, device: Device) -> str | None:
        return self.one_step.refuses(problem, device)

    def needs_ahead(self, problem: AttentionProblem, model: DeviceModel) -> None:
        return None

    def cost_us(
        self, problem: AttentionProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> Cost:
        scores = self._fastest(problem, facts, model)[1]
        # Both predictions have one launch.
        more_launches = 2 * (_steps_of_head(problem) * len(_groups_of_heads(problem)) - 1)
        run_us = by_scores_us(problem, TUNING, model) + scores.run_us
        return Cost(run_us + more_launches * model.launch_us, scores.prepare_us)

    def prepare(
        self, layouts: Layouts, problem: AttentionProblem, model: DeviceModel
    ) -> tuple[AttentionPlan, ...]:
        nonzeros, device = layouts.by_row(), model.device
        groups = _groups_of_heads(problem)
        at_once = problem._replace(heads=groups[0])
        launcher = Launcher(self.one_step, TUNING, nonzeros, at_once, device, has_scores=True)
        if problem.nnz > MOST_SCORES:
            steps = self._pieces_of_head(launcher, problem, device)
        else:
            kernel = self._fastest(problem, layouts.facts(count_tiles=False), model)[0]
            by_row = _ByRow(nonzeros._replace(perm=None), (problem.m, problem.n))
            scores = {
                heads: _executor(
                    kernel.prepare(by_row, _sampled(problem, problem.nnz, heads), model), device
                )
                for heads in {*groups}
            }
            steps = [_Step(scores, 0, launcher.rows.number, 0, problem.nnz)]
        gradients = Gradients(nonzeros, problem, device)
        return (_Plan(launcher, steps, groups, problem, gradients),)

    def _fastest(
        self, problem: AttentionProblem, facts: PatternFacts | None, model: DeviceModel
    ) -> tuple[RowGather | Windows, Cost]:
        """The kernel of the scores, and what it costs for all heads."""
        sampled = _sampled(problem, problem.nnz, problem.heads)
        # As that of one step, this prediction does not know of nonzeros that are near each other.
        fastest: RowGather | Windows = self.row_gather
        cost = self.row_gather.cost_us(sampled, None, model)
        if problem.nnz <= MOST_SCORES and self.windows.refuses(sampled, model.device) is None:
            by_windows = self.windows.cost_us(sampled, facts, model)
            if by_windows.run_us < cost.run_us:
                fastest, cost = self.windows, by_windows
        return fastest, cost

    def _pieces_of_head(
        self, launcher: Launcher, problem: AttentionProblem, device: Device
    ) -> list[_Step]:
        """The steps of one head, of about as many shares of warps each."""
        rows, count = launcher.rows, _steps_of_head(problem)
        firsts = [rows.number * i // count for i in range(count)]
        begins = rows.shares.begins(firsts)
        steps = []
        for first, last, begin, end in zip(
            firsts, [*firsts[1:], rows.number], begins, [*begins[1:], problem.nnz], strict=True
        ):
            own = Nonzeros(rows.nonzeros.rows[begin:end], rows.nonzeros.cols[begin:end], None)
            plan = self.row_gather.plan(own, _sampled(problem, end - begin, 1), device)
            scores = {1: _executor((plan,), device)}
            steps.append(_Step(scores, first, last - first, begin, end - begin))
        return steps


class _ByRow:
    """The nonzeros of a pattern by row, as if it had them in that order."""

    def __init__(self, nonzeros: Nonzeros, shape: tuple[int, int]) -> None:
        self._nonzeros, self._shape = nonzeros, shape

    def by_row(self) -> Nonzeros:
        return self._nonzeros

    def windows(self, window: tuple[int, int]) -> WindowList:
        return window_list(self._nonzeros, self._shape, window)


def _groups_of_heads(problem: AttentionProblem) -> list[int]:
    """How many heads come at a time: as many as have few enough scores, in groups about as large,
    the last of which may be smaller."""
    heads, size = problem.heads, heads_at_a_time(problem.heads, problem.nnz, MOST_SCORES)
    return [min(size, heads - first) for first in range(0, heads, size)]


def _steps_of_head(problem: AttentionProblem) -> int:
    """How many parts of a head come one after the other: a few nonzeros fewer each than may be, as
    shares move to the ends of rows."""
    if problem.nnz <= MOST_SCORES:
        return 1
    row_bytes = problem.d * problem.dtype.itemsize
    most = MOST_SCORES_ALONE if row_bytes <= _WHOLE_ROW_BYTES else MOST_SCORES
    return ceil_div(problem.nnz + problem.m, most * 15 // 16)


def _sampled(problem: AttentionProblem, nnz: int, heads: int) -> SddmmProblem:
    """The scores of so many nonzeros and heads as a problem of SDDMM."""
    return SddmmProblem(
        problem.m, problem.n, problem.d, nnz, problem.dtype, torch.float32, "ieee", torch.int32,
        heads, problem.device,
    )  # fmt: skip


def _executor(plans: tuple[KernelPlan, ...], device: Device) -> GpuExecutor:
    return GpuExecutor(plans, list, device.index)


class _Plan(PlanWithGradients):
    """Launches attention over one pattern: the steps of one group of heads after the other."""

    def __init__(
        self,
        launcher: Launcher,
        steps: list[_Step],
        groups: list[int],
        problem: AttentionProblem,
        gradients: Gradients,
    ) -> None:
        super().__init__(gradients)
        self._launcher, self._steps, self._groups = launcher, steps, groups
        self._problem = problem
        self._most = max(step.nonzeros for step in steps)

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        launcher, last = self._launcher, self._steps[-1]
        count = self._groups[0] * self._most
        memory = new_memory("scores of nonzeros", (count,), torch.float32, self._problem.device)
        pieces = launcher.new_pieces(self._groups[0])
        first = 0
        for heads in self._groups:
            own = slice(first, first + heads)
            q, k_t = operands.q[own], operands.k[own].mT
            for step in self._steps:
                scores = memory[: heads * step.nonzeros].view(heads, step.nonzeros)
                if step.nonzeros:
                    step.scores[heads](q, k_t, None, operands.scale, scores)
                part = Part(first, heads, step.first_share, step.shares, scores, step.first_nonzero)
                launcher.run(operands, out, lse, part, pieces, step is last)
            first += heads
