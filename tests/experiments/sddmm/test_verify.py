"""Verification compares with float64, on all nonzeros or on a sample with both ends."""

from __future__ import annotations

import pytest
import torch

from experiments.bench.sources import Uniform
from experiments.sddmm.case import Case, make_case
from experiments.sddmm.config import Config
from experiments.sddmm.verify import Reference
from tests.experiments.only import right


@pytest.fixture
def case() -> Case:
    return make_case("x", Config(matrix=Uniform(rows=60, cols=50), k=20, device="cpu"))


def test_large_problems_are_verified_on_a_sample_with_both_ends(case: Case) -> None:
    values = right(case)
    reference = Reference(case, full_work=20 * 30)
    assert reference.check(values).checked == 30
    for end in (0, -1):
        broken = values.clone()
        broken[end] = torch.nan
        verdict = reference.check(broken)
        assert verdict.wrong >= 1
        assert verdict.error == float("inf")


def test_the_error_is_relative_to_the_norms(case: Case) -> None:
    values = right(case).double()
    i, j = int(case.pattern.row_ids[0]), int(case.pattern.col_indices[0])
    values[0] += 1e-2 * float(case.a[i].norm() * case.b[:, j].norm())
    assert Reference(case).check(values).error == pytest.approx(1e-2, rel=1e-3)
