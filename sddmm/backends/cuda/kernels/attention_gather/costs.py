"""What gathering attention takes, as measured on an H200."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.kernels.attention_gather.groups import LANE_BYTES, Tuning, groups_of
from sddmm.backends.cuda.kernels.attention_gather.tunings import tuning_of
from sddmm.backends.cuda.kernels.row_gather.costs import L2_FRACTION

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

# The time of a nonzero that does not depend on the bytes of its rows, and the least time of one, in
# bytes out of L2: in one step, and where scores are in memory.
_NONZERO_BYTES, _LEAST_BYTES = 40, 200
_SCORED_NONZERO_BYTES = 45
# The time of a row, beside that of its nonzeros, where scores are in memory.
_SCORED_ROW_US = 0.1e-3
# The part of the rows that do not fit L2 which memory has to deliver, as some are gathered more
# often than others: of two rows, and of one.
_MISSED, _SCORED_MISSED = 0.25, 0.2


def one_step_us(problem: AttentionProblem, model: DeviceModel) -> float:
    """Scores and result in one launch: a row of K and one of V per nonzero."""
    tuning = tuning_of(problem, model.device)
    groups = groups_of(problem.d, problem.dv, problem.dtype.itemsize, tuning)
    row_bytes = LANE_BYTES * groups.lanes * (groups.key_chunks + groups.value_chunks)
    nonzero_bytes = max(row_bytes + _NONZERO_BYTES, _LEAST_BYTES)
    head_us = _head_us(problem, nonzero_bytes, row_bytes, _MISSED, model)
    return model.launch_us + problem.heads * head_us


def by_scores_us(problem: AttentionProblem, tuning: Tuning, model: DeviceModel) -> float:
    """The result where the scores are in memory: a row of V per nonzero."""
    groups = groups_of(problem.dv, problem.dv, problem.dtype.itemsize, tuning)
    row_bytes = LANE_BYTES * groups.lanes * groups.value_chunks
    nonzero_bytes = row_bytes + _SCORED_NONZERO_BYTES
    head_us = _head_us(problem, nonzero_bytes, row_bytes, _SCORED_MISSED, model)
    return model.launch_us + problem.heads * (head_us + problem.m * _SCORED_ROW_US)


def _head_us(
    problem: AttentionProblem, nonzero_bytes: float, row_bytes: int, missed: float,
    model: DeviceModel,
) -> float:  # fmt: skip
    """A head: its nonzeros out of L2, or out of memory where their rows do not fit into L2; and all
    operands and results once out of memory."""
    columns, rows = min(problem.n, problem.nnz), min(problem.m, problem.nnz)
    fitting = L2_FRACTION * model.device.l2_bytes / max(1, columns * row_bytes)
    missed_bytes = missed * max(0.0, 1.0 - fitting) * row_bytes
    slower = max(0.0, 1 / model.memory_bytes - 1 / model.l2_bytes)
    seconds = problem.nnz * (nonzero_bytes / model.l2_bytes + missed_bytes * slower)
    return 1e6 * (seconds + (rows + columns) * row_bytes / model.memory_bytes)
