"""What `windows` is predicted to take, on an H200."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cuda.facts import CountedFacts
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.windows.host import WINDOWS
from sddmm.problem import SddmmProblem
from tests.sddmm.backends.cuda.test_cost_model import MODEL, best, no_measurement, problem

__all__ = ["no_measurement"]


@pytest.mark.parametrize("counted", [((64, 739_000),), ((64, 739_000), (256, 367_000)), ()])
def test_windows_suit_a_uniform_pattern_whatever_widths_are_counted(
    counted: tuple[tuple[int, int], ...],
) -> None:
    """Between rows' parts of 64 columns and windows of 435, chance says how many are empty."""
    asked = problem(10_000, 1_000_000)
    facts = CountedFacts(asked.nnz, asked.nnz, True, {}, counted)
    cost = SPECS["windows"].cost_us(asked, facts, MODEL)
    assert cost is not None
    assert cost.run_us == pytest.approx(42.3, rel=0.05)


def test_windows_cost_more_the_shorter_the_parts_of_rows_in_them() -> None:
    asked = problem(10_000, 1_000_000)
    scattered, clustered = (
        SPECS["windows"].cost_us(
            asked, CountedFacts(asked.nnz, asked.nnz, True, {}, ((512, parts),)), MODEL
        )
        for parts in (200_000, 20_000)
    )
    assert scattered is not None
    assert clustered is not None
    assert scattered.run_us > 1.1 * clustered.run_us


@pytest.mark.parametrize(
    ("asked", "n", "parts", "name"),
    [
        # windows took 152 us, and row_gather 168
        (
            problem(70_000, 3_000_000, k=128, dtype=torch.float32), 12_000,
            ((64, 2_682_150), (256, 1_968_576)), "windows",
        ),
        # windows took 434 us, and row_gather 289
        (
            problem(500_000, 16_000_000, k=64), 50_000,
            ((64, 15_676_185), (256, 14_766_507)), "row_gather",
        ),
    ],
)  # fmt: skip
def test_popular_columns_are_computed_by_windows_where_rows_of_a_stay_in_l2(
    asked: SddmmProblem, n: int, parts: tuple[tuple[int, int], ...], name: str
) -> None:
    """parts: the width of parts of rows, in columns, and how many are not empty."""
    facts = CountedFacts(asked.nnz, asked.nnz, True, {}, parts)
    assert best(asked._replace(n=n, out_dtype=asked.dtype), facts) == name


@pytest.mark.parametrize(
    ("rows", "columns", "nnz", "k", "width"),
    [
        (2_000, 2_000, 160_000, 256, 200),
        (2_000, 2_000, 20_000, 256, 334),  # 10,000 pairs are worth six windows
        (1_000, 1_000, 40_000, 32, 334),
        (50, 100_000, 500_000, 32, 1_786),
        (10_000, 10_000, 10**6, 256, 435),
        (0, 2_000, 0, 256, 400),
    ],
)
def test_windows_of_small_matrices_have_fewer_columns(
    rows: int, columns: int, nnz: int, k: int, width: int
) -> None:
    """A block of 2,000 x 2,000 entries among 132 so has about as many rows as columns."""
    asked = problem(rows, nnz, k=k, dtype=torch.float32)._replace(n=columns)
    assert WINDOWS.geometry(asked, MODEL.device).window == (max(1, rows), width)
