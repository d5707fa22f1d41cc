"""What a single run is planned for: the problem alone, or a glance at the analysis, decides."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from gemm_core.runtime.device import Device
from sddmm.backends import base
from sddmm.backends.cuda import one_off, tile_costs
from sddmm.backends.cuda.analysis import Analysis
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.cost_model import DeviceModel
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.layouts import TileWork
from sddmm.backends.cuda.one_off import Candidate, Choice, OneOffPlanner
from sddmm.backends.cuda.pattern_layouts import AheadLayouts
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest
from sddmm.problem import SddmmProblem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, emulated_gpu, random_pattern
from tests.conftest import H200

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")


@pytest.fixture(autouse=True)
def _no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200's figures, whatever was measured here."""
    for module in (one_off, tile_costs):
        monkeypatch.setattr(module, "device_model", scaled_by_sm_count)


def choose(
    size: int, nnz: int, k: int, dtype: torch.dtype = torch.float16, by_rows: bool = False
) -> Choice:
    problem = SddmmProblem(
        m=size, n=size, k=k, nnz=nnz, dtype=dtype, out_dtype=dtype, precision="ieee",
        index_dtype=torch.int32, heads=None, device=torch.device("cuda", 0),
    )  # fmt: skip
    return OneOffPlanner(tuple(KERNELS.values())).choose(problem, H200, by_rows)


def test_sparse_patterns_are_gathered_without_a_look() -> None:
    for choice in (choose(10_000, 10_000, 64), choose(10**6, 15_000_000, 64), choose(300, 0, 64)):
        assert [c.kernel.name for c in choice.candidates] == ["row_gather"]
        assert choice.late is None


@pytest.mark.parametrize(
    ("size", "nnz", "k", "dtype", "by_rows", "kernel"),
    [
        (4000, 160_000, 1024, torch.float32, False, "gather_lines"),
        (4000, 160_000, 700, torch.float64, False, "gather_lines"),
        (4000, 160_000, 1022, torch.float32, False, "row_gather"),  # rows are not of 16-byte chunks
        (4000, 160_000, 256, torch.float32, False, "row_gather"),  # a launch alone, by gather_csr
        (4000, 160_000, 1024, torch.float32, True, "row_gather"),  # gather_rows is as fast
        (10_000, 700_000, 1024, torch.float32, False, "row_gather"),  # many waves, maybe of a mask
        (4000, 160_000, 1024, torch.float16, False, "row_gather"),
    ],
)
def test_few_waves_of_long_rows_are_gathered_by_lines(
    size: int, nnz: int, k: int, dtype: torch.dtype, by_rows: bool, kernel: str
) -> None:
    assert choose(size, nnz, k, dtype, by_rows).candidates[-1].kernel.name == kernel


def test_a_plan_tells_what_was_predicted_of_alike_patterns() -> None:
    """Those of 42,240 nonzeros and twelve heads are five waves, these six, which are analysed."""
    with emulated_gpu():
        plan = sddmm.plan(
            random_pattern(1000, 1000, 42_300), k=256, dtype=torch.float32, heads=12, calls=1,
            backend="cuda",
        )  # fmt: skip
        assert "kernel   gather_lines" in plan.explain()


def test_what_is_gathered_before_tiles_are_prepared_is_gathered() -> None:
    """A quarter of 2048 x 2048, and a twentieth of 16384 x 16384, whether they are masks or not."""
    for choice in (choose(2048, 1_050_000, 128), choose(16_384, 13_400_000, 64)):
        assert [c.kernel.name for c in choice.candidates] == ["row_gather"]
        assert choice.late is None


def test_dense_patterns_are_computed_by_every_tile_without_a_look() -> None:
    """At half of all entries it does not matter how they are spread."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        choice = choose(8192, 8192 * 4096, 128, dtype)
        assert choice.candidates[0].kernel.name.startswith("tile_")
        assert choice.candidates[1].kernel.name == "row_gather"
        assert choice.late is None


def test_tiles_that_the_host_does_not_wait_for_pay_in_smaller_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of 1024 x 1024; of the two kernels the first is tried before the other."""
    for most, names in ((2**21, ["tile_simt_sliced_64x64x16", "row_gather"]), (0, ["row_gather"])):
        monkeypatch.setattr(tile_costs, "MOST_AT_ONCE", most)
        choice = choose(1024, 524_288, 300, torch.float32)
        assert [c.kernel.name for c in choice.candidates] == names
        assert choice.late is None


def test_the_analysis_decides_where_only_a_mask_is_worth_tiles() -> None:
    for k in (384, 512):
        choice = choose(16_384, 10_000_000, k, torch.float32)
        assert [c.kernel.name for c in choice.candidates] == ["row_gather"]
        assert choice.late is not None
        assert choice.late.kernel.name.startswith("tile_")
        assert choice.late.request.row_ids_too


def test_masks_of_short_rows_that_are_gathered_by_rows_need_no_look() -> None:
    """Rows of B are then found in L1, which tiles do not beat by what waiting takes."""
    choice = choose(16_384, 10_000_000, 64, torch.float32, by_rows=True)
    assert [c.kernel.name for c in choice.candidates] == ["row_gather"]
    assert choice.late is None


@pytest.mark.parametrize(("k", "dtype"), [(128, torch.float32), (512, torch.float16)])
def test_a_sparse_mask_is_looked_for_and_its_tiles_are_listed(k: int, dtype: torch.dtype) -> None:
    """A window of 513 in 16,384 columns; 96 of 100 tiles are empty."""
    choice = choose(16_384, 10_000_000, k, dtype, by_rows=True)
    tiles = choice.late or choice.candidates[0]
    assert tiles.kernel.name.startswith("tile_")
    assert tiles.lists_tiles
    assert choice.is_probed == (choice.late is not None)


def test_tiles_are_not_listed_where_few_could_be_empty() -> None:
    choice = choose(8192, 8192 * 4096, 128)
    assert not choice.candidates[0].lists_tiles


def test_no_pattern_loses_much_by_tiles_without_a_look() -> None:
    """A mask would gain, but tiles take nearly twice as long as gathering a random pattern."""
    choice = choose(8192, 3_350_000, 384, torch.float32)
    assert choice.candidates[0].kernel.name == "row_gather"


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_tile_kernel_that_is_good_for_masks_and_others_is_taken_at_once(by_rows: bool) -> None:
    choice = choose(8192, 6_700_000, 512, by_rows=by_rows)
    assert choice.candidates[0].kernel.name.startswith("tile_")
    assert choice.late is None


@pytest.mark.parametrize("name", ["tile_mma_64x64x32", "tile_wgmma_async_128x256x64"])
def test_a_plan_for_one_call_is_made_while_the_pattern_is_analysed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = KERNELS[name]
    request = AnalysisRequest(tiles.tile_sizes[0], tile_row_offsets=True)
    choice = Choice(
        [Candidate(tiles, request, 1.0), Candidate(KERNELS["row_gather"], ROW_IDS, 2.0)]
    )
    # No problem is small enough to emulate and large enough for tiles at once.
    monkeypatch.setattr(OneOffPlanner, "_choose", lambda *_: choice)
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    steps: list[str] = []
    tiles_of, wait = AheadLayouts.tiles, AheadLayouts.wait

    def noted_tiles(layouts: AheadLayouts, block: tuple[int, int]) -> TileWork:
        steps.append("tiles")
        return tiles_of(layouts, block)

    def noted_wait(layouts: AheadLayouts) -> Analysis:
        steps.append("wait")
        return wait(layouts)

    monkeypatch.setattr(AheadLayouts, "tiles", noted_tiles)
    monkeypatch.setattr(AheadLayouts, "wait", noted_wait)
    a, b = torch.randn(256, 64).half(), torch.randn(256, 64).half().t()
    scattered = random_pattern(256, 256, 3000, layout="csr")
    in_runs = (torch.arange(256) % 128 < 64).expand(256, 256)
    runs = SparsePattern.from_coo(*in_runs.nonzero(as_tuple=True), (256, 256)).to_csr()
    for pattern in (scattered, runs):
        steps.clear()
        with emulated_gpu() as launches:
            plan = sddmm.plan(pattern, k=64, dtype=torch.float16, calls=1)
            for _ in range(3):  # launched once, bound, and packed
                assert_close(plan.run(a, b), pattern, a, b)
        assert steps == ["tiles", "wait"]
        assert launches == ["analyse", *[tiles.name] * 3]


def band(n: int, reach: int) -> SparsePattern:
    at = torch.arange(n)
    mask = (at[:, None] - at).abs() <= reach
    return SparsePattern.from_coo(*mask.nonzero(as_tuple=True), (n, n)).to_csr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_mask_is_computed_by_tiles_and_scattered_nonzeros_are_gathered(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At sizes that a CPU computes, with a slow L2, so that gathering takes long, and the choice
    left to the analysis."""
    name = "tile_mma_64x64x32" if dtype == torch.float16 else "tile_simt_64x64x16"
    tiles = KERNELS[name]
    request = AnalysisRequest(tiles.tile_sizes[0], tile_row_offsets=True, row_ids_too=True)
    choice = Choice([Candidate(KERNELS["row_gather"], ROW_IDS, 0.0)], Candidate(tiles, request, 1))

    def slow_l2(device: Device) -> DeviceModel:
        return replace(scaled_by_sm_count(device), l2_bytes=1e11)

    for module in (one_off, tile_costs):
        monkeypatch.setattr(module, "device_model", functools.cache(slow_l2))
    # No problem is small enough to emulate and large enough to wait for its analysis.
    monkeypatch.setattr(OneOffPlanner, "_choose", lambda *_: choice)
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    mask = band(400, 40)
    scattered = random_pattern(400, 400, 200, layout="csr")
    unsorted = SparsePattern.from_csr(mask.crow_indices, 399 - mask.col_indices, (400, 400))
    a, b = torch.randn(400, 40).to(dtype), torch.randn(40, 400).to(dtype)
    for pattern in (mask, scattered, unsorted):
        with emulated_gpu() as launches:
            plan = sddmm.plan(pattern, k=40, dtype=dtype, calls=1)
            assert_close(plan.run(a, b), pattern, a, b)
        assert launches == ["analyse", name if pattern is mask else "row_gather"]
        assert f"kernel   {launches[1]}" in plan.explain()


def test_few_listed_tiles_pay_and_many_do_not() -> None:
    """2,442 full tiles hold these nonzeros, of 65,536; a window of 513 columns has some 2,800."""
    choice = choose(16_384, 10_000_000, 128, torch.float32, by_rows=True)
    assert choice.most_tiles is not None
    assert 2 * 2442 < choice.most_tiles.of_mask < 65_536 / 2
    assert 2442 < choice.most_tiles.of_others < 65_536 / 2


@pytest.mark.parametrize(("k", "nnz"), [(1024, 2**20), (2048, 2**20), (2048, 2**21)])
def test_few_large_tiles_pay_though_more_would_take_less_time(k: int, nnz: int) -> None:
    """64 tiles of 128 x 256 occupy half of the multiprocessors."""
    choice = choose(16_384, nnz, k, by_rows=True)
    assert choice.most_tiles is not None
    assert choice.most_tiles.of_mask > 3 * nnz / (128 * 256)


def test_a_wrong_pattern_without_entries_is_planned() -> None:
    """Its indices are refused later."""
    for m, n in ((1000, 0), (0, 1000)):
        problem = SddmmProblem(
            m=m, n=n, k=128, nnz=2_000_000, dtype=torch.float16, out_dtype=torch.float16,
            precision="ieee", index_dtype=torch.int32, heads=2, device=torch.device("cuda", 0),
        )  # fmt: skip
        choice = OneOffPlanner(tuple(KERNELS.values())).choose(problem, H200, by_rows=True)
        assert choice.candidates[-1].kernel.name == "row_gather"
