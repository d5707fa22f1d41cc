"""Attention and its gradients are verified against float64, on all rows or on a sample."""

from __future__ import annotations

import itertools

import torch

from experiments.attention.case import Step
from experiments.attention.verify import Reference
from experiments.bench.sources import PowerLaw
from tests.experiments.attention.cases import case_of, definition, rounded

RESULTS = ("out", "grad_q", "grad_k", "grad_v")


def with_change(step: Step, name: str, row: int, change: float) -> Step:
    x = getattr(step, name).clone()
    x[..., row, 0] += change
    return step._replace(**{name: x})


def test_a_wrong_value_of_any_result_is_noticed() -> None:
    case = case_of(heads=2, backward=True)
    right, reference = rounded(definition(case), torch.float32), Reference(case)
    verdict = reference.check(right)
    assert (verdict.checked, verdict.wrong) == (4 * 2 * 40 * 16, 0)
    assert verdict.error is not None
    assert verdict.error < 1e-6
    for name, change in itertools.product(RESULTS, (1e-3, torch.nan)):
        verdict = reference.check(with_change(right, name, 5, change))
        assert verdict.wrong == 2
        assert verdict.error is not None
        assert verdict.error > 1e-4


def test_a_missing_gradient_and_another_shape_are_wrong() -> None:
    case = case_of(backward=True)
    right, reference = rounded(definition(case), torch.float32), Reference(case)
    for step in (Step(right.out), right._replace(grad_k=right.out[:-1])):
        verdict = reference.check(step)
        assert verdict.wrong > 0
        assert verdict.reason == "a result has another shape"


def test_large_problems_are_verified_on_rows_and_on_whole_columns() -> None:
    source = PowerLaw(rows=300, cols=300, nnz=1500, exponent=1.8)
    case = case_of(source, backward=True, k=4)
    right = rounded(definition(case), torch.float32)
    reference = Reference(case, full_work=3000)
    verdict = reference.check(right)
    assert verdict.wrong == 0
    assert 0 < verdict.checked < 4 * 300 * 4 / 2
    lengths = case.pattern.by_row.indptr.diff()
    for row in (0, 299, int(lengths.argmax())):
        for name in ("out", "grad_q"):
            assert reference.check(with_change(right, name, row, 1.0)).wrong == 1
    noticed = [reference.check(with_change(right, "grad_k", c, 1.0)).wrong for c in range(300)]
    assert 3 < sum(noticed) < 250
    for column in range(300):
        assert reference.check(with_change(right, "grad_v", column, 1.0)).wrong == noticed[column]
    forward = Reference(case_of(source, k=4), full_work=3000)
    assert forward.check(Step(right.out)).wrong == 0


def test_peers_may_round_more_often_than_ours() -> None:
    case = case_of(dtype="float16", backward=True)
    right, reference = rounded(definition(case), torch.float16), Reference(case)
    assert reference.check(right).wrong == 0
    off = Step(*(x + 4 * torch.finfo(torch.float16).eps * x.abs() for x in right if x is not None))
    assert reference.check(off).wrong > 0
    assert reference.check(off, is_peer=True).wrong == 0
    twice = Step(*(2 * x for x in right if x is not None))
    assert reference.check(twice, is_peer=True).wrong > 500
