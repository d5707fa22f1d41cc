"""The cost model, without a GPU: what is chosen for the cases that were measured on one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.cost_model import Cost, uniform_threshold
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.facts import CountedFacts, PatternFacts, TileCounts
from sddmm.backends.cuda.kernels.registry import KERNELS, SPECS, SPMM_KERNELS
from sddmm.backends.cuda.kernels.row_gather.costs import gather_slice, gather_us
from sddmm.backends.cuda.kernels.row_gather.host import share_of_warp
from sddmm.backends.cuda.kernels.spmm_tile.host import SpmmTile
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.one_off import OneOffPlanner
from sddmm.backends.cuda.planning_context import PlanningContext, refused
from sddmm.backends.cuda.spec import AnalysisRequest
from sddmm.problem import SddmmProblem, SpmmProblem
from tests.conftest import H200

MODEL = scaled_by_sm_count(H200)


def problem(size: int, nnz: int, k: int = 256, dtype: torch.dtype = torch.float16) -> SddmmProblem:
    return SddmmProblem(
        m=size, n=size, k=k, nnz=nnz, dtype=dtype, out_dtype=torch.float32, precision="ieee",
        index_dtype=torch.int32, heads=None, device=torch.device("cuda", 0),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200's figures, whatever was measured here."""
    for module in ("planning_context", "one_off"):
        monkeypatch.setattr(f"sddmm.backends.cuda.{module}.device_model", scaled_by_sm_count)


def context(asked: SddmmProblem) -> PlanningContext:
    return PlanningContext(KERNELS, asked, H200)


def tile_kernel(name: str) -> TileKernel:
    kernel = SPECS[name]
    assert isinstance(kernel, TileKernel)
    return kernel


def best(asked: SddmmProblem, facts: PatternFacts | None = None) -> str:
    """The fastest kernel for a uniform pattern, or for one with these facts."""
    choice = context(asked)
    ranking = choice.rank_if_uniform() if facts is None else choice.rank(facts)
    return ranking[0].kernel.name


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (problem(10_000, 5_000_000), "tile_wgmma_panel"),
        (problem(10_000, 20_000_000), "tile_wgmma_panel"),
        (problem(10_000, 5_000_000, k=128), "tile_wgmma_panel"),
        (problem(10_000, 5_000_000, k=1024), "tile_wgmma_listed"),
        (problem(10_000, 20_000_000, k=512), "tile_wgmma_listed"),
        (problem(10_000, 40_000_000, k=64), "tile_wgmma_listed"),
        (problem(6_000, 10_800_000, k=64), "tile_wgmma_listed"),
        (problem(4_096, 840_000, k=64), "tile_wgmma"),
        (problem(3_000, 1_800_000, k=64), "tile_wgmma"),  # 2.2 tiles a multiprocessor
        (problem(10_000, 20_000_000, k=128, dtype=torch.float32), "windows"),
        (problem(6_000, 10_800_000, k=128), "tile_wgmma_listed"),
        (problem(4_096, 10_000_000, k=256), "tile_wgmma_panel"),
        (problem(16_384, 53_700_000, k=64), "tile_wgmma_listed"),
        (problem(4_096, 10_000_000, k=64), "tile_wgmma_listed"),
        (problem(4_096, 10_000_000, k=64)._replace(heads=4), "tile_wgmma_panel"),
        (problem(20_000, 8_000_000, k=200), "tile_wgmma_panel"),
        (problem(10_000, 2_000_000, k=64), "windows"),
        (problem(5_000, 1_250_000), "tile_wgmma"),
        (problem(10_000, 1_000_000, k=5000), "windows"),  # by slices
        (problem(10_000, 3_000_000, k=5000), "tile_wgmma"),
        (problem(10_000, 1_000_000), "windows"),
        (problem(10_000, 1_000_000, k=128), "windows"),
        (problem(10_000, 100_000), "row_gather"),
        (problem(36_000, 4_000_000), "windows"),
        (problem(50_000, 25_000_000), "windows"),
        (problem(549_000, 926_000), "row_gather"),
        (problem(10_000, 5_000_000, dtype=torch.float32), "windows"),
        (problem(10_000, 1_000_000, dtype=torch.float32), "windows"),
        (problem(36_000, 4_000_000, dtype=torch.float32), "windows"),
        (problem(5_000, 100, dtype=torch.float64), "row_gather"),
    ],
)
def test_the_quickest_as_measured_is_chosen(asked: SddmmProblem, name: str) -> None:
    """A name stands for all variants that begin with it: they differ by a few percent."""
    assert best(asked).startswith(name)


@pytest.mark.parametrize(
    ("size", "nnz", "runs", "tiles", "block"),
    [
        # causal, 8,192 rows: segments that begin anywhere
        (8_192, 33_558_528, 8_192, {(64, 64): 8_256, (128, 128): 2_080}, (128, 128)),
        # blocks of 128 at multiples of 128: whole lines
        (8_192, 26_836_992, 200_000, {(64, 64): 6_552, (128, 128): 1_638}, (64, 64)),
        # 60 % by chance: no segments
        (4_096, 10_000_000, 4_000_000, {(64, 64): 4_096, (128, 128): 1_024}, (64, 64)),
    ],
)
def test_tiles_of_segments_are_stored_as_fast_as_measured(
    size: int, nnz: int, runs: int, tiles: dict[tuple[int, int], int], block: tuple[int, int]
) -> None:
    counts = {each: TileCounts(count, 0, ()) for each, count in tiles.items()}
    asked = problem(size, nnz, k=64)
    name = best(asked, CountedFacts(nnz, runs, True, counts, ()))
    assert tile_kernel(name).block == block


def test_long_rows_are_gathered_by_slices_that_stay_in_l2() -> None:
    long = problem(10_000, 1_000_000, k=5000)
    assert gather_slice(long, long.nnz, H200) == 512
    whole = long._replace(k=1000)  # both operands stay
    assert gather_slice(whole, whole.nnz, H200) == 1000
    once = problem(10_000, 50_000, k=5000)  # no row is read often
    assert gather_slice(once, once.nnz, H200) == 5000


def test_a_pattern_that_is_gathered_sooner_than_one_tile_is_not_counted() -> None:
    assert context(problem(5_000, 10_000)).tile_sizes == ()
    assert (64, 64) in context(problem(5_000, 250_000)).tile_sizes


def analysed(
    request: AnalysisRequest, row_segments: int, ascends: bool = True, nnz: int = 3_000_000
) -> Analysis:
    cols = torch.zeros(1, dtype=torch.int32).expand(nnz)
    return Analysis(
        request, None, cols, None, None, None, list, ascends=ascends,
        row_segments=row_segments,
    )  # fmt: skip


@pytest.mark.parametrize("transpose", [False, True])
def test_tiles_are_counted_unless_row_segments_show_that_they_are_too_many(
    transpose: bool,
) -> None:
    """Three million nonzeros: of a skewed graph nearly each has a segment of its own."""
    nnz, f16 = 3_000_000, torch.float16
    asked = SpmmProblem(
        100_000, 100_000, 64, nnz, f16, f16, f16, torch.int64, None, False, False,
        torch.device("cuda", 0),
    )  # fmt: skip
    planning = PlanningContext(SPMM_KERNELS, asked, H200)
    request = planning.segments_request()
    assert request.block is not None
    assert not planning.tiles_may_pay(analysed(request, 2_800_000), transpose)
    assert planning.tiles_may_pay(analysed(request, nnz // request.block[1]), transpose)
    assert planning.tiles_may_pay(analysed(request, 2_800_000, ascends=False), transpose)
    # Gathering takes longer where weights are read through a permutation.
    assert planning.tiles_may_pay(analysed(request, 1_800_000), transpose) == transpose
    few = asked._replace(m=2_000, n=2_000)  # all tiles are few enough
    planning = PlanningContext(SPMM_KERNELS, few, H200)
    assert planning.tiles_may_pay(analysed(request, 2_000 * 32), transpose)


def test_a_dense_uniform_pattern_is_multiplied_by_tiles_as_is_its_transpose() -> None:
    f16 = torch.float16
    asked = SpmmProblem(
        8192, 8192, 128, 13_400_000, f16, f16, f16, torch.int64, None, False, False,
        torch.device("cuda", 0),
    )  # fmt: skip
    planning = PlanningContext(SPMM_KERNELS, asked, H200)
    for is_sorted in (True, False):
        best = planning.rank_if_uniform(is_sorted=is_sorted)[0].kernel
        assert isinstance(best, SpmmTile)


def test_tiles_are_counted_for_kernels_of_two_parts_if_enough_nonzeros_may_be_in_dense_ones() -> (
    None
):
    """Three million nonzeros: those that share a segment could be in dense tiles."""
    planning = context(problem(100_000, 3_000_000, k=64))
    request = planning.segments_request()
    assert planning.tiles_may_pay(analysed(request, 1_500_000))
    assert not planning.tiles_may_pay(analysed(request, 2_800_000))


@pytest.mark.parametrize(
    ("m", "n", "nnz", "k", "dtype", "segments", "are_counted"),
    [
        # near columns are found in L1
        (80_000, 2_000, 320_000, 128, torch.float32, 53_333, False),
        # warps load the rows of A of several rows
        (300_000, 20_000, 1_200_000, 16, torch.float16, 600_000, True),
    ],
)
def test_tiles_are_counted_beside_what_gathering_this_pattern_takes(
    m: int, n: int, nnz: int, k: int, dtype: torch.dtype, segments: int, are_counted: bool
) -> None:
    """With a uniform pattern of the same size it would be the other way round."""
    planning = context(problem(m, nnz, k=k, dtype=dtype)._replace(n=n))
    request = planning.segments_request()
    assert planning.tiles_may_pay(analysed(request, segments, nnz=nnz)) == are_counted


def test_a_pattern_drawn_by_chance_is_uniform_and_one_with_empty_tiles_is_not() -> None:
    """Rows of 40 tiles with 2.5 nonzeros each on average: chance leaves 92 % of them filled."""
    shape = (10_000, 10_000)
    assert 340_000 < uniform_threshold(shape, 1_000_000, 256) < 367_000
    assert 90 < uniform_threshold(shape, 100, 256) < 100
    assert uniform_threshold((0, 10_000), 0, 256) == 0


def tiles(nonempty: int, dense: int, nnz: int, nnz_in_dense: int) -> TileCounts:
    """Some tiles that are dense alike, and others that are sparse alike."""
    by_class = [(0, 0)] * 31
    by_class[((nnz - nnz_in_dense) // (nonempty - dense)).bit_length() - 1] = (
        nonempty - dense, nnz - nnz_in_dense
    )  # fmt: skip
    by_class[(nnz_in_dense // dense).bit_length() - 1] = (dense, nnz_in_dense)
    return TileCounts(nonempty, 0, tuple(by_class))


def test_dense_blocks_among_scattered_nonzeros_make_a_hybrid() -> None:
    counts = tiles(60_000, 800, 10_000_000, 9_000_000)
    facts = CountedFacts(10_000_000, 8_000_000, True, {(128, 256): counts}, ())
    assert best(problem(50_000, 10_000_000), facts) == "hybrid"


def test_preparation_counts_as_much_as_the_calls_are_few() -> None:
    quick, thorough = Cost(100.0), Cost(90.0, prepare_us=500.0)
    assert quick.total_us(1) < thorough.total_us(1)
    assert quick.total_us(51) > thorough.total_us(51)


def test_heads_cost_as_much_as_so_many_problems() -> None:
    one, four = problem(10_000, 1_000_000), problem(10_000, 1_000_000)._replace(heads=4)
    single = gather_us(one, one.nnz, MODEL) - MODEL.launch_us
    together = gather_us(four, four.nnz, MODEL) - MODEL.launch_us
    assert together == pytest.approx(4 * single, rel=0.02)  # indices are read once


def test_kernels_say_what_they_do_not_serve() -> None:
    half = problem(10, 10)
    wgmma = SPECS["tile_wgmma_128x256x64"]
    ada = replace(H200, capability=(8, 9))
    assert wgmma.refuses(half, ada) == "needs compute capability 9.0"
    assert wgmma.refuses(half._replace(k=0), H200) == "has nothing to multiply where k is 0"
    assert SPECS["windows"].refuses(half, replace(H200, shared_bytes=99_000)) == (
        "needs 232448 bytes of shared memory, has 99000"
    )
    assert (
        SPECS["tile_mma_tf32_64x64x32"].refuses(problem(10, 10, dtype=torch.float32), H200)
        == "computes with precision tf32, less than ieee"
    )
    assert SPECS["row_gather"].refuses(half._replace(n=2**31), H200) == (
        "counts n in 32 bits, got 2147483648"
    )
    assert SPECS["row_gather"].refuses(half._replace(nnz=2**31), H200) is None
    vast = half._replace(m=2**22, n=2**22)
    assert SPECS["tile_mma_64x64x32"].refuses(vast, H200) == (
        "counts at most 268435456 tiles, got 4294967296"
    )
    assert SPECS["row_gather"].refuses(vast, H200) is None
    large = half._replace(m=2**18, n=2**18)  # 2^21 tiles
    assert SPECS["tile_wgmma_128x256x64"].refuses(large._replace(heads=128), H200) is None
    assert SPECS["tile_wgmma_128x256x64"].refuses(large._replace(heads=129), H200) == (
        "counts at most 268435456 tiles, got 270532608"
    )
    assert SPECS["windows"].refuses(half._replace(nnz=2**31 - 1), H200) == (
        "counts at most 2147479552 nonzeros, got 2147483647"
    )
    assert SPECS["windows"].refuses(half._replace(k=0), H200) == (
        "has nothing to multiply where k is 0"
    )
    assert KERNELS["hybrid"].refuses(problem(10, 10, dtype=torch.float64), H200) == (
        "no tile kernel computes torch.float64"
    )


def test_a_refusal_of_a_kernel_made_of_others_is_not_explained_twice() -> None:
    """float64 has no tile kernel: each of them says so, and the hybrid need not."""
    asked = problem(10, 10, dtype=torch.float64)
    assert "hybrid" in context(asked).refusals
    notes = refused(KERNELS.values(), asked, H200)
    assert any("tile_mma_128x128x64: computes" in note for note in notes)
    assert not any("hybrid" in note for note in notes)


def one_off(asked: SddmmProblem) -> list[str]:
    """The kernel for a single run, and the one that serves if columns do not ascend."""
    planner = OneOffPlanner(tuple(KERNELS.values()))
    return [candidate.kernel.name for candidate in planner.choose(asked, H200).candidates]


def test_a_sparse_pattern_is_gathered_in_a_single_run() -> None:
    assert one_off(problem(10, 0)) == ["row_gather"]
    assert one_off(problem(10, 9, dtype=torch.float64)) == ["row_gather"]
    assert one_off(problem(10_000, 1_000_000)) == ["row_gather"]
    assert one_off(problem(10**6, 15_000_000)) == ["row_gather"]


def test_a_dense_mask_is_computed_by_every_tile_in_a_single_run() -> None:
    first, second = one_off(problem(8192, 8192 * 4096, k=64))
    assert first.startswith("tile_")
    assert second == "row_gather"


def test_the_analysis_tells_whether_a_pattern_of_four_per_cent_is_worth_tiles() -> None:
    choice = OneOffPlanner(tuple(KERNELS.values())).choose(
        problem(10_000, 4_000_000, k=1024, dtype=torch.float32), H200
    )
    assert [candidate.kernel.name for candidate in choice.candidates] == ["row_gather"]
    assert choice.late is not None
    assert choice.late.kernel.name.startswith("tile_")


@pytest.mark.parametrize(
    ("k", "name"), [(47, "windows"), (48, "row_gather"), (100, "row_gather"), (300, "row_gather")]
)
def test_rows_that_are_not_aligned_are_gathered_by_more_loads(k: int, name: str) -> None:
    """With K = 47 in float16, row_gather took 96 us and windows took 70; with K = 48, 31 and 43."""
    assert best(problem(60_000, 1_500_000, k=k)) == name


@pytest.mark.parametrize(
    ("name", "us"), [("tile_wmma_m16n16k16", 25.5), ("tile_mma_128x128x64", 26.3)]
)
def test_tiles_of_rows_that_are_not_aligned_take_longer(name: str, us: float) -> None:
    """A causal mask, K = 100 in float16: small tiles, which load rows more often, lose most."""
    counts = {
        (64, 64): TileCounts(2080, 2016, ((0, 0),) * 11 + ((64, 133_120), (2016, 8_257_536))),
        (128, 128): TileCounts(528, 496, ((0, 0),) * 13 + ((528, 8_390_656),)),
        (16, 16): TileCounts(32_896, 32_640, ((0, 0),) * 7 + ((32_896, 8_390_656),)),
    }
    facts = CountedFacts(8_390_656, 4096, True, counts, ((64, 133_120),))

    def run_us(name: str, k: int) -> float:
        cost = SPECS[name].cost_us(problem(4096, 8_390_656, k=k), facts, MODEL)
        assert cost is not None
        return cost.run_us

    assert run_us(name, 100) == pytest.approx(us, rel=0.1)
    for small in ("tile_mma_64x64x32", "tile_warp_16x16"):
        assert run_us(small, 96) < us < run_us(small, 100)


@pytest.mark.parametrize(
    ("classes", "name"),
    [
        (((234, 311_352), (2, 7_320), (466, 5_691_128)), "tile_mma_64x64x32"),
        (((702, 6_009_800),), "tile_wgmma_listed_128x256x64"),
    ],
)
def test_uneven_tiles_take_longer_by_lists(classes: tuple[tuple[int, int], ...], name: str) -> None:
    """With K = 96 in float16, 201 of every 401 diagonals took tile_wgmma_listed 52 us and tile_mma
    37, predicted of even tiles as 35 and 37."""
    counts = {
        (64, 64): TileCounts(4_201, 0, ((930, 18_600), (937, 1_211_168), (2_334, 4_780_032))),
        (128, 256): TileCounts(702, 0, classes),
    }
    facts = CountedFacts(6_009_800, 6_009_800, True, counts, ((64, 216_720),))
    assert best(problem(30_000, 6_009_800, k=96), facts) == name


@pytest.mark.parametrize("warps_per_sm", [16, 20, 28])
def test_warps_of_a_large_problem_come_in_waves_that_are_nearly_full(warps_per_sm: int) -> None:
    """Where 132 multiprocessors hold 20 warps each, 1.6M nonzeros by 256 were 2.4 waves."""
    for nnz in (1_600_000, 3_000_000, 7_777_777):
        asked = problem(50_000, nnz, 32, torch.float32)
        share = share_of_warp(asked, nnz, H200, 16, 256, warps_per_sm)
        waves = nnz / share / (132 * warps_per_sm)
        assert share % 16 == 0
        assert share <= 256
        assert math.ceil(waves) < 1.08 * waves  # a share is a multiple of 16


@pytest.mark.parametrize("segments", [1_000_000, 300_000])
def test_a_pattern_counts_as_uniform_by_its_row_segments(segments: int) -> None:
    """No tile could pay, but windows could: order alone does not make a pattern even."""
    asked = SpmmProblem(
        10_000, 10_000, 256, 1_000_000, torch.float32, torch.float32, torch.float32, torch.int32,
        None, False, False, torch.device("cuda", 0),
    )  # fmt: skip
    planning = PlanningContext(SPMM_KERNELS, asked, H200)
    request = planning.segments_request()
    assert request.block is not None
    assert planning.is_uniform(analysed(request, segments), asked) == (segments == 1_000_000)
