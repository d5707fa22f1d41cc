"""Verifies the values and the gradients of a training step against float64."""

from __future__ import annotations

from experiments.bench.verify import Verdict
from experiments.sddmm import verify as sddmm_verify
from experiments.spmm import verify as spmm_verify
from experiments.training.case import Case, Step

# Multiply-adds of the values that are verified.
_WORK = 200_000_000
# What half types may be off in the values of peers: so many roundings of |a_i| |b_j|.
_PEER_ROUNDINGS = 2


class Reference:
    """The values and both gradients in float64. The largest error of a verdict is of all three."""

    def __init__(self, case: Case, full_work: int = _WORK) -> None:
        self._values = sddmm_verify.Reference(case.sampled, full_work)
        b_t, a, pattern = case.sampled.b.mT, case.sampled.a, case.pattern
        self._grad_a = spmm_verify.Reference(
            pattern.by_row, case.n, case.grad, b_t, case.seed, full_work
        )
        self._grad_b_t = spmm_verify.Reference(
            pattern.by_column, case.m, case.grad, a, case.seed, full_work
        )

    def check(self, step: Step, partial_sums_round: bool = False) -> Verdict:
        """Compare a method's step. partial_sums_round: a peer adds in the dtype of its results."""
        verdicts = (
            self._values.check(step.values, _PEER_ROUNDINGS if partial_sums_round else 0),
            self._grad_a.check(step.grad_a, partial_sums_round),
            self._grad_b_t.check(step.grad_b_t, partial_sums_round),
        )
        return Verdict(
            sum(v.checked for v in verdicts),
            sum(v.wrong for v in verdicts),
            max(v.error or 0.0 for v in verdicts),
        )
