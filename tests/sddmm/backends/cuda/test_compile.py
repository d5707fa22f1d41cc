"""Every SDDMM kernel compiles, as its plans ask for it, for every architecture we name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from gemm_core.runtime.compile import CACHE_VARIABLE, Cubin, compile_kernel
from gemm_core.runtime.device import Device
from sddmm.backends.cuda import analysis, comparison, loader
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.kernels.add_rows.host import ADD_ROWS
from sddmm.backends.cuda.kernels.attention_delta.host import ATTENTION_DELTA
from sddmm.backends.cuda.kernels.attention_gradient.host import ATTENTION_GRADIENT
from sddmm.backends.cuda.kernels.attention_sums.host import ATTENTION_SUMS
from sddmm.backends.cuda.kernels.attention_tile_gradient.host import ATTENTION_TILE_GRADIENT
from sddmm.backends.cuda.kernels.column_runs import host as column_runs
from sddmm.backends.cuda.kernels.gather_csr import host as gather_csr
from sddmm.backends.cuda.kernels.gather_lines.host import GATHER_LINES, GatherLines
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.place_values.host import PLACE_VALUES
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS, BLOCK_KERNELS, SPECS
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.kernels.row_softmax import host as row_softmax
from sddmm.backends.cuda.kernels.row_starts.host import ROW_STARTS
from sddmm.backends.cuda.kernels.scale_samples.host import SCALE_SAMPLES
from sddmm.backends.cuda.kernels.send_rows.host import SEND_ROWS
from sddmm.backends.cuda.kernels.signals.host import SIGNALS
from sddmm.backends.cuda.kernels.softmax_shares.host import SOFTMAX_SHARES
from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER
from sddmm.backends.cuda.kernels.spmm_merge.host import SPMM_MERGE
from sddmm.backends.cuda.kernels.spmm_rows.host import SPMM_ROWS
from sddmm.backends.cuda.kernels.spmm_shares.host import SPMM_SHARES
from sddmm.backends.cuda.kernels.spmm_tile.host import SPMM_TILES
from sddmm.backends.cuda.kernels.spmm_tile_sums.host import SPMM_TILE_SUMS
from sddmm.backends.cuda.kernels.spmm_weights.host import SPMM_WEIGHTS, WEIGHTS_BY_NONZERO
from sddmm.backends.cuda.kernels.spmm_windows.host import SPMM_WINDOWS
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.kernels.tile_bounds import host as tile_bounds
from sddmm.backends.cuda.kernels.tile_lines import host as tile_lines
from sddmm.backends.cuda.kernels.tile_list import host as tile_list
from sddmm.backends.cuda.kernels.tile_masks import host as tile_masks
from sddmm.backends.cuda.kernels.tile_mma.host import TileMma
from sddmm.backends.cuda.kernels.tile_stats import host as tile_stats
from sddmm.backends.cuda.kernels.tile_warp.host import TileWarp
from sddmm.backends.cuda.layouts import (
    Nonzeros,
    TileList,
    TileOffsets,
    TileWork,
    WindowList,
    window_list,
)
from sddmm.backends.cuda.spec import KERNEL_FOLDER, KernelSpec
from sddmm.backends.cuda.spec import macros as macros_of
from sddmm.dtypes import DTYPES, PRECISIONS, is_less_exact
from sddmm.problem import SddmmProblem
from tests.cases import cases
from tests.conftest import H200, shared_folder
from tests.sddmm.backends.cuda.representatives import ONE_OF_EACH_SOURCE

pytest.importorskip("cuda.core", reason="needs cuda.core (pip install '.[compile]')")

DEVICES = {
    "sm_80": replace(H200, capability=(8, 0), shared_bytes=166_912),
    "sm_89": replace(H200, capability=(8, 9), shared_bytes=101_376),
    "sm_90a": H200,
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(shared_folder(tmp_path_factory, "sddmm-kernels")))
        yield


class Compiler(loader.CudaRuntime):
    """Compiles what would be loaded, and keeps it by kernel."""

    def __init__(self, device: Device) -> None:
        self.arch = device.arch
        self.cubins: dict[str, list[Cubin]] = {}

    def load_kernel(self, spec: KernelSpec, macros: Any, parameters: Any, index: int) -> Any:
        macros = loader.compile_macros(spec, macros, parameters)
        cubin = compile_kernel(spec.path, macros, self.arch, loader.INCLUDE)
        self.cubins.setdefault(spec.name, []).append(cubin)
        return mock.Mock(parameters=parameters, blocks_per_sm=spec.min_blocks)

    def tensor_map(self, *_: object) -> bytes:
        return bytes(128)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Compiler]:
    def use(device: Device) -> Compiler:
        made = Compiler(device)
        monkeypatch.setattr(loader, "runtime", made)
        return made

    return use


class OneNonzero:
    """The arrays of a pattern with one nonzero, in one tile of this size. is_mask: its columns are
    known to be distinct, and its nonzeros to be neighbours."""

    def __init__(self, block: tuple[int, int], is_mask: bool) -> None:
        self.index, self.block = torch.zeros(1, dtype=torch.int32), block
        self.is_mask = is_mask

    def by_row(self) -> Nonzeros:
        return Nonzeros(self.index, self.index, None)

    def windows(self, window: tuple[int, int]) -> WindowList:
        return window_list(self.by_row(), (1, 1), window)

    def tiles(self, block: tuple[int, int], min_nnz: int = 1) -> TileWork:
        tiles = TileList(torch.zeros(1, 2, dtype=torch.int32), self.block)
        bounds = torch.zeros(1, self.block[0], 2, dtype=torch.int32)
        offsets = TileOffsets(bounds, 2 * self.block[0], 0, 0, 2)
        return TileWork(tiles, offsets, self.index, None, self.is_mask, runs=1)


def bind(
    spec: KernelSpec,
    problem: SddmmProblem,
    device: Device,
    pitch: int,
    weighted: bool,
    is_mask: bool = False,
) -> None:
    """Ask for the kernel as a plan does, without values and, if `weighted`, with them, for operands
    whose rows lie `pitch` elements apart."""
    layouts = OneNonzero(spec.tile[:2], is_mask)
    (plan,) = spec.prepare(layouts, problem, scaled_by_sm_count(device))
    operand = torch.zeros(8, pitch, dtype=problem.dtype)[:, : problem.k]
    launch = plan.bind(operand, operand)
    for values in (0, 1) if weighted else (0,):
        launch(values, 0, 1.0)


def problem_of(
    spec: KernelSpec,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    k: int,
    precision: str = "",
    nnz: int = 1,
) -> SddmmProblem:
    return SddmmProblem(
        8, 8, k, nnz, dtype, out_dtype, precision or spec.precision, torch.int32, None,
        torch.device("cuda", 0),
    )  # fmt: skip


def sizes_of(spec: KernelSpec, dtype: torch.dtype) -> list[tuple[int, int]]:
    """k, and elements between rows: each way in which a row of k is cut up and may be aligned."""
    if isinstance(spec, TileWarp):
        return [(32, 0), (64, 0), (128, 0), (256, 0), (257, 2)]
    if isinstance(spec, GatherLines):
        return [(100, 0), (256, 0)]
    if spec.max_k is not None:  # k divides shared memory
        return [*((k, 0) for k in range(64, spec.max_k + 1, 64)), (spec.max_k - 1, 2)]
    if spec.tile != (0, 0, 0):
        short = [(64, 0), (63, 2)] if isinstance(spec, TileMma) and spec.short_min_blocks else []
        return [(256, 0), (257, 2), *short]
    sizes = (32, 64, 96, 128, 200, 252, 256, 508, 512, 1000)
    few = dtype in (torch.bfloat16, torch.float64)  # as float16; as float32, with fewer registers
    return [(k, 0) for k in (sizes[::4] if few else sizes)] + [(257, 2)]


def usual_outs(dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    return dtype, torch.promote_types(dtype, torch.float32)


FIRST, LAST, ALL = slice(0, 1), slice(-1, None), slice(None)


@pytest.mark.parametrize(
    ("name", "arch", "which"),
    cases(
        itertools.product(SPECS, DEVICES, [FIRST, LAST, ALL]),
        here=[
            *((name, "sm_80", FIRST) for name in ONE_OF_EACH_SOURCE),
            *((name, "sm_90a", LAST) for name in ONE_OF_EACH_SOURCE),
        ],
        name=lambda case: f"{case[0]}-{case[1]}-{case[2].start}-{case[2].stop}",
    ),
)
def test_every_kernel_compiles_without_spilling(
    name: str, arch: str, which: slice, compiler: Callable[[Device], Compiler]
) -> None:
    """One size or all; where all, on Hopper with every dtype of operands and of results."""
    spec, device = SPECS[name], DEVICES[arch]
    made = compiler(device)
    assert device.arch == arch
    every_dtype = arch == "sm_90a" and which == ALL
    for dtype in spec.dtypes if every_dtype else spec.dtypes[:1]:
        sizes = sizes_of(spec, dtype)[which]
        outs = tuple(DTYPES) if every_dtype else (torch.promote_types(dtype, torch.float32),)
        for i in range(max(len(sizes), len(outs))):
            (k, extra), out_dtype = sizes[i % len(sizes)], outs[i % len(outs)]
            if spec.tile[0] and dtype != spec.dtypes[0] and out_dtype not in usual_outs(dtype):
                continue  # the first dtype has shown how a tile's values are rounded
            problem = problem_of(spec, dtype, out_dtype, k)
            if spec.refuses(problem, device) is not None:
                assert arch != "sm_90a"
                continue
            bind(spec, problem, device, k + extra, weighted=out_dtype == dtype)
        # Full tiles, and masks of tiles; elements of one size take the same registers.
        is_first = isinstance(spec, TileKernel) and dtype == spec.dtypes[0]
        for k, extra in sizes if is_first else ():
            full = problem_of(spec, dtype, dtype, k, nnz=2**20)
            if spec.refuses(full, device) is None:
                for is_mask in (True, False) if which == ALL else (which == FIRST,):
                    bind(spec, full, device, k + extra, weighted=False, is_mask=is_mask)
    for cubin in made.cubins.get(name, []):
        assert cubin.resources.spill_bytes == 0
        assert cubin.resources.registers <= 255


@pytest.mark.parametrize("arch", cases(["sm_80", "sm_90a"], here=["sm_90a"]))
@pytest.mark.parametrize("dtype", cases(SPECS["row_gather"].dtypes, here=[torch.float16]))
def test_the_gather_of_long_rows_compiles_too(
    arch: str, dtype: torch.dtype, compiler: Callable[[Device], Compiler]
) -> None:
    spec, made = SPECS["row_gather"], compiler(DEVICES[arch])
    layouts = OneNonzero((0, 0), is_mask=False)
    layouts.index = torch.zeros(2**21, dtype=torch.int32)  # all of eight rows
    sizes = 128, 256, 384, 512, 768, 1024
    for row_bytes in sizes:
        k = row_bytes // dtype.itemsize
        problem = problem_of(spec, dtype, dtype, k, nnz=2**21)
        (plan,) = spec.prepare(layouts, problem, scaled_by_sm_count(DEVICES[arch]))
        plan.bind(*(torch.zeros(8, k, dtype=dtype) for _ in range(2)))
    spilled = [cubin.resources.spill_bytes for cubin in made.cubins["row_gather"]]
    assert spilled == [0] * len(sizes)


@pytest.mark.parametrize("arch", cases(["sm_80", "sm_89", "sm_90a"], here=["sm_90a"]))
@pytest.mark.parametrize("per_group", cases(range(1, 9), here=[7, 8]))
def test_every_number_of_nonzeros_of_gather_lines_compiles_too(
    arch: str, per_group: int, compiler: Callable[[Device], Compiler]
) -> None:
    """By six blocks a multiprocessor, and 7 and 8 by seven too; with and without a tail."""
    device, made = DEVICES[arch], compiler(DEVICES[arch])
    model, layouts = scaled_by_sm_count(device), OneNonzero((0, 0), is_mask=False)
    groups = 16 * device.sm_count
    for nnz in {6 * groups * per_group, 7 * groups * per_group}:
        layouts.index = torch.zeros(nnz, dtype=torch.int32)
        for dtype, k in itertools.product(GATHER_LINES.dtypes, (64, 68)):
            problem = problem_of(GATHER_LINES, dtype, dtype, k, nnz=nnz)
            (plan,) = GATHER_LINES.prepare(layouts, problem, model)
            plan.bind(*(torch.zeros(8, k, dtype=dtype) for _ in range(2)))
    cubins = made.cubins["gather_lines"]
    assert len(cubins) >= 4
    assert [cubin.resources.spill_bytes for cubin in cubins] == [0] * len(cubins)


@pytest.mark.parametrize("name", SPECS)
def test_every_kernel_compiles_what_it_does_not_refuse(name: str) -> None:
    """On Hopper, whatever the dtypes: what is served is what the test above compiles."""
    spec = SPECS[name]
    for dtype, out_dtype, precision in itertools.product(DTYPES, DTYPES, PRECISIONS):
        reason = spec.refuses(problem_of(spec, dtype, out_dtype, 64, precision), H200)
        if dtype not in spec.dtypes:
            assert reason is not None
            assert reason.startswith("computes float")
        elif is_less_exact(spec.precision, precision):
            assert reason == f"computes with precision {spec.precision}, less than {precision}"
        else:
            assert reason is None


every_arch = pytest.mark.parametrize("arch", cases(DEVICES, here=["sm_90a"]))


@every_arch
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("csr", [True, False])
def test_the_analysis_compiles_too(arch: str, narrow: bool, csr: bool) -> None:
    macros = analysis.macros_of(narrow, csr, DEVICES[arch].capability)
    macros = loader.compile_macros(analysis.ANALYSE, macros, analysis.AnalyseArguments)
    cubin = compile_kernel(analysis.ANALYSE.path, macros, arch, loader.INCLUDE)
    assert cubin.resources.spill_bytes == 0


@every_arch
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("k", cases([64, 96, 100, 160, 192, 256, 288, 320], here=[100, 320]))
def test_a_first_call_in_one_launch_compiles_too(
    arch: str, dtype: torch.dtype, k: int, index_dtype: torch.dtype
) -> None:
    asked = problem_of(ROW_GATHER, dtype, torch.float32, k)._replace(index_dtype=index_dtype)
    by_warp, _ = gather_csr.macros_and_group(asked, 16)
    by_row = gather_rows.macros_of(asked, 16)
    for spec, own, arguments in (
        (gather_csr.GATHER_CSR, by_warp, gather_csr.Arguments),
        (gather_rows.GATHER_ROWS, by_row, gather_rows.Arguments),
    ):
        macros = loader.compile_macros(spec, own, arguments)
        cubin = compile_kernel(spec.path, macros, arch, loader.INCLUDE)
        assert cubin.resources.spill_bytes == 0


@every_arch
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_comparison_of_indices_compiles_too(arch: str, dtype: torch.dtype) -> None:
    spec, macros = comparison.SAME_INDICES, comparison.macros_of(dtype)
    macros = loader.compile_macros(spec, macros, comparison.SameIndicesArguments)
    assert compile_kernel(spec.path, macros, arch, loader.INCLUDE).resources.spill_bytes == 0


@every_arch
@pytest.mark.parametrize(
    ("spec", "defines", "arguments"),
    [
        (tile_bounds.TILE_BOUNDS, {}, tile_bounds.Arguments),
        (tile_lines.TILE_LINES, {"SIDE": tile_lines.SIDE}, tile_lines.Arguments),
        (tile_lines.TILE_LINES, {"SIDE": 16}, tile_lines.Arguments),
        (tile_masks.TILE_MASKS, {}, tile_masks.Arguments),
        (tile_lines.BLOCK_LINES, {"SIDE": 32, "BY_COLUMN": True}, tile_lines.BlockArguments),
        (tile_list.TILE_LIST, {}, tile_list.Arguments),
        (column_runs.COLUMN_RUNS, {"INDEX": "i64", "PLACES": 8}, column_runs.Arguments),
    ],
    ids=lambda case: case.name if isinstance(case, KernelSpec) else "",
)
def test_the_search_for_the_nonzeros_of_tiles_compiles_too(
    spec: KernelSpec, defines: dict[str, str | int | bool], arguments: Any, arch: str
) -> None:
    macros = loader.compile_macros(spec, macros_of(defines), arguments)
    assert compile_kernel(spec.path, macros, arch, loader.INCLUDE).resources.spill_bytes == 0


@every_arch
def test_the_statistics_of_tiles_compile_too(arch: str) -> None:
    spec = tile_stats.TILE_STATS
    macros = loader.compile_macros(spec, tile_stats.MACROS, tile_stats.Arguments)
    assert compile_kernel(spec.path, macros, arch, loader.INCLUDE).resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("arch", "dtype"),
    cases(
        itertools.product([*DEVICES, "sm_100"], DTYPES),
        here=[("sm_90a", torch.float16), ("sm_100", torch.float64)],
    ),
)
def test_the_softmax_compiles_too(
    arch: str, dtype: torch.dtype, compiler: Callable[[Device], Compiler]
) -> None:
    made = compiler(DEVICES.get(arch, replace(H200, capability=(10, 0))))
    for backward, merges in itertools.product((False, True), repeat=2):
        row_softmax.load(made, dtype, backward, merges, dtype == torch.float64, 0)
    assert len(made.cubins["row_softmax"]) == 4
    for cubin in made.cubins["row_softmax"]:
        assert cubin.resources.spill_bytes == 0


def test_every_source_is_of_a_kernel() -> None:
    others = (
        *row_softmax.ROW_SOFTMAX.values(),
        SOFTMAX_SHARES,
        analysis.ANALYSE,
        column_runs.COLUMN_RUNS,
        gather_csr.GATHER_CSR,
        gather_rows.GATHER_ROWS,
        tile_bounds.TILE_BOUNDS,
        tile_list.TILE_LIST,
        tile_lines.TILE_LINES,
        tile_lines.BLOCK_LINES,
        tile_masks.TILE_MASKS,
        tile_stats.TILE_STATS,
        *SPMM_TILES,
        SPMM_TILE_SUMS,
        SPMM_WINDOWS,
        comparison.SAME_INDICES,
        *(kernel for kernel in ATTENTION_KERNELS.values() if isinstance(kernel, KernelSpec)),
        ATTENTION_DELTA,
        ATTENTION_GRADIENT,
        ATTENTION_SUMS,
        ATTENTION_TILE_GRADIENT,
    )
    spmm = (SPMM_GATHER, SPMM_MERGE, SPMM_SHARES, SPMM_ROWS, ROW_STARTS)
    weights = (SPMM_WEIGHTS, WEIGHTS_BY_NONZERO)
    between_gpus = (SEND_ROWS, SIGNALS, ADD_ROWS, PLACE_VALUES)
    kernels = (*SPECS.values(), *BLOCK_KERNELS.values(), SCALE_SAMPLES)
    used = {spec.path for spec in (*kernels, *spmm, *weights, *between_gpus, *others)}
    assert set(KERNEL_FOLDER.rglob("*.cu")) == used
