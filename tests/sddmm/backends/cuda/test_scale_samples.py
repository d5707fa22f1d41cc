"""scale_samples multiplies the samples of every head by S's values, and rounds once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.executor import GpuExecutor
from sddmm.backends.cuda.kernels.hybrid.host import Hybrid
from sddmm.backends.cuda.kernels.persistent_tile import PersistentTileKernel
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.row_gather.host import ROW_GATHER
from sddmm.backends.cuda.kernels.scale_samples.host import load
from sddmm.backends.cuda.planner import Planner
from sddmm.dtypes import DTYPES, HALF_DTYPES
from sddmm.ops.sddmm import plan
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, poisoned_outputs, random_pattern
from tests.cases import cases
from tests.sddmm.backends.cuda.on_either import DEVICES as EITHER
from tests.sddmm.backends.cuda.on_either import kernels_of
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache

__all__ = ["compiler", "own_cache"]

CLUSTER_TILES = {n: spec for n, spec in SPECS.items() if isinstance(spec, PersistentTileKernel)}
LISTED = next(name for name in CLUSTER_TILES if "listed" in name)


@pytest.mark.parametrize("device", EITHER)
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("nnz", "first"), [(1, 0), (2048, 1), (2049, 3), (6000, 0)])
def test_scaled_samples_are_rounded_once(
    device: str, heads: int | None, out_dtype: torch.dtype, nnz: int, first: int
) -> None:
    """Values begin anywhere in memory, and fill no block, or some."""
    pattern = random_pattern(150, 300, nnz, device=device)
    values = torch.randn(nnz + first, device=device).bfloat16()[first:]
    S = torch.sparse_csr_tensor(
        pattern.major_indices, pattern.col_indices, values, pattern.shape, check_invariants=False
    )
    lead = () if heads is None else (heads,)
    a = torch.randn(*lead, 150, 64, device=device).bfloat16()
    b = torch.randn(*lead, 300, 64, device=device).bfloat16().mT
    with kernels_of(device) as launches:
        made = plan(
            S, k=64, dtype=torch.bfloat16, heads=heads, out_dtype=out_dtype, kernel=LISTED,
            alpha=0.5,
        )  # fmt: skip
        launches.clear()
        with poisoned_outputs():
            got = made.run(a, b)
    assert_close(got, S, a, b, alpha=0.5)
    assert launches in ([], [LISTED, "scale_samples"])


@pytest.mark.parametrize("device", EITHER)
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", CLUSTER_TILES)
def test_what_a_hybrid_gathers_is_multiplied_once(
    device: str, out_dtype: torch.dtype, name: str
) -> None:
    """Its dense tiles are multiplied with all samples, before the others are gathered."""
    hybrid = Hybrid("hybrid", (CLUSTER_TILES[name],), ROW_GATHER)
    planner = Planner({"hybrid": hybrid}, GpuExecutor)
    mask = torch.rand(300, 600) < 0.01
    mask[:128, :128] = True
    pattern = SparsePattern.from_coo(*mask.nonzero().T.to(device), mask.shape)
    values = torch.randn(pattern.nnz, device=device).half()
    a, b = (torch.randn(n, 64, device=device).half() for n in mask.shape)
    problem = make_problem(pattern, k=64, dtype=torch.float16, out_dtype=out_dtype, scaled=True)
    out = torch.full((pattern.nnz,), torch.nan, dtype=out_dtype, device=device)
    with kernels_of(device) as launches:
        gpu = loader.runtime.device(loader.runtime.index_of(pattern.device))
        executor = planner.prepare(pattern, problem, gpu, "hybrid")
        launches.clear()
        executor(a, b.mT, values, 0.5, out)
    assert_close(out, pattern.to_torch(values), a, b.mT, alpha=0.5)
    assert launches in ([], [name, "scale_samples", "row_gather"])


@pytest.mark.parametrize("device", EITHER)
def test_a_plan_without_values_launches_no_scaling(device: str) -> None:
    pattern = random_pattern(150, 300, 900, device=device)
    a, b = torch.randn(150, 64, device=device).half(), torch.randn(64, 300, device=device).half()
    with kernels_of(device) as launches:
        made = plan(pattern, k=64, dtype=torch.float16, kernel=LISTED)
        launches.clear()
        assert_close(made.run(a, b), pattern, a, b)
    assert launches in ([], [LISTED])


@pytest.mark.parametrize("arch", cases(DEVICES, here=["sm_90a"]))
def test_it_compiles_without_spilling(arch: str, compiler: Callable[[Device], Compiler]) -> None:
    made = compiler(DEVICES[arch])
    for dtype in HALF_DTYPES:
        for out_dtype in DTYPES:
            load(loader.runtime, dtype, out_dtype, DEVICES[arch].index)
    assert len(made.cubins["scale_samples"]) == len(HALF_DTYPES) * len(DTYPES)
    for cubin in made.cubins["scale_samples"]:
        assert cubin.resources.spill_bytes == 0
