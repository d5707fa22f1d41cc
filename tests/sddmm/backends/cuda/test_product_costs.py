"""The cost model of products, without a GPU: as on an H200, on which the cases were measured."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.facts import CountedFacts, PatternFacts, TileCounts, UniformFacts
from sddmm.backends.cuda.kernels.product_rows import slices_of
from sddmm.backends.cuda.kernels.registry import SPMM_KERNELS
from sddmm.backends.cuda.kernels.spmm_gather.host import gather_us
from sddmm.backends.cuda.kernels.spmm_gather.sharing import Sharing, sharing_of
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES
from sddmm.backends.cuda.planning_context import PlanningContext
from sddmm.problem import SpmmProblem
from tests.conftest import H200

MODEL = scaled_by_sm_count(H200)
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200's figures, whatever was measured here."""
    module = "sddmm.backends.cuda.planning_context"
    monkeypatch.setattr(f"{module}.device_model", scaled_by_sm_count)


def problem(m: int, n: int, nnz: int, k: int, dtype: torch.dtype) -> SpmmProblem:
    return SpmmProblem(
        m, n, k, nnz, dtype, dtype, dtype, torch.int32, None, False, False, torch.device("cuda", 0)
    )  # fmt: skip


def facts_of(
    asked: SpmmProblem, is_sorted: bool, parts: float | None, tiles: int = 0
) -> PatternFacts:
    """parts: the non-empty parts of rows, of 64 columns each, per nonzero; None of a uniform
    pattern. tiles: those of 64 x 64 that are not empty, if they are counted."""
    m, n, nnz = asked.m, asked.n, asked.nnz
    if parts is None:
        return UniformFacts((m, n), nnz, ascends=is_sorted)
    counts = {(64, 64): TileCounts(tiles, 0, ())} if tiles else {}
    widths = ((64, round(parts * nnz)),)
    return CountedFacts(nnz, nnz, is_sorted, counts, widths, ascends_by_column=not is_sorted)


@pytest.mark.parametrize(
    ("size", "k", "dtype", "is_sorted", "parts", "measured_us"),
    [
        # Uniform patterns: rows of X out of L2, and of the densest partly out of L1.
        ((10_000, 10_000, 1_000_000), 64, F16, True, None, 17.2),
        ((10_000, 10_000, 1_000_000), 64, F16, False, None, 23.1),
        ((10_000, 10_000, 1_000_000), 256, F16, True, None, 55.0),
        ((10_000, 10_000, 1_000_000), 256, F32, True, None, 110),
        ((4096, 4096, 3_300_000), 128, F32, True, None, 101),
        ((8192, 8192, 6_700_000), 128, F32, True, None, 228),
        ((10_000, 10_000, 5_000_000), 64, F32, True, None, 116),
        # Rows of X that no power of two of lanes loads.
        ((30_000, 30_000, 4_500_000), 96, F32, True, None, 195),
        ((100_000, 100_000, 2_000_000), 40, F32, True, None, 47.5),
        # L1 holds all of X; L2 does not.
        ((1_000_000, 500, 8_000_000), 64, F32, True, None, 207),
        ((500, 500_000, 4_000_000), 128, F32, True, None, 424),
        ((549_000, 549_000, 926_000), 64, F16, True, None, 51.3),
        # Skewed graphs, near columns, and rows of X that are not aligned.
        ((106_000, 106_000, 3_000_000), 64, F16, True, 0.954, 58.0),
        ((106_000, 106_000, 3_000_000), 64, F16, False, 0.954, 70.0),
        ((2**20, 2**20, 16_000_000), 64, F16, True, 0.813, 323),
        ((2**20, 2**20, 16_000_000), 64, F16, False, 0.813, 410),
        ((16_384, 16_384, 10_399_424), 64, F32, True, 0.0171, 206),
        ((16_384, 16_384, 10_399_424), 128, F32, True, 0.0171, 336),
        ((8192, 8192, 2_013_184), 128, F32, True, 0.0308, 65.0),
        ((50_000, 50_000, 1_649_728), 100, F16, True, 0.0455, 58.5),
    ],
)
def test_products_by_gathering_cost_what_an_h200_takes(
    size: tuple[int, int, int],
    k: int,
    dtype: torch.dtype,
    is_sorted: bool,
    parts: float | None,
    measured_us: float,
) -> None:
    asked = problem(*size, k, dtype)
    predicted_us = gather_us(asked, MODEL, facts_of(asked, is_sorted, parts))
    assert predicted_us == pytest.approx(measured_us, rel=0.1)
    if parts is None and is_sorted:
        assert gather_us(asked, MODEL, None) == predicted_us


@pytest.mark.parametrize(
    ("m", "n", "nnz", "k", "is_sorted", "name"),
    [
        (10_000, 10_000, 1_000_000, 256, True, "spmm_windows"),
        (10_000, 10_000, 5_000_000, 64, True, "spmm_windows"),
        (10_000, 10_000, 2_000_000, 128, True, "spmm_windows"),
        (20_000, 20_000, 8_000_000, 128, True, "spmm_windows"),
        (500, 500_000, 4_000_000, 128, True, "spmm_windows"),
        (36_000, 36_000, 4_000_000, 256, True, "spmm_gather"),
        (10_000, 10_000, 100_000, 256, True, "spmm_gather"),
        (4096, 4096, 3_300_000, 256, True, "spmm_gather"),
        (8192, 8192, 6_700_000, 128, True, "spmm_gather"),
        # Many rows and few columns, whose sums of windows are stored in memory; and few rows, of
        # which windows would occupy few groups of threads.
        (1_000_000, 500, 8_000_000, 64, True, "spmm_gather"),
        (500_000, 500, 4_000_000, 128, False, "spmm_gather"),
        (512, 2048, 314_573, 64, True, "spmm_gather"),
        (2048, 512, 314_573, 64, False, "spmm_gather"),
        (1000, 8000, 400_000, 128, True, "spmm_gather"),
        (4096, 4096, 3_300_000, 64, False, "spmm_tile_float_64"),
    ],
)
def test_the_product_that_was_faster_is_chosen_for_a_uniform_pattern(
    m: int, n: int, nnz: int, k: int, is_sorted: bool, name: str
) -> None:
    planning = PlanningContext(SPMM_KERNELS, problem(m, n, nnz, k, F32), H200)
    assert planning.rank_if_uniform(is_sorted=is_sorted)[0].kernel.name == name
    if is_sorted:
        once = planning.rank_if_uniform(calls=1)[0].kernel.name
        assert once == "spmm_gather"


@pytest.mark.parametrize(
    ("size", "k", "dtype", "is_sorted", "parts", "tiles", "name"),
    [
        ((50_000, 50_000, 1_649_728), 128, F32, True, 0.0455, 2345, "spmm_gather"),
        ((30_000, 30_000, 2_428_360), 100, F16, True, 0.0278, 1400, "spmm_tile_128"),
        ((30_000, 30_000, 2_428_360), 65, F32, True, 0.0278, 1400, "spmm_tile_float_64"),
        ((30_000, 30_000, 2_428_360), 47, F16, True, 0.0278, 1400, "spmm_tile_64"),
        ((50_000, 50_000, 1_649_728), 64, F16, True, 0.0455, 2345, "spmm_tile_64"),
        ((8192, 8192, 2_013_184), 128, F32, True, 0.0308, 1880, "spmm_gather"),
        ((2048, 2048, 2_098_176), 64, F32, True, 0.016, 528, "spmm_tile_float_64"),
        ((8192, 8192, 6_709_248), 64, F16, True, 0.016, 1638, "spmm_tile_32"),
    ],
)
def test_the_product_that_was_faster_is_chosen_where_columns_are_near(
    size: tuple[int, int, int],
    k: int,
    dtype: torch.dtype,
    is_sorted: bool,
    parts: float,
    tiles: int,
    name: str,
) -> None:
    """Bands, blocks and a causal mask, with rows of X that are aligned, and that are not."""
    asked = problem(*size, k, dtype)
    planning = PlanningContext(SPMM_KERNELS, asked, H200)
    assert (64, 64) in planning.tile_sizes
    ranking = planning.rank(facts_of(asked, is_sorted, parts, tiles))
    assert ranking[0].kernel.name == name


@pytest.mark.parametrize(
    ("size", "nnz", "k", "dtype", "runs", "tiles", "name"),
    [
        # Blocks of 16, of 32 and of 8, a band, finite elements, masks, and small graphs.
        (12_000, 2_880_000, 128, F16, 175_936, (11_250, 10_876, 9668), "spmm_tile16_64"),
        (12_000, 2_880_000, 64, F32, 175_936, (11_250, 10_876, 9668), "spmm_tile16_float_64"),
        (16_384, 8_052_736, 64, F16, 242_912, (31_456, 7864, 7506), "spmm_tile32_64"),
        (8192, 1_342_208, 128, F16, 164_592, (20_368, 18_159, 11_881), "spmm_tile16_64"),
        (30_000, 2_428_360, 64, F32, 30_000, (13_113, 4684, 1405), "spmm_tile16_float_64"),
        (41_472, 3_087_000, 64, F16, 352_800, (49_980, 24_920, 9030), "spmm_tile16_64"),
        (2048, 2_098_176, 64, F32, 2048, (8256, 2080, 528), "spmm_tile16_float_64"),
        (8192, 33_558_528, 64, F16, 8192, (131_328, 32_896, 8256), "spmm_tile_64"),
        (8192, 33_558_528, 128, BF16, 8192, (131_328, 32_896, 8256), "spmm_tile_128"),
        (16_384, 10_399_424, 128, BF16, 32_447, (41_564, 10_642, 2786), "spmm_tile_128"),
        (102_400, 257_128, 64, F16, 212_258, (18_692, 9344, 4662), "spmm_gather"),
    ],
)
def test_the_size_of_tiles_that_was_faster_is_chosen(
    size: int, nnz: int, k: int, dtype: torch.dtype, runs: int, tiles: tuple[int, int, int],
    name: str,
) -> None:  # fmt: skip
    """tiles: those of 16 x 16, of 32 x 32 and of 64 x 64 that are not empty."""
    asked = problem(size, size, nnz, k, dtype)
    sides = ((16, 16), (32, 32), (64, 64))
    counts = {side: TileCounts(n, 0, ()) for side, n in zip(sides, tiles, strict=True)}
    facts = CountedFacts(nnz, runs, True, counts, ((64, runs),))
    ranking = PlanningContext(SPMM_KERNELS, asked, H200).rank(facts)
    assert ranking[0].kernel.name == name


@pytest.mark.parametrize(
    ("k", "dtype", "lanes", "slices"),
    [
        (1, F32, 1, 1), (7, F32, 2, 1), (40, F32, 16, 1), (41, F32, 16, 1), (80, F16, 16, 1),
        (48, F16, 8, 1), (96, F32, 32, 1), (172, F32, 16, 3), (256, F32, 32, 2), (602, F16, 16, 5),
    ],
)  # fmt: skip
def test_a_row_of_x_has_as_many_lanes_as_load_it_at_once(
    k: int, dtype: torch.dtype, lanes: int, slices: int
) -> None:
    """With more slices of fewer lanes, 40 columns of float32 took 82 us in place of 48."""
    found = slices_of(problem(100, 100, 1000, k, dtype))
    assert (found.lanes, found.number) == (lanes, slices)


def sharing(
    m: int, n: int, nnz: int, k: int, dtype: torch.dtype, *, has_perm: bool = False
) -> Sharing:
    asked = problem(m, n, nnz, k, dtype)
    return sharing_of(asked, slices_of(asked), has_perm, 8, H200)


@pytest.mark.parametrize(
    ("size", "k", "dtype", "batch"),
    [
        ((4096, 4096, 3_300_000), 128, F32, (4, 4)),
        ((4096, 4096, 3_300_000), 256, F32, (8, 3)),
        ((8192, 8192, 6_700_000), 256, BF16, (8, 3)),
        ((10_000, 10_000, 5_000_000), 256, F16, (8, 3)),
    ],
)
def test_a_warp_takes_one_row_where_shares_would_be_about_that(
    size: tuple[int, int, int], k: int, dtype: torch.dtype, batch: tuple[int, int]
) -> None:
    """Then warps go through the columns side by side; in batches with which the most are busy."""
    m, _, nnz = size
    found = sharing(*size, k, dtype)
    assert found.aligns_warps
    assert 0.97 <= found.share * m / (nnz + m) <= 0.98
    assert found.batch == batch


@pytest.mark.parametrize("m", [3130, 3168, 4096, 4160, 4224, 8400])
def test_shares_of_a_row_need_no_further_wave_of_blocks(m: int) -> None:
    nnz = m * m // 5
    found = sharing(m, m, nnz, 128, F32)
    blocks, at_once = -((nnz + m) // -(8 * found.share)), H200.sm_count * found.batch.min_blocks
    assert 0.97 <= found.share * m / (nnz + m) <= 1.01
    assert -(blocks // -at_once) == -(m // -(8 * at_once))


@pytest.mark.parametrize(
    "size",
    [
        (512, 2048, 314_573), (10_000, 10_000, 1_000_000), (233_000, 233_000, 57_000_000),
        (4300, 4300, 3_700_000),  # a third of a wave would be left
    ],
)  # fmt: skip
def test_shares_are_equal_where_rows_are_few_or_short(size: tuple[int, int, int]) -> None:
    m, _, nnz = size
    found = sharing(*size, 256, F16)
    per_sm = 8 * found.batch.min_blocks * H200.sm_count
    assert found.share == -((nnz + m) // -(per_sm * -((nnz + m) // -(per_sm * 1024))))


def test_no_share_is_of_nothing() -> None:
    for m, nnz, k in itertools.product((0, 1, 70), (0, 1, 5000), (1, 64, 600)):
        for has_perm in (False, True):
            assert sharing(m, 5, nnz if m else 0, k, F32, has_perm=has_perm).share > 0


def test_older_gpus_get_no_batches_that_need_more_registers() -> None:
    asked = problem(4096, 4096, 3_300_000, 128, F32)
    older = replace(H200, capability=(8, 0))
    assert sharing_of(asked, slices_of(asked), False, 8, older).batch == (8, 2)
    odd = asked._replace(k=33)
    assert sharing_of(odd, slices_of(odd), False, 8, older).batch == (4, 2)
    assert sharing(4096, 4096, 3_300_000, 64, torch.float64).batch == (4, 3)


def test_a_product_with_no_column_costs_a_launch() -> None:
    assert gather_us(problem(10, 10, 50, 0, F32), MODEL, None) == MODEL.launch_us


def test_masks_are_taken_for_tiles_and_scattered_nonzeros_are_not() -> None:
    """A window of 16,384 rows, blocks of 64 at 5 %, and a uniform pattern of 1 %."""

    def is_taken(size: int, nnz: int, runs: int, tiles: int, **facts: bool) -> bool:
        asked = problem(size, size, nnz, 64, F16)
        counts = {(64, 64): TileCounts(tiles, 0, ())}
        found = CountedFacts(nnz, runs, True, counts, (), **facts)
        costs = (kernel.cost_us(asked, found, MODEL) for kernel in SPMM_TILES)
        best = min((cost.run_us for cost in costs if cost is not None), default=float("inf"))
        return best < gather_us(asked, MODEL, found)

    assert is_taken(16_384, 10_400_000, 33_000, 3_072)
    assert is_taken(16_384, 13_700_000, 215_000, 3_340)
    assert not is_taken(10_000, 1_000_000, 990_000, 24_600)
    assert not is_taken(16_384, 10_400_000, 33_000, 3_072, distinct=False)


@pytest.mark.parametrize(
    ("name", "measured_us"),
    [("spmm_tile_float_64", (94, 138)), ("spmm_tile16_float_64", (113, 178))],
)
def test_narrow_slices_of_x_take_less_time(name: str, measured_us: tuple[float, float]) -> None:
    """32 columns beside 64, on a causal mask of 8,192 rows."""
    side = {kernel.name: kernel.side for kernel in SPMM_TILES}[name]
    rows = 8192 // side
    counts = {(side, side): TileCounts(rows * (rows + 1) // 2, rows * (rows - 1) // 2, ())}
    run_us = []
    for k in (32, 64):
        asked = problem(8192, 8192, 33_558_528, k, F32)
        facts = CountedFacts(asked.nnz, 8192, True, counts, ())
        cost = SPMM_KERNELS[name].cost_us(asked, facts, MODEL)
        assert cost is not None
        run_us.append(cost.run_us)
    narrow, wide = measured_us
    assert run_us[0] / run_us[1] == pytest.approx(narrow / wide, rel=0.1)
