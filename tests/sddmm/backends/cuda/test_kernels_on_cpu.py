"""The GPU kernels' sources, run on the CPU: every index, guard and tail, without a GPU.

Integers small enough to be exact, whatever the order of summation.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

import sddmm
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.kernels.gather_lines.host import GATHER_LINES
from sddmm.backends.cuda.kernels.persistent_tile import PersistentTileKernel
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.row_gather.host import RowGather
from sddmm.backends.cuda.kernels.tile_wgmma.host import prefetch_depth
from sddmm.backends.cuda.kernels.tile_wgmma_async.host import sampling_macros
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, emulated_gpu, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.exact_samples import check
from tests.sddmm.backends.cuda.representatives import ONE_OF_EACH_SOURCE

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")


EVERY_SPEC = cases(SPECS.values(), here=ONE_OF_EACH_SOURCE.values(), name=lambda spec: spec.name)


@pytest.mark.parametrize("spec", EVERY_SPEC)
@pytest.mark.parametrize("k", cases([0, 1, 40, 100], here=[0, 1, 100]))
def test_ragged_sizes(spec: KernelSpec, k: int) -> None:
    pattern = random_pattern(67, 131, 700, layout="csr")
    if k < spec.min_k:
        with pytest.raises(ValueError, match="nothing to multiply where k is 0"):
            check(spec.name, pattern, k, spec.dtypes[0])
        return
    if spec is GATHER_LINES and k % 4:
        with pytest.raises(ValueError, match=f"loads 16 bytes at a time, got rows of {4 * k}"):
            check(spec.name, pattern, k, spec.dtypes[0])
        return
    check(spec.name, pattern, k, spec.dtypes[0], precision=spec.precision)


@pytest.mark.parametrize("spec", EVERY_SPEC)
def test_unaligned_rows_heads_and_scaling(spec: KernelSpec) -> None:
    pattern = random_pattern(30, 20, 90, layout="coo", shuffled=True)
    check(
        spec.name, pattern, 24, spec.dtypes[-1], heads=2, precision=spec.precision,
        aligned=False, scaled=True,
    )  # fmt: skip


# A size for each dtype of GATHERED, and another dtype for each size.
GATHERED = SPECS["row_gather"].dtypes


@pytest.mark.parametrize(
    ("dtype", "k"),
    cases(
        itertools.product(GATHERED, [32, 64, 96, 128, 144, 160, 256, 300, 352]),
        here=list(zip([*GATHERED, *GATHERED], [160, 96, 144, 64, 352, 300, 32, 256], strict=True)),
    ),
)
def test_gather_in_one_pass_and_in_many(dtype: torch.dtype, k: int) -> None:
    check("row_gather", random_pattern(9, 40, 250, layout="csr"), k, dtype)


@pytest.mark.parametrize(
    ("dtype", "row_bytes"),
    cases(
        itertools.product(GATHERED, [128, 256, 384, 448, 640, 768, 1024]),
        here=[*zip(GATHERED, [256, 128, 1024, 768], strict=True), (torch.float32, 640)],
    ),
)
def test_gather_of_long_rows(dtype: torch.dtype, row_bytes: int) -> None:
    """Groups of one row and of two. Odd nonzeros load rows of 128 bytes in another order."""
    one, pattern = replace(H200, sm_count=1), random_pattern(15, 1200, 8_200, layout="csr")
    check("row_gather", pattern, row_bytes // dtype.itemsize, dtype, device=one)


@pytest.mark.parametrize(("odd", "width"), [(33, 2), (401, 2), (33, 4), (201, 8)])
def test_gather_of_rows_that_start_at_few_bytes(odd: int, width: int) -> None:
    """k = 4 or 2 or 1 times an odd number of halves, in one pass and in several."""
    check("row_gather", random_pattern(9, 40, 250, layout="csr"), odd * width // 2, torch.float16)


@pytest.mark.parametrize(
    ("name", "dtype"), [("row_gather", torch.float16), ("windows", torch.float32)]
)
def test_a_warp_goes_from_row_to_row(name: str, dtype: torch.dtype) -> None:
    """Groups of one row, of many, and ends of chunks within them, by few warps."""
    few = replace(H200, sm_count=2)
    check(name, random_pattern(40, 700, 20_000, layout="csr"), 8, dtype, device=few)


@pytest.mark.parametrize(("dtype", "heads"), [(torch.float16, None), (torch.float64, 2)])
def test_gather_by_slices_of_k_that_stay_in_l2(dtype: torch.dtype, heads: int | None) -> None:
    """Seven and a half slices; alpha and values count once."""
    small = replace(H200, l2_bytes=1000)
    pattern = random_pattern(9, 40, 250, layout="coo", shuffled=True)
    k = 7 * 512 // dtype.itemsize + 3 * 16 // dtype.itemsize
    _, launches = check("row_gather", pattern, k, dtype, heads=heads, scaled=True, device=small)
    assert launches.count("row_gather") == 8


WGMMA = [name for name, spec in SPECS.items() if isinstance(spec, PersistentTileKernel)]
ONE_WGMMA, ONE_ASYNC = "tile_wgmma_256x152x64", "tile_wgmma_async_128x224x64"
ONE_LISTED, ONE_PANEL = "tile_wgmma_listed_128x256x64", "tile_wgmma_panel_128x256x64"
every_way_of_storing = pytest.mark.parametrize(
    ("name", "scaled", "out_dtype"),
    cases(
        itertools.product(WGMMA, [False, True], [torch.float16, torch.float32]),
        here=[
            (ONE_WGMMA, False, torch.float16),
            (ONE_WGMMA, True, torch.float32),
            (ONE_ASYNC, True, torch.float16),
            (ONE_ASYNC, False, torch.float32),
            (ONE_PANEL, False, torch.float32),
            (ONE_PANEL, True, torch.float16),
            (ONE_LISTED, True, torch.float32),
            (ONE_LISTED, False, torch.float16),
        ],
    ),
)


@every_way_of_storing
def test_wgmma_tiles_by_one_cluster(name: str, scaled: bool, out_dtype: torch.dtype) -> None:
    """Nine tiles: pairs in the same columns and in different ones, and one left alone. Rows of few
    and of more nonzeros than a warp looks ahead for."""
    pair = replace(H200, sm_count=2)
    scattered = random_pattern(300, 600, 9_000, layout="coo")
    full = torch.arange(600)
    rows = torch.cat([scattered.row_ids.long(), torch.full_like(full, 150)])
    cols = torch.cat([scattered.col_indices.long(), full])
    pattern = SparsePattern.from_coo(rows, cols, (300, 600))
    check(name, pattern, 200, torch.float16, scaled=scaled, out_dtype=out_dtype, device=pair)


@pytest.mark.parametrize("name", cases(WGMMA, here=[ONE_WGMMA, ONE_ASYNC, ONE_LISTED, ONE_PANEL]))
def test_wgmma_tiles_of_a_sparse_list_and_of_heads(name: str) -> None:
    """Neighbours in the list that share nothing, and a pair across the end of a head."""
    rows = torch.tensor([0, 3, 130, 260, 299])
    pattern = SparsePattern.from_coo(rows, torch.tensor([5, 700, 300, 10, 800]), (300, 900))
    check(name, pattern, 70, torch.bfloat16, heads=3, device=replace(H200, sm_count=2))


@pytest.mark.parametrize(("nnz", "depth"), [(0, 1), (250, 1), (1280, 3), (25_600, 4)])
def test_wgmma_looks_ahead_as_far_as_most_rows_of_tiles_reach(nnz: int, depth: int) -> None:
    assert prefetch_depth(nnz, rows=100) == depth


@pytest.mark.parametrize(
    ("nnz", "lanes", "depth"),
    [(0, 8, 1), (1280, 8, 3), (2560, 8, 4), (4000, 32, 2), (25_600, 32, 4)],
)
def test_longer_rows_of_tiles_are_sampled_by_more_lanes(nnz: int, lanes: int, depth: int) -> None:
    sampling = sampling_macros(nnz, rows=100)
    assert (sampling["LANES_PER_ROW"], sampling["PREFETCH_DEPTH"]) == (lanes, depth)


@every_way_of_storing
def test_wgmma_tiles_of_a_mask(name: str, scaled: bool, out_dtype: torch.dtype) -> None:
    """Groups of rows that are in one piece, some at odd places, and groups with rows in two."""
    row, column = torch.arange(150)[:, None], torch.arange(300)
    window = ((row - column + 60).abs() <= 40) | ((column < 9) & (row > 100))
    rows, cols = window.nonzero(as_tuple=True)
    pattern = SparsePattern.from_coo(rows, cols, (150, 300))
    runs = int((cols.diff() != 1).sum()) + 1
    assert sampling_macros(pattern.nnz, 4 * 128, distinct=True, runs=runs)["SEGMENTS"]
    device = replace(H200, sm_count=2)
    check(name, pattern, 24, torch.float16, scaled=scaled, out_dtype=out_dtype, device=device)


@pytest.mark.parametrize("name", ["tile_wgmma_async_128x256x64", ONE_LISTED])
@pytest.mark.parametrize("k", cases([192, 330], here=[330]))
def test_warpgroups_that_hand_on_in_turns(name: str, k: int) -> None:
    """Six tiles a block, by one warpgroup a stage ahead of the other, and by both at once."""
    pattern = random_pattern(500, 700, 9_000, layout="csr")
    pair = replace(H200, sm_count=2)
    check(name, pattern, k, torch.float16, out_dtype=torch.float16, device=pair)


@pytest.mark.parametrize("k", cases([64, 80, 97, 127, 128], here=[80, 127]))
def test_wgmma_takes_as_much_of_its_last_stage_as_k_fills(k: int) -> None:
    check(WGMMA[0], random_pattern(67, 131, 700, layout="csr"), k, torch.float16)


@pytest.mark.parametrize("heads", [None, 2])
def test_hybrid_of_a_dense_block_and_scattered_nonzeros(heads: int | None) -> None:
    block = torch.stack(torch.meshgrid(torch.arange(128), torch.arange(128), indexing="ij"))
    rows, cols = block.reshape(2, -1)
    scattered = random_pattern(300, 400, 500, layout="coo")
    rows = torch.cat([rows, scattered.row_ids.long()])
    cols = torch.cat([cols, scattered.col_indices.long()])
    pattern = SparsePattern.from_coo(rows, cols, (300, 400))
    _, launches = check("hybrid", pattern, 64, torch.float16, heads=heads)
    assert launches[-2].startswith("tile_")
    assert launches[-1] == "row_gather"


@pytest.mark.parametrize(
    ("layout", "dtype", "precision", "capability", "kernel", "k"),
    [
        ("csr", torch.float16, "ieee", (8, 9), "tile_mma", 24),
        ("coo", torch.bfloat16, "ieee", (8, 0), "tile_mma", 64),
        ("csr", torch.float32, "tf32", (9, 0), "tile_mma_tf32", 64),
        ("coo", torch.float32, "ieee", (8, 9), "tile_simt", 64),
    ],
)
def test_every_tile_of_a_pattern_that_is_dense_and_uniform(
    layout: str, dtype: torch.dtype, precision: str, capability: tuple[int, int],
    kernel: str, k: int,
) -> None:  # fmt: skip
    """One pass finds the nonzeros of all tiles, ragged ones too."""
    device = replace(H200, capability=capability, sm_count=2)
    pattern = random_pattern(150, 235, 15_000, layout=layout, index_dtype=torch.int32)
    _, launches = check(None, pattern, k, dtype, precision=precision, heads=2, device=device)
    assert launches[0] == "analyse"
    assert launches[1].startswith(kernel)
    assert len(launches) == 2


def test_a_pattern_is_analysed_once_for_problems_that_ask_for_the_same() -> None:
    """By tiles and by rows, however often either is asked for."""
    pattern = random_pattern(150, 235, 15_000, layout="csr", index_dtype=torch.int32)
    launched: list[str] = []
    for kernel, k in ((None, 24), ("row_gather", 40), (None, 32), (None, 16), ("row_gather", 8)):
        device = replace(H200, sm_count=2)
        launched += check(kernel, pattern, k, torch.float16, device=device)[1]
    assert launched.count("analyse") == 2


@pytest.mark.parametrize("calls", [1, MANY_CALLS])
def test_unsorted_nonzeros_are_gathered_by_row_if_the_plan_is_used_again(calls: int) -> None:
    pattern = random_pattern(60, 70, 500, layout="coo", shuffled=True)
    problem = make_problem(pattern, k=16, dtype=torch.float16)
    plan = RowGather.plan
    # Its values are the same in either case: only what the kernel is given shows the difference.
    with mock.patch.object(RowGather, "plan", autospec=True, side_effect=plan) as planned:
        CudaBackend().prepare(pattern, problem, calls=calls)
    nonzeros = planned.call_args.args[1]
    assert (nonzeros.perm is not None) == (calls > 1)
    assert bool((nonzeros.rows.diff() >= 0).all()) == (calls > 1)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_dense_patterns_that_are_unsorted_or_leave_tiles_empty_are_counted(layout: str) -> None:
    even = random_pattern(150, 235, 15_000, layout="csr")
    rows, cols = even.row_ids, even.col_indices
    uneven = SparsePattern.from_coo(rows, cols + 705 * (rows >= 75), (150, 940))
    if layout == "csr":
        unsorted = SparsePattern.from_csr(even.crow_indices, 234 - cols, even.shape)
        uneven = uneven.to_csr()
    else:
        unsorted = random_pattern(150, 235, 15_000, layout="coo", shuffled=True)
    for pattern in (unsorted, uneven):
        _, launches = check(None, pattern, 64, torch.float16, device=replace(H200, sm_count=2))
        assert launches[-2] == "tile_bounds"
        assert launches[-1].startswith("tile_")


def test_duplicates_and_unsorted_columns_in_tiles() -> None:
    crow = torch.tensor([0, 5, 5, 12])
    cols = torch.tensor([9, 3, 3, 140, 0, 7, 7, 7, 150, 2, 1, 0])
    pattern = SparsePattern.from_csr(crow, cols, (3, 151))
    for name in (
        "tile_mma_64x64x32",
        "tile_wmma_m16n16k16",
        "row_gather",
        "windows",
        ONE_WGMMA,
        ONE_ASYNC,
    ):
        check(name, pattern, 16, torch.float16)
    check("tile_simt_64x64x16", pattern, 16, torch.float32)


@pytest.mark.parametrize("lazy", [torch._neg_view, lambda x: torch._efficientzerotensor(x.shape)])
def test_views_that_torch_makes_true_when_they_are_read(lazy: Any) -> None:
    pattern = random_pattern(20, 30, 90)
    a, b_t = torch.randn(20, 8), torch.randn(30, 8)
    plan = sddmm.plan(pattern, k=8, dtype=torch.float32, backend="cuda")
    for left, right in ((lazy(a), b_t), (a, lazy(b_t))):
        dense = (left + 0) @ (right + 0).mT
        expected = dense[pattern.row_ids, pattern.col_indices]
        torch.testing.assert_close(plan.run(left, right.mT), expected)


def test_a_pattern_is_freed_at_once_whatever_was_prepared_for_it() -> None:
    """Its plans hold no reference to it, which would be a cycle."""
    for nnz, dtype in ((500, torch.float32), (60_000, torch.float16)):
        for kernel in (None, "row_gather", "hybrid") if dtype == torch.float16 else (None,):
            pattern = random_pattern(300, 470, nnz, layout="csr")
            with emulated_gpu(replace(H200, sm_count=8)):
                sddmm.plan(pattern, k=64, dtype=dtype, kernel=kernel, backend="cuda")
            alive = weakref.ref(pattern)
            gc.disable()
            try:
                del pattern
                assert alive() is None, (nnz, kernel)
            finally:
                gc.enable()


def test_a_dense_pattern_whose_columns_are_in_no_order() -> None:
    """Whatever the planner prefers for sorted columns: their order is known after the analysis."""
    m = n = 130
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(m).repeat_interleave(2 * n)
    cols = torch.randint(n, (2 * m * n,), generator=generator)
    check(None, SparsePattern.from_coo(rows, cols, (m, n)), 1, torch.float32)
