"""Products are verified against float64, on all rows or on a sample with both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.spmm.case import Case
from experiments.spmm.verify import Reference
from tests.experiments.spmm.test_methods import case_of, definition


def reference_of(case: Case, full_work: int = 10**9) -> Reference:
    columns = case.m if case.transpose else case.n
    return Reference(case.view, columns, case.weights, case.dense, full_work=full_work)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_the_product_of_the_definition_is_right_and_another_is_not(
    transpose: bool, heads: int
) -> None:
    case = case_of(transpose=transpose, heads=heads)
    right = definition(case).float()
    verdict = reference_of(case).check(right)
    assert (verdict.checked, verdict.wrong) == (right.numel(), 0)
    broken = right.clone()
    broken[..., 7, 3] = torch.nan
    verdict = reference_of(case).check(broken)
    assert (verdict.wrong, verdict.error) == (heads, float("inf"))
    assert reference_of(case).check(right[..., :-1, :]).wrong > 0


def test_large_products_are_verified_on_rows_with_both_ends_and_the_longest() -> None:
    case = case_of()
    right = definition(case).float()
    reference = reference_of(case, full_work=33 * 100)
    assert 3 * 33 <= reference.check(right).checked < right.numel() / 2
    longest = int(case.view.indptr.diff().argmax())
    for row in (0, 49, longest):
        broken = right.clone()
        broken[row, 0] += 1
        assert reference.check(broken).wrong == 1


def test_the_error_is_relative_to_the_sum_of_magnitudes() -> None:
    case = case_of()
    size = torch.zeros(50, 33, dtype=torch.float64)
    gathered = case.dense[case.pattern.col_indices].abs() * case.weights[:, None].abs()
    size.index_add_(0, case.pattern.row_ids.long(), gathered.double())
    off = definition(case)
    off[3, 4] += 1e-2 * float(size[3, 4])
    assert reference_of(case).check(off).error == pytest.approx(1e-2, rel=1e-6)


def test_a_product_that_is_too_small_for_a_half_type_has_a_small_error() -> None:
    case = case_of(dtype="float16")
    tiny = replace(case, weights=case.weights * 1e-5)
    verdict = reference_of(tiny).check(definition(tiny).half())
    assert verdict.wrong == 0
    assert verdict.error is not None
    assert verdict.error < 1e-3


def test_a_peer_may_round_partial_sums_of_halves_and_ours_may_not() -> None:
    case = case_of(dtype="float16")
    right = definition(case)
    rounded = right.half() + 3 * torch.finfo(torch.float16).eps * right.abs().half()
    reference = reference_of(case)
    assert reference.check(rounded, partial_sums_round=True).wrong == 0
    assert reference.check(rounded).wrong > 0
    assert reference.check(2 * right.half(), partial_sums_round=True).wrong > 0
    # A result of float32 has no such excuse.
    assert reference.check(rounded.float(), partial_sums_round=True).wrong > 0
