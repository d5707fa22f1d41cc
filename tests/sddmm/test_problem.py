"""Problems of about the same sizes share what is chosen for them."""

from __future__ import annotations

import pytest
import torch

from sddmm.problem import SddmmProblem, alike


def problem(m: int, n: int, nnz: int) -> SddmmProblem:
    return SddmmProblem(
        m, n, 64, nnz, torch.float16, torch.float16, "ieee", torch.int32, None,
        torch.device("cuda", 0),
    )  # fmt: skip


def test_mini_batches_of_about_one_size_are_few_problems() -> None:
    batches = {alike(problem(5_000 + i, 7_000 - i, 100_000 + 41 * i)) for i in range(100)}
    assert len(batches) <= 6


@pytest.mark.parametrize("m", [1, 2, 17, 31, 33, 127, 129, 5_000, 2**22 - 1])
@pytest.mark.parametrize("nnz", [0, 1, 31, 33, 4_097, 9_999])
def test_alike_sizes_differ_by_little_and_rows_are_never_left_out(m: int, nnz: int) -> None:
    asked = problem(m, 2**21 + 1, nnz)
    shared = alike(asked)
    assert m <= shared.m <= 1.07 * m
    assert 0.96 * nnz <= shared.nnz <= 1.04 * nnz
    assert shared._replace(m=m, n=asked.n, nnz=nnz) == asked


def test_denser_problems_have_their_own_shape_and_nearly_their_own_nonzeros() -> None:
    for nnz in range(100_000, 100_700, 7):
        shared = alike(problem(1_001, 3_003, nnz))
        assert (shared.m, shared.n) == (1_001, 3_003)
        assert 0.995 * nnz <= shared.nnz <= 1.005 * nnz
    masks = {alike(problem(4_096, 4_096, 1_000_000 + 51 * i)) for i in range(100)}
    assert len(masks) <= 3


@pytest.mark.parametrize("side", [10, 33, 100, 3_001])
def test_a_full_pattern_stays_full_and_no_other_becomes_full(side: int) -> None:
    full, nearly, over = (alike(problem(side, side, side * side - gap)) for gap in (0, 1, -1))
    assert full.nnz == full.m * full.n
    assert nearly.nnz < nearly.m * nearly.n
    assert 0.99 * side * side < over.nnz


def test_large_sizes_are_their_own() -> None:
    for m, n, nnz in ((2**22, 5_001, 77_777), (5_001, 2**31 - 1, 77_777), (5_001, 5_001, 2**22)):
        assert alike(problem(m, n, nnz)) == problem(m, n, nnz)
