"""The wgmma rungs' sources, run on the CPU by gemm_core.emulation: indices, guards and tails.

Integers small enough to be exact. A GPU of few multiprocessors, so that blocks that stay compute
several tiles.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_core.emulation.kernel import (
    EmulatedKernel,
    compile_library,
    missing_compiler,
    tensor_map,
)
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER, GemmProblem, KernelSpec, Tma, TmaParameters
from gemm_core.ladder.tma_arguments import readable_operands, tma_arguments
from tests.conftest import H200

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")

FEW_MULTIPROCESSORS = replace(H200, sm_count=2)

WGMMA = {name: spec for name, spec in KERNELS.items() if spec.tma is not None}


def run_on_cpu(
    spec: KernelSpec, a: torch.Tensor, b: torch.Tensor, *, aligned_c: bool = True
) -> torch.Tensor:
    """a @ b by the kernel, which must not write around the result."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    pitch = -(-n // 16) * 16 + (0 if aligned_c else 1)
    field = torch.full((m + 1, pitch), 77, dtype=a.dtype)
    out = field[:m, :n]
    problem = GemmProblem(
        m=m, n=n, k=k, dtype=a.dtype, out_dtype=a.dtype,
        b_layout="kn" if b.stride(1) == 1 else "nk", aligned_a=True, aligned_b=True,
        c_vec2_aligned=aligned_c, aligned_c=aligned_c, precision=spec.precision,
    )  # fmt: skip
    assert spec.refuses(problem, FEW_MULTIPROCESSORS) is None
    assert spec.tma is not None
    blocks = spec.tma.cluster * spec.tma.split_k
    library = compile_library(
        KERNEL_FOLDER / spec.source, "gemm",
        {**spec.macros(problem), "EMULATED_CLUSTER_BLOCKS": str(blocks)},
    )  # fmt: skip
    kernel = EmulatedKernel(spec.name, library, TmaParameters, spec.threads)
    a, b = readable_operands(problem, a, b)
    arguments = tma_arguments(spec, problem, a, b, out, encode=tensor_map)
    kernel(spec.grid(problem, FEW_MULTIPROCESSORS), *arguments)
    assert (field[m:] == 77).all(), "wrote below the result"
    assert (field[:, n:] == 77).all(), "wrote beside the result"
    return out


def integers(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values from -2 to 2 in a view whose neighbours are NaN."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.full((rows, columns + 8), torch.nan, dtype=dtype)
    view = whole[:, :columns]
    view.copy_(torch.randint(-2, 3, (rows, columns), generator=generator))
    return view


def check(
    spec: KernelSpec, shape: tuple[int, int, int], b_layout: str, *, aligned_c: bool = True
) -> None:
    m, n, k = shape
    dtype = spec.dtypes[0]
    a = integers(m, k, dtype, 1)
    b = integers(k, n, dtype, 2) if b_layout == "kn" else integers(n, k, dtype, 2).T
    got = run_on_cpu(spec, a, b, aligned_c=aligned_c)
    wrong = (got != (a.float() @ b.float()).to(dtype)).nonzero()
    assert not len(wrong), f"{len(wrong)} wrong, first at {wrong[0].tolist()}"


# One case for each source, layout of B and way of storing, and each feature of a rung.
CASES = [
    ("wgmma_128x128x64_stage3", "kn"),
    ("wgmma_pending_128x128x64_stage3", "nk"),
    ("wgmma_store_128x128x64_stage3", "kn"),
    ("wgmma_persistent_128x256x64_stage4", "nk"),
    ("wgmma_cluster_128x256x64_stage4", "kn"),
    ("wgmma_store_128x256x64_stage3", "nk"),
    ("wgmma_store_128x192x64_stage4", "kn"),
    ("wgmma_pingpong_128x128x64_stage5", "kn"),
    ("wgmma_split4_128x128x64_stage6", "nk"),
    ("wgmma_tf32_128x256x32_stage4", "nk"),
]


def test_every_source_is_run_here() -> None:
    sources = {WGMMA[name].source for name, _ in CASES}
    assert sources == {spec.source for spec in WGMMA.values()}


@pytest.mark.parametrize(("name", "b_layout"), CASES)
def test_ragged_products_are_exact(name: str, b_layout: str) -> None:
    """Several tiles a block, the last of them ragged; more k blocks than stages, and a k tail.

    Rows of C that end at multiples of 16 bytes, as TMA stores them, and rows that do not.
    """
    spec = WGMMA[name]
    tm, tn, tk = spec.tile
    check(spec, (3 * tm + 5, tn + 8, 7 * tk + 8), b_layout)
    check(spec, (tm + 1, tn + 9, tk), b_layout)
    check(spec, (5, 3, 8), b_layout)
    check(spec, (tm, tn, 2 * tk), b_layout)


def test_one_consumer_and_clusters_of_four_are_exact() -> None:
    """No rung has them yet. The two panels of a tile of B are loaded as four boxes."""
    spec = WGMMA["wgmma_store_128x192x64_stage4"]
    tm, tn, tk = tile = 64, 128, 64
    spec = replace(spec, tile=tile, threads=256, tma=Tma(cluster=4, stores=True))
    check(spec, (5 * tm + 5, tn + 8, 5 * tk + 8), "kn")


@pytest.mark.parametrize("name", ["wgmma_store_128x256x64_stage3"])
def test_rows_that_tma_cannot_read_or_store_are_served(name: str) -> None:
    """The operands are copied; C is stored by the threads."""
    check(WGMMA[name], (131, 259, 77), "nk", aligned_c=False)


def test_nan_and_infinity_reach_their_row_and_column_only() -> None:
    """Where k ends within a stage, and beside the tile's last row and column."""
    spec = WGMMA["wgmma_store_128x256x64_stage3"]
    a, b = torch.ones(129, 72).half(), torch.ones(257, 72).half().T
    a[128, 71], b[71, 256], b[0, 3] = torch.nan, torch.inf, -torch.inf
    got = run_on_cpu(spec, a, b)
    expected = torch.full((129, 257), 72.0).half()
    expected[:, 256], expected[:, 3] = torch.inf, -torch.inf
    expected[128] = torch.nan
    assert torch.equal(got.nan_to_num(1, 2, 3), expected.nan_to_num(1, 2, 3))


def test_split_k_adds_the_parts_in_the_order_of_k() -> None:
    """The parts are 2^-11, 2^13, 2^-11 and -2^13."""
    spec = WGMMA["wgmma_split4_128x128x64_stage6"]
    a, b = torch.zeros(2, 256).half(), torch.ones(16, 256).half().T
    a[0, ::64] = torch.tensor([2.0**-11, 2.0**13, 2.0**-11, -(2.0**13)]).half()
    got = run_on_cpu(spec, a, b)
    # In float32 each small part is lost beside 2^13; both together would not be.
    assert (got[0] == 0).all()
