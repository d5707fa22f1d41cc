"""The cost model, without a GPU: what is chosen for the cases that were measured on one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda.cost_model import TileStats, uniform_threshold, uniform_tile_stats
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.kernels.registry import KERNELS, SPECS
from sddmm.backends.cuda.kernels.row_gather.host import gather_slice, gather_us
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.planner import PlanningContext
from sddmm.problem import SddmmProblem
from tests.conftest import H200

MODEL = scaled_by_sm_count(H200)


def problem(size: int, nnz: int, k: int = 256, dtype: torch.dtype = torch.float16) -> SddmmProblem:
    return SddmmProblem(
        m=size, n=size, k=k, nnz=nnz, dtype=dtype, out_dtype=torch.float32, precision="ieee",
        index_dtype=torch.int32, heads=None, device=torch.device("cuda", 0),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200's figures, whatever was measured here."""
    monkeypatch.setattr("sddmm.backends.cuda.planner.device_model", scaled_by_sm_count)


def context(asked: SddmmProblem) -> PlanningContext:
    return PlanningContext(KERNELS, asked, H200)


def tile_kernel(name: str) -> TileKernel:
    kernel = SPECS[name]
    assert isinstance(kernel, TileKernel)
    return kernel


def best(asked: SddmmProblem, stats: TileStats | None = None) -> str:
    """The fastest kernel for a uniform pattern, or for one with these tiles."""
    choice = context(asked)
    if choice.counting is None:
        return choice.rank(None)[0].kernel.name
    ranking = choice.rank_if_uniform() if stats is None else choice.rank(stats)
    return ranking[0].kernel.name


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (problem(10_000, 5_000_000), "tile_wgmma_128x256x64"),
        (problem(10_000, 5_000_000, k=1024), "tile_wgmma_128x256x64"),
        (problem(5_000, 1_250_000), "tile_wgmma_256x152x64"),  # five whole waves
        (problem(10_000, 1_000_000, k=5000), "row_gather"),  # by slices
        (problem(10_000, 2_000_000, k=5000), "tile_wgmma_256x152x64"),
        (problem(10_000, 1_000_000), "row_gather"),
        (problem(10_000, 1_000_000, k=128), "row_gather"),
        (problem(10_000, 100_000), "row_gather"),
        (problem(36_000, 4_000_000), "row_gather"),
        (problem(50_000, 25_000_000), "row_gather"),
        (problem(549_000, 926_000), "row_gather"),
        (problem(10_000, 5_000_000, dtype=torch.float32), "windows"),
        (problem(10_000, 1_000_000, dtype=torch.float32), "windows"),
        (problem(36_000, 4_000_000, dtype=torch.float32), "row_gather"),
        (problem(5_000, 100, dtype=torch.float64), "row_gather"),
    ],
)
def test_the_quickest_as_measured_is_chosen(asked: SddmmProblem, name: str) -> None:
    assert best(asked) == name


def test_long_rows_are_gathered_by_slices_that_stay_in_l2() -> None:
    long = problem(10_000, 1_000_000, k=5000)
    assert gather_slice(long, long.nnz, H200) == 512
    whole = long._replace(k=1000)  # both operands stay
    assert gather_slice(whole, whole.nnz, H200) == 1000
    once = problem(10_000, 50_000, k=5000)  # no row is read often
    assert gather_slice(once, once.nnz, H200) == 5000


def test_a_pattern_that_is_gathered_sooner_than_one_tile_is_not_counted() -> None:
    assert context(problem(5_000, 25_000)).counting is None
    assert context(problem(5_000, 250_000)).counting is not None


def test_a_pattern_drawn_by_chance_is_uniform_and_one_with_empty_tiles_is_not() -> None:
    """Rows of 40 tiles with 2.5 nonzeros each on average: chance leaves 92 % of them filled."""
    asked = problem(10_000, 1_000_000)
    assert 340_000 < uniform_threshold(asked, 256) < 367_000
    assert 90 < uniform_threshold(problem(10_000, 100), 256) < 100
    assert uniform_threshold(asked._replace(m=0, nnz=0), 256) == 0


def test_tiles_of_a_uniform_pattern_are_dense_all_or_none() -> None:
    tiles = 79 * 40
    dense = uniform_tile_stats(problem(10_000, 5_000_000), tiles, 1000)
    assert dense == TileStats(tiles, tiles, 5_000_000)
    sparse = uniform_tile_stats(problem(10_000, 1_000_000), tiles, 1000)
    assert sparse == TileStats(tiles, 0, 0)
    assert uniform_tile_stats(problem(10_000, 100), tiles, 1000) == TileStats(100, 0, 0)


def test_dense_blocks_among_scattered_nonzeros_make_a_hybrid() -> None:
    stats = TileStats(nonempty=60_000, dense=800, nnz_in_dense=9_000_000)
    assert best(problem(50_000, 10_000_000), stats) == "hybrid"


def test_a_tile_is_dense_with_more_nonzeros_the_cheaper_they_are_gathered() -> None:
    asked, kernel = problem(10_000, 5_000_000), tile_kernel("tile_wgmma_128x256x64")
    least = kernel.min_tile_nnz(asked, MODEL)
    assert 0.01 < least / (128 * 256) < 0.05
    twice = kernel.min_tile_nnz(asked, replace(MODEL, l2_bytes=2 * MODEL.l2_bytes))
    assert twice == pytest.approx(2 * least, abs=2)


def test_the_nonzeros_of_a_dense_tile_fit_in_32_bits() -> None:
    """With k = 0 nothing is gathered, and no tile is worth computing whole."""
    asked, kernel = problem(10_000, 5_000_000, k=0), tile_kernel("tile_mma_128x128x64")
    assert kernel.min_tile_nnz(asked, MODEL) == 2**31 - 1


def test_heads_cost_as_much_as_so_many_problems() -> None:
    one, four = problem(10_000, 1_000_000), problem(10_000, 1_000_000)._replace(heads=4)
    single = gather_us(one, one.nnz, MODEL) - MODEL.launch_us
    together = gather_us(four, four.nnz, MODEL) - MODEL.launch_us
    assert together == pytest.approx(4 * single)


def test_kernels_say_what_they_do_not_serve() -> None:
    half = problem(10, 10)
    wgmma = SPECS["tile_wgmma_128x256x64"]
    ada = replace(H200, capability=(8, 9))
    assert wgmma.refuses(half, ada) == "needs compute capability 9.0"
    assert wgmma.refuses(half._replace(k=0), H200) == "has nothing to multiply where k is 0"
    assert SPECS["windows"].refuses(half, replace(H200, shared_bytes=99_000)) == (
        "needs 204800 bytes of shared memory, has 99000"
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
    wide = problem(10, 10, k=60_000, dtype=torch.float32)
    assert SPECS["windows"].refuses(wide, H200) == "holds no row of k = 60000"
    assert KERNELS["hybrid"].refuses(problem(10, 10, dtype=torch.float64), H200) == (
        "no tile kernel computes torch.float64"
    )


def test_a_refusal_of_a_kernel_made_of_others_is_not_explained_twice() -> None:
    """float64 has no tile kernel: each of them says so, and the hybrid need not."""
    asked = problem(10, 10, dtype=torch.float64)
    assert "hybrid" in context(asked).refusals
    notes = context(asked).executor((), list).notes
    assert any("tile_mma_128x128x64: computes" in note for note in notes)
    assert not any("hybrid" in note for note in notes)


def test_what_prepares_least_is_the_gather() -> None:
    for asked in (problem(10, 0), problem(10_000, 5_000_000), problem(10, 9, dtype=torch.float64)):
        cheapest = context(asked).cheapest
        assert cheapest is not None
        assert cheapest.name == "row_gather"
