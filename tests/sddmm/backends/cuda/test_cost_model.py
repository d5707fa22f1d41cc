"""The cost model, without a GPU: what is chosen for the cases that were measured on one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sddmm.backends.cuda import cost_model as choose
from sddmm.backends.cuda.cost_model import TileProfile
from sddmm.backends.cuda.device_model import guessed
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.kernels.windows import host as windows
from sddmm.problem import Problem
from tests.conftest import H200

RATES = guessed(H200)


def problem(size: int, nnz: int, k: int = 256, dtype: torch.dtype = torch.float16) -> Problem:
    return Problem(
        m=size, n=size, k=k, nnz=nnz, dtype=dtype, out_dtype=torch.float32, precision="ieee",
        index_dtype=torch.int32, heads=None, device=torch.device("cuda", 0),
    )  # fmt: skip


def best(asked: Problem, profile: TileProfile | None = None) -> str:
    spec = choose.tile_kernel(asked, KERNELS, H200, RATES)
    if spec is not None and profile is None:
        profile = choose.even_profile(asked, spec, choose.least_nonzeros(asked, spec, RATES))
    width = windows.width_of(KERNELS["windows"], asked)
    ways = choose.without_tiles(asked, width, RATES, H200)
    if spec is not None and profile is not None:
        ways += choose.with_tiles(asked, spec, profile, RATES, H200)
    return min(ways, key=lambda way: way.us).name


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
def test_the_quickest_as_measured_is_chosen(asked: Problem, name: str) -> None:
    assert best(asked) == name


def test_long_rows_are_gathered_by_slices_that_stay_in_l2() -> None:
    long = problem(10_000, 1_000_000, k=5000)
    assert choose.gather_slice(long, long.nnz, H200) == 512
    whole = long._replace(k=1000)  # both operands stay
    assert choose.gather_slice(whole, whole.nnz, H200) == 1000
    once = problem(10_000, 50_000, k=5000)  # no row is read often
    assert choose.gather_slice(once, once.nnz, H200) == 5000


def test_a_pattern_that_is_gathered_sooner_than_one_tile_is_not_counted() -> None:
    spec = KERNELS["tile_wgmma_128x256x64"]
    assert not choose.tiles_may_pay(problem(5_000, 25_000), spec, RATES, H200)
    assert choose.tiles_may_pay(problem(5_000, 250_000), spec, RATES, H200)


def test_a_pattern_drawn_by_chance_is_spread_evenly_and_one_with_empty_tiles_is_not() -> None:
    """Rows of 40 tiles with 2.5 nonzeros each on average: chance leaves 92 % of them filled."""
    asked = problem(10_000, 1_000_000)
    assert 340_000 < choose.even_segments(asked, 256) < 367_000
    assert 90 < choose.even_segments(problem(10_000, 100), 256) < 100
    assert choose.even_segments(asked._replace(m=0, nnz=0), 256) == 0


def test_tiles_of_an_even_pattern_are_worth_it_all_or_none() -> None:
    spec = KERNELS["tile_wgmma_128x256x64"]
    tiles = 79 * 40
    dense = choose.even_profile(problem(10_000, 5_000_000), spec, 1000)
    assert dense == TileProfile(tiles, tiles, 5_000_000)
    assert choose.even_profile(problem(10_000, 1_000_000), spec, 1000) == TileProfile(tiles, 0, 0)
    assert choose.even_profile(problem(10_000, 100), spec, 1000) == TileProfile(100, 0, 0)


def test_dense_blocks_among_scattered_nonzeros_make_a_hybrid() -> None:
    profile = TileProfile(tiles=60_000, worth_tiles=800, worth_nonzeros=9_000_000)
    assert best(problem(50_000, 10_000_000), profile) == "hybrid"


def test_a_tile_is_worth_more_nonzeros_the_cheaper_they_are_gathered() -> None:
    asked = problem(10_000, 5_000_000)
    spec = KERNELS["tile_wgmma_128x256x64"]
    least = choose.least_nonzeros(asked, spec, RATES)
    assert 0.01 < least / (128 * 256) < 0.05
    twice = choose.least_nonzeros(asked, spec, replace(RATES, l2_bytes=2 * RATES.l2_bytes))
    assert twice == pytest.approx(2 * least, abs=2)


def test_what_makes_a_tile_worth_it_fits_in_32_bits() -> None:
    """With k = 0 nothing is gathered, and no tile is worth computing whole."""
    asked, spec = problem(10_000, 5_000_000, k=0), KERNELS["tile_mma_128x128x64"]
    assert choose.least_nonzeros(asked, spec, RATES) == 2**31 - 1


def test_heads_cost_as_much_as_so_many_problems() -> None:
    one, four = problem(10_000, 1_000_000), problem(10_000, 1_000_000)._replace(heads=4)
    single = choose.gather_us(one, one.nnz, RATES, H200) - RATES.launch_us
    together = choose.gather_us(four, four.nnz, RATES, H200) - RATES.launch_us
    assert together == pytest.approx(4 * single)


def test_kernels_say_what_they_do_not_serve() -> None:
    half = problem(10, 10)
    wgmma = KERNELS["tile_wgmma_128x256x64"]
    ada = replace(H200, capability=(8, 9))
    assert wgmma.refuses(half, ada) == "needs compute capability 9.0"
    assert wgmma.refuses(half._replace(k=0), H200) == "has nothing to multiply where k is 0"
    assert KERNELS["windows"].refuses(half, replace(H200, shared_bytes=99_000)) == (
        "needs 204800 bytes of shared memory, has 99000"
    )
    assert (
        KERNELS["tile_mma_tf32_64x64x32"].refuses(problem(10, 10, dtype=torch.float32), H200)
        == "computes with precision tf32, less than ieee"
    )
    assert KERNELS["row_gather"].refuses(half._replace(n=2**31), H200) == (
        "counts n in 32 bits, got 2147483648"
    )
    assert KERNELS["row_gather"].refuses(half._replace(nnz=2**31), H200) is None
    vast = half._replace(m=2**22, n=2**22)
    assert KERNELS["tile_mma_64x64x32"].refuses(vast, H200) == (
        "counts at most 268435456 tiles, got 4294967296"
    )
    assert KERNELS["row_gather"].refuses(vast, H200) is None
    large = half._replace(m=2**18, n=2**18)  # 2^21 tiles
    assert KERNELS["tile_wgmma_128x256x64"].refuses(large._replace(heads=128), H200) is None
    assert KERNELS["tile_wgmma_128x256x64"].refuses(large._replace(heads=129), H200) == (
        "counts at most 268435456 tiles, got 270532608"
    )
    assert KERNELS["windows"].refuses(half._replace(nnz=2**31 - 1), H200) == (
        "counts at most 2147479552 nonzeros, got 2147483647"
    )
