"""Kernel choice, refusals and the order of tiles are functions of plain values."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from gemm_core.ladder.choose import choose, predicted_us, resident_blocks
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import GemmProblem, raster
from tests.conftest import H200

PROBLEM = GemmProblem(
    m=4096, n=4096, k=4096, dtype=torch.float16, out_dtype=torch.float16, b_layout="nk",
    aligned_a=True, aligned_b=True, c_vec2_aligned=True,
)  # fmt: skip
FLOAT = replace(PROBLEM, dtype=torch.float32, out_dtype=torch.float32)


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("tiles_m", "tiles_n"), [(1, 1), (7, 5), (8, 8), (9, 1), (1, 9), (17, 3)])
def test_the_raster_visits_every_tile_exactly_once(tiles_m: int, tiles_n: int, group: int) -> None:
    visited = [raster(block, tiles_m, tiles_n, group) for block in range(tiles_m * tiles_n)]
    expected = {(i, j) for i in range(tiles_m) for j in range(tiles_n)}
    assert len(visited) == len(set(visited)) == len(expected)
    assert set(visited) == expected


def test_blocks_that_run_together_are_near_each_other() -> None:
    together = [raster(block, 32, 32, 8) for block in range(132)]
    assert len({i for i, _ in together}) == 8
    assert len({j for _, j in together}) == 17


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "mma_128x256x64_stage3",
            {"dtype": torch.float32},
            "computes float16, bfloat16, not float32",
        ),
        ("sgemm_naive", {}, "computes float32, not float16"),
        ("mma_128x256x64_stage3", {"accumulate": "fp16"}, "accumulates in fp32, not in fp16"),
        ("hgemm_sliced_k", {}, "accumulates in fp16, not in fp32"),
        ("wmma_m16n16k16_naive", {"k": 100}, "needs m, n, k that are multiples of 16, 16, 16 and"),
        ("wmma_m16n16k16_naive", {"aligned_b": False}, "rows that start at multiples of 16 bytes"),
        ("mma_tf32_128x128x32_stage3", {"dtype": torch.float32}, "precision tf32, less than ieee"),
        (
            "mma_tf32_128x128x32_stage3",
            {"dtype": torch.float32, "precision": "tf32", "b_layout": "kn"},
            "needs b stored as rows of n, got rows of k",
        ),
        (
            "mma_128x256x64_stage3",
            {"fits_32bit_offsets": False},
            "start less than 2^24 bytes apart",
        ),
        ("wmma_mma4x2_warp2x4_async", {"fits_32bit_offsets": False}, "less than 2^24 bytes apart"),
        ("hgemm_naive", {"m": 2**30, "n": 2**30}, "has more blocks than a grid"),
        (
            "wgmma_tf32x3_128x128x32_stage4",
            {"dtype": torch.float32},
            "precision tf32x3, less than ieee",
        ),
    ],
)
def test_a_kernel_that_does_not_serve_says_why(name: str, change: dict, reason: str) -> None:
    refusal = KERNELS[name].refuses(replace(PROBLEM, **change), H200)
    assert refusal is not None
    assert reason in refusal
    with pytest.raises(ValueError, match=f"no kernel serves this problem: {name} "):
        choose(replace(PROBLEM, **change), H200, name=name)


def test_old_gpus_are_refused() -> None:
    for spec in KERNELS.values():
        refusal = spec.refuses(PROBLEM, replace(H200, capability=(7, 5)))
        needed = "9.0" if spec.source.startswith("wgmma") else "8.0"
        assert refusal == f"needs compute capability {needed}, got 7.5"


def test_instructions_of_one_generation_are_refused_on_the_next() -> None:
    problem = replace(FLOAT, precision="tf32x3")
    refusal = KERNELS["wgmma_tf32x3_128x128x32_stage4"].refuses(
        problem, replace(H200, capability=(10, 0))
    )
    assert refusal == "is made of instructions that end with compute capability 9.0, got 10.0"
    assert choose(problem, H200).name == "wgmma_tf32x3_128x128x32_stage4"
    assert choose(problem, replace(H200, capability=(10, 0))).precision in ("ieee", "tf32x3")


def test_a_tile_larger_than_the_gpus_shared_memory_is_refused_and_another_serves() -> None:
    ada = replace(H200, capability=(8, 9), shared_bytes=101_376)
    refusal = KERNELS["mma_128x256x64_stage3"].refuses(PROBLEM, ada)
    assert refusal == "needs 147456 bytes of shared memory a block, 101376 are there"
    assert choose(PROBLEM, ada).shared_bytes <= 101_376


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("b_layout", ["nk", "kn"])
def test_rows_that_are_far_apart_are_served_too(dtype: torch.dtype, b_layout: str) -> None:
    far = replace(
        PROBLEM, dtype=dtype, out_dtype=dtype, b_layout=b_layout, fits_32bit_offsets=False
    )
    assert not choose(far, H200).uses_32bit_offsets


def test_the_choice_and_the_refusals_are_told_at_debug_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "gemm_core")
    problem = replace(FLOAT, m=4097)
    best = choose(problem, H200)
    assert choose(problem, H200) is best
    (line,) = caplog.messages
    assert line.startswith(f"{best.name} for GemmProblem(m=4097, ")
    assert "refused: {'" in line


def test_an_unknown_kernel_is_refused_with_the_list_of_kernels() -> None:
    with pytest.raises(ValueError, match="unknown kernel 'fast'; choose from: sgemm_naive, "):
        choose(PROBLEM, H200, name="fast")


@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
@pytest.mark.parametrize("b_layout", ["nk", "kn"])
def test_every_float_problem_has_a_kernel_at_least_as_exact(precision: str, b_layout: str) -> None:
    spec = choose(replace(FLOAT, precision=precision, b_layout=b_layout), H200)
    order = ("ieee", "tf32x3", "tf32")
    assert order.index(spec.precision) <= order.index(precision)


def test_large_problems_take_large_tiles_and_small_ones_small_tiles() -> None:
    large = choose(replace(PROBLEM, m=8192, n=8192), H200)
    small = choose(replace(PROBLEM, m=512, n=512, k=512), H200)
    assert large.tile[0] * large.tile[1] >= 128 * 256
    assert small.tile[0] * small.tile[1] <= 64 * 64
    assert choose(replace(FLOAT, precision="tf32"), H200).precision == "tf32"


def test_a_kernel_that_was_not_measured_serves_by_name_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = replace(PROBLEM, k=4104)  # of which no other test keeps a choice
    best = choose(replace(problem, k=4112), H200).name
    monkeypatch.setitem(KERNELS, best, replace(KERNELS[best], h200_tflops=None))
    assert choose(problem, H200).name != best
    assert choose(problem, H200, name=best).name == best


def test_a_grid_that_stays_fills_the_gpu_with_whole_clusters() -> None:
    spec = KERNELS["wgmma_cluster_128x256x64_stage4"]
    assert spec.grid(PROBLEM, H200) == 132
    assert spec.grid(PROBLEM, replace(H200, sm_count=7)) == 6
    assert spec.grid(replace(PROBLEM, m=1, n=1), H200) == 2
    assert KERNELS["wgmma_split4_128x128x64_stage6"].grid(replace(PROBLEM, m=1, n=1), H200) == 4


def test_copies_of_unaligned_operands_are_counted() -> None:
    spec = replace(KERNELS["wgmma_store_128x256x64_stage3"], h200_tflops=600)
    aligned = predicted_us(spec, PROBLEM, H200)
    assert predicted_us(spec, replace(PROBLEM, aligned_a=False), H200) > aligned + 10


def test_no_problem_takes_a_naive_kernel_by_choice() -> None:
    for problem in (PROBLEM, FLOAT, replace(PROBLEM, m=3000, n=700, k=50)):
        assert "naive" not in choose(problem, H200).name


def test_prediction_counts_whole_waves() -> None:
    spec = KERNELS["mma_128x256x64_stage3"]
    assert resident_blocks(spec, H200) == 1
    assert resident_blocks(KERNELS["mma_128x128x64_stage3"], H200) == 2
    one_wave = predicted_us(spec, replace(PROBLEM, m=128 * 132, n=256), H200)
    assert predicted_us(spec, replace(PROBLEM, m=128 * 67, n=256), H200) == one_wave
    assert predicted_us(spec, replace(PROBLEM, m=128, n=256), H200) < one_wave
    two_waves = predicted_us(spec, replace(PROBLEM, m=128 * 133, n=256), H200)
    three_waves = predicted_us(spec, replace(PROBLEM, m=128 * 265, n=256), H200)
    assert two_waves > 1.9 * one_wave
    assert three_waves - two_waves == pytest.approx(two_waves - one_wave)
