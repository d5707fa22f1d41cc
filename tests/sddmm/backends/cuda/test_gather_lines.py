"""gather_lines: exact values by every path, how its launches are divided, and when it is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sddmm
from sddmm.backends import base
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.facts import CountedFacts
from sddmm.backends.cuda.kernels.gather_lines.host import GATHER_LINES, LaunchShape, launch_shape
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, assert_close, emulated_gpu, random_pattern
from tests.sddmm.backends.cuda.exact_samples import check
from tests.sddmm.backends.cuda.test_cost_model import best, no_measurement, problem
from tests.sddmm.memory import at_a_cliff

__all__ = ["no_measurement"]

ONE_SM = replace(H200, sm_count=1)


def in_rows(lengths: list[int], columns: int) -> SparsePattern:
    """So many nonzeros in each row, in columns from the row's number on."""
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    cols = torch.cat([(torch.arange(n) * 7 + i) % columns for i, n in enumerate(lengths)])
    return SparsePattern.from_coo(rows, cols, (len(lengths), columns))


# A group of eight lanes has 1 to 8 nonzeros on one multiprocessor, whose 96 groups are a wave.
@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("per_group", range(1, 9))
def test_every_number_of_nonzeros_of_a_group_the_last_of_them_with_fewer(per_group: int) -> None:
    nnz = 96 * per_group - 5
    assert launch_shape(nnz, 1, ONE_SM) == LaunchShape(6, 1, per_group)
    pattern = random_pattern(30, 90, nnz, layout="csr")
    _, launches = check("gather_lines", pattern, 36, torch.float32, device=ONE_SM)
    assert launches.count("gather_lines") == 1


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize(("k", "dtype"), [(4, torch.float32), (32, torch.float32),
                                          (100, torch.float32), (2, torch.float64),
                                          (48, torch.float64), (34, torch.float64)])  # fmt: skip
@pytest.mark.parametrize(
    "lengths",
    [
        [700],  # one row
        [83, 90, 77, 3, 80, 90, 61, 88, 90, 38],  # two rows at most of most groups
        [1] * 90 + [5, 2, 0, 3, 6] * 25,  # three rows and more, of some or of all of a warp
    ],
    ids=["one", "two", "many"],
)
def test_groups_of_one_row_of_two_and_of_more(
    lengths: list[int], k: int, dtype: torch.dtype
) -> None:
    check("gather_lines", in_rows(lengths, 701), k, dtype, device=ONE_SM)


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize(("dtype", "k"), [(torch.float32, 68), (torch.float64, 32)])
def test_shuffled_nonzeros_with_heads_and_values(dtype: torch.dtype, k: int) -> None:
    pattern = random_pattern(40, 60, 333, layout="coo", shuffled=True)
    check("gather_lines", pattern, k, dtype, heads=3, scaled=True, device=ONE_SM)


@pytest.mark.usefixtures("kernels_on_cpu")
def test_slices_of_k_that_stay_in_l2_are_added() -> None:
    small = replace(ONE_SM, l2_bytes=1000)
    pattern = random_pattern(9, 40, 250, layout="coo", shuffled=True)
    _, launches = check("gather_lines", pattern, 2 * 128 + 12, torch.float32, scaled=True,
                        device=small)  # fmt: skip
    assert launches.count("gather_lines") == 3


@pytest.mark.usefixtures("kernels_on_cpu")
def test_it_is_prepared_by_the_second_call_and_the_first_is_a_single_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    pattern = random_pattern(300, 300, 700, layout="coo")
    matrix = pattern.to_torch(torch.ones(pattern.nnz))
    a, b = torch.randn(300, 256), torch.randn(300, 256).mT
    with emulated_gpu(ONE_SM) as launches:
        first, second = sddmm.sddmm(pattern, a, b), sddmm.sddmm(pattern, a, b)
    assert [name for name in launches if name in ("row_gather", "gather_lines")] == [
        "row_gather",
        "gather_lines",
    ]
    assert_close(first, matrix, a, b)
    assert_close(second, matrix, a, b)


@pytest.mark.usefixtures("kernels_on_cpu")
def test_rows_that_begin_between_chunks_are_gathered_by_row_gather() -> None:
    pattern = random_pattern(30, 20, 90, layout="csr")
    _, launches = check("gather_lines", pattern, 24, torch.float32, aligned=False)
    assert "row_gather" in launches
    assert "gather_lines" not in launches


def test_seven_blocks_share_a_multiprocessor_if_that_saves_one_of_few_waves() -> None:
    wave = 132 * 6 * 16 * 8
    assert launch_shape(1, 1, H200) == LaunchShape(6, 1, 1)
    assert launch_shape(wave, 1, H200) == LaunchShape(6, 1, 8)
    assert launch_shape(wave + 1, 1, H200) == LaunchShape(7, 1, 7)
    assert launch_shape(2 * wave - 1, 1, H200) == LaunchShape(6, 2, 8)
    assert launch_shape(10 * wave + 1, 1, H200).blocks_per_sm == 6


def test_no_warp_has_nonzeros_of_two_heads() -> None:
    warps = 132 * 6 * 4
    assert launch_shape(1, warps, H200) == LaunchShape(6, 1, 1)
    assert launch_shape(33, warps, H200) == LaunchShape(6, 2, 5)
    assert launch_shape(9, warps * 3 // 2, H200) == LaunchShape(6, 2, 3)  # and not two for each


@pytest.mark.usefixtures("kernels_on_cpu")
def test_indices_that_are_wrong_or_past_the_end_are_not_followed() -> None:
    """A launch may come before the pattern is found to be wrong; its values are discarded."""
    rows = at_a_cliff(torch.tensor([0, 3, -1, 2**31 - 1, 5, 2], dtype=torch.int32))
    cols = at_a_cliff(torch.tensor([-(2**31), 9, 4, 1, 100, 2], dtype=torch.int32))
    a, b_t, out = (at_a_cliff(torch.randn(*size)) for size in ((6, 36), (5, 36), (6,)))
    with emulated_gpu(ONE_SM):
        plan = GATHER_LINES.plan(
            Nonzeros(rows, cols, None), problem(6, 6, 36, torch.float32)._replace(n=5), ONE_SM
        )  # fmt: skip
        assert plan.takes_any_indices
        plan.bind(a, b_t)(0, out.data_ptr(), 1.0)
    torch.testing.assert_close(out[5], (a[2] * b_t[2]).sum())


@pytest.mark.parametrize(
    ("size", "nnz", "k", "dtype", "chosen"),
    [
        (2000, 80_000, 512, torch.float32, True),
        (4000, 160_000, 256, torch.float32, True),
        (4000, 160_000, 128, torch.float64, True),
        (1024, 105_000, 64, torch.float32, True),  # shorter ones of one wave
        (3000, 300_000, 64, torch.float32, False),  # and of three
        (2000, 200_000, 32, torch.float32, False),  # rows of one line
        (1000, 5_000, 512, torch.float32, False),  # one nonzero for eight lanes
        (10_000, 1_000_000, 256, torch.float32, False),  # windows pay
        (2000, 80_000, 512, torch.float16, False),
    ],
)
def test_it_is_chosen_for_long_rows_of_few_waves(
    size: int, nnz: int, k: int, dtype: torch.dtype, chosen: bool
) -> None:
    assert (best(problem(size, nnz, k, dtype)) == "gather_lines") == chosen


@pytest.mark.parametrize(
    ("rows", "per_row", "parts", "k", "over"),
    [
        (1_000_000, 5, 2, 64, 0.87),
        (200_000, 27, 2, 128, 0.87),
        (1_000_000, 15, 11, 64, 0.87),
        (1_000_000, 15, 12, 64, 1.0),  # of R-MAT: 499 us, row_gather 448
        (1_000_000, 5, 2, 32, 1.0),
        (1_000_000, 40, 2, 64, 1.0),
        (20_000, 40, 2, 256, 0.97),
        (1_000_000, 40, 2, 256, 1.0),  # in slices of 512 bytes
    ],
)
def test_many_waves_gain_by_groups_of_several_rows_or_by_long_operands(
    rows: int, per_row: int, parts: int, k: int, over: float
) -> None:
    """Where nonzeros are near, in so few parts of each row."""
    near = CountedFacts(per_row * rows, per_row * rows, True, {}, ((1, per_row * rows),
                        (64, parts * rows)))  # fmt: skip
    asked, model = problem(rows, per_row * rows, k, torch.float32), scaled_by_sm_count(H200)
    gathered = ROW_GATHER.cost_us(asked, near, model).run_us
    assert GATHER_LINES.cost_us(asked, near, model).run_us == pytest.approx(over * gathered)


@pytest.mark.parametrize(
    ("k", "rows", "dtype", "reason"),
    [
        (30, 100, torch.float32, "loads 16 bytes at a time, got rows of 120"),
        (2**20, 2**14, torch.float32, "less than 64 GiB, got 16384 rows of 4194304 bytes"),
        (64, 100, torch.float16, "computes float32, float64, not float16"),
    ],
)
def test_refusals_name_their_reason(k: int, rows: int, dtype: torch.dtype, reason: str) -> None:
    refused = GATHER_LINES.refuses(problem(rows, 100, k, dtype), H200)
    assert refused is not None
    assert reason in refused


def test_operands_that_span_64_gib_are_copied() -> None:
    ids = torch.zeros(3, dtype=torch.int32)
    with emulated_gpu():
        plan = GATHER_LINES.plan(Nonzeros(ids, ids, None), problem(4, 3, 64, torch.float32), H200)
    near = torch.empty(4, 64, device="meta")
    assert plan.accepts(near)
    assert not plan.accepts(near.as_strided((4, 64), (2**32, 1)))
    assert plan.to_accepted(near.as_strided((4, 64), (2**32, 1))).stride() == (64, 1)


def test_a_plan_by_it_says_so() -> None:
    with emulated_gpu():
        plan = sddmm.plan(random_pattern(500, 500, 60_000), k=512, dtype=torch.float32,
                          kernel="gather_lines")  # fmt: skip
    assert "gather_lines" in plan.explain()
