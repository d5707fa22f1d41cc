"""Kernels that store dense tiles: full tiles, segments of rows, odd positions, run on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.kernels.tile import TileKernel
from sddmm.backends.cuda.pattern_layouts import AheadLayouts
from sddmm.dtypes import DTYPES
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, emulated_gpu
from tests.cases import cases
from tests.sddmm.memory import at_a_cliff

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

BLOCK_TILES = [
    "tile_mma_64x64x32", "tile_mma_128x128x64", "tile_wmma_m16n16k16", "tile_simt_16x32x32",
    "tile_simt_64x64x16", "tile_simt_64x64x32", "tile_simt_128x128x8", "tile_simt_sliced_64x64x16",
    "tile_wgmma_tf32x3_128x128x32",
]  # fmt: skip
WARP_TILES = ["tile_warp_16x16", "tile_warp_32x32"]
# One tile of each main loop and precision; the others in the GPU suite.
ONE_OF_EACH_LOOP = [
    "tile_mma_64x64x32", "tile_wmma_m16n16k16", "tile_simt_64x64x16", "tile_simt_128x128x8",
    "tile_simt_sliced_64x64x16", "tile_wgmma_tf32x3_128x128x32", "tile_warp_16x16",
]  # fmt: skip
every_tile = pytest.mark.parametrize("name", cases(BLOCK_TILES + WARP_TILES, here=ONE_OF_EACH_LOOP))
SHAPE = (150, 213)  # the last tiles are ragged, and rows begin at odd positions


def mask() -> Tensor:
    """Full tiles, a band that begins between tiles, sparse rows, and a row with a gap."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.zeros(SHAPE, dtype=torch.bool)
    mask[:64, :64] = True
    mask[70:132, 33:171] = True
    mask[64:67] = torch.rand(3, SHAPE[1], generator=generator) < 0.1
    mask[7:9, 64:] = torch.rand(2, SHAPE[1] - 64, generator=generator) < 0.4
    mask[140:, 200:] = True
    mask[132:138, 5] = True
    mask[12, 7] = False
    mask[149, 212] = False
    return mask


def pattern_of(mask: Tensor) -> SparsePattern:
    indices = mask.to_sparse_csr()
    return SparsePattern.from_csr(indices.crow_indices(), indices.col_indices(), mask.shape)


def run(
    name: str,
    pattern: SparsePattern,
    *,
    k: int = 40,
    out_dtype: torch.dtype = torch.float16,
    heads: int | None = None,
    weighted: bool = False,
    after: int = 0,
) -> dict[str, str]:
    """Compare every value with the exact one; the macros of the kernel.

    The operands end where memory does, and so does the output, but for `after` elements, which must
    stay as they are.
    """
    generator, spec = torch.Generator().manual_seed(k), SPECS[name]
    dtype = spec.dtypes[0]
    lead = () if heads is None else (heads,)

    def integers(*size: int) -> Tensor:
        return at_a_cliff(torch.randint(-2, 3, size, generator=generator).to(dtype))

    a, b_t = integers(*lead, pattern.shape[0], k), integers(*lead, pattern.shape[1], k)
    values = integers(pattern.nnz) + 3 if weighted else torch.ones(pattern.nnz).to(dtype)
    matrix: SparsePattern | Tensor = pattern
    if weighted:
        matrix = torch.sparse_csr_tensor(
            pattern.crow_indices, pattern.col_indices, values, pattern.shape
        )
    count = pattern.nnz * (heads or 1)
    memory = at_a_cliff(torch.full((count + after,), torch.nan, dtype=out_dtype))
    macros: dict[str, str] = {}
    with emulated_gpu(H200):
        load = loader.runtime.load_kernel

        def record(loaded: object, defines: tuple[tuple[str, str], ...], *rest: Any) -> Any:
            macros.update(defines if loaded is spec else ())
            return load(loaded, defines, *rest)  # type: ignore[arg-type]

        with mock.patch.object(loader.runtime, "load_kernel", record):
            plan = sddmm.plan(
                matrix, k=k, dtype=dtype, heads=heads, out_dtype=out_dtype, kernel=name,
                precision=spec.precision, backend="cuda",
            )  # fmt: skip
            plan.run(a, b_t.mT, out=memory[:count].view(*lead, -1))
    left = a.double()[..., pattern.row_ids.long(), :]
    right = b_t.double()[..., pattern.col_indices.long(), :]
    expected = (left * right).sum(-1) * values.double()
    wrong = (memory[:count].view(expected.shape) != expected.to(out_dtype)).nonzero()
    assert not len(wrong), f"{len(wrong)} of {count} wrong, first at {wrong[0].tolist()}"
    assert memory[count:].isnan().all()
    return macros


@pytest.mark.parametrize(
    ("name", "out_dtype"),
    [
        *((name, torch.float16) for name in BLOCK_TILES if name in ONE_OF_EACH_LOOP),
        *((BLOCK_TILES[0], out_dtype) for out_dtype in DTYPES if out_dtype != torch.float16),
    ],
)
def test_rows_of_a_mask_are_stored_as_segments(name: str, out_dtype: torch.dtype) -> None:
    assert run(name, pattern_of(mask()), out_dtype=out_dtype)["SDDMM_SEGMENTS"] == "true"


@pytest.mark.parametrize(
    ("name", "out_dtype"),
    cases(
        itertools.product(WARP_TILES, DTYPES),
        here=[(WARP_TILES[0], torch.float16), (WARP_TILES[1], torch.float32)],
    ),
)
def test_a_warp_stores_full_rows_of_its_tile_at_any_address(
    name: str, out_dtype: torch.dtype
) -> None:
    for after in (0, 1, 2):
        macros = run(name, pattern_of(mask()), out_dtype=out_dtype, after=after)
        assert macros["SDDMM_MASKED"] == "true"


@every_tile
@pytest.mark.parametrize("k", cases([33, 64, 100, 160], here=[33, 160]))
def test_masks_with_values_and_heads_that_begin_at_odd_positions(name: str, k: int) -> None:
    """Rows of k that start at 2, 8 and 16 bytes, in one pass and in several."""
    pattern = pattern_of(mask())
    assert pattern.nnz % 2 == 1
    run(name, pattern, k=k, heads=2, weighted=True, after=1)


@every_tile
def test_duplicates_are_no_segment(name: str) -> None:
    """Columns 0, 0, 2: as many nonzeros as columns from the first to the last."""
    full = torch.arange(64)
    cols = torch.cat([full, torch.tensor([0, 0, 2]), full, torch.tensor([5, 5, 5])])
    crow = torch.tensor([0, 64, 67, 131, 134])
    macros = run(name, SparsePattern.from_csr(crow, cols, (4, 70)))
    assert "true" not in (macros.get("SDDMM_SEGMENTS"), macros.get("SDDMM_MASKED"))


@every_tile
def test_shuffled_positions_of_a_mask(name: str) -> None:
    rows, cols = mask().nonzero().T
    order = torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(2))
    run(name, SparsePattern.from_coo(rows[order], cols[order], SHAPE))


def test_every_tile_is_launched_where_columns_ascend_and_empty_ones_store_nothing() -> None:
    """The tiles of a pattern that is prepared while its analysis runs are not listed."""
    kernel, device = SPECS["tile_mma_64x64x32"], replace(H200, capability=(8, 0))
    assert isinstance(kernel, TileKernel)
    diagonal = pattern_of(torch.eye(200, 330, dtype=torch.bool))
    problem = make_problem(diagonal, k=8, dtype=torch.float16)
    model = scaled_by_sm_count(device)
    with emulated_gpu(device):
        request = kernel.needs_ahead(problem, model)
        assert request is not None
        layouts = AheadLayouts(diagonal, device, request)
        (plan,) = kernel.prepare(layouts, problem, model)
        layouts.wait()
        a, b_t = torch.eye(200, 8).half(), torch.ones(330, 8).half()
        out = at_a_cliff(torch.full((200,), torch.nan, dtype=torch.float16))
        plan.bind(a, b_t)(0, out.data_ptr(), 1.0)
    assert out.tolist() == [1.0] * 8 + [0.0] * 192
