"""One small case per kernel of sddmm and of attention, and of what plans are made of: what
`make sanitize` runs."""

from __future__ import annotations

import pytest
import torch

import sddmm
from gemm_core.runtime.device import device
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda import analysis, single_run
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.kernels.block import BlockKernel
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS, BLOCK_KERNELS, SPECS
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, KernelSpec
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_attention_close, assert_close, random_pattern

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in SPECS.items()])
def test_a_small_ragged_case(spec: KernelSpec) -> None:
    """Unsorted COO, so that sorting and places are part of it."""
    pattern = random_pattern(150, 290, 900, layout="coo", shuffled=True, device="cuda")
    dtype = spec.dtypes[0]
    a = torch.randn(150, 104, device="cuda").to(dtype)
    b = torch.randn(290, 104, device="cuda").to(dtype).mT
    for out_dtype in {dtype, torch.float32}:
        plan = sddmm.plan(
            pattern, k=104, dtype=dtype, out_dtype=out_dtype, precision=spec.precision,
            kernel=spec.name,
        )  # fmt: skip
        assert_close(plan.run(a, b), pattern, a, b, precision=spec.precision)


@pytest.mark.parametrize(
    "kernel", [pytest.param(kernel, id=name) for name, kernel in BLOCK_KERNELS.items()]
)
def test_a_small_case_of_ragged_blocks(kernel: BlockKernel) -> None:
    crow, col = torch.tensor([0, 2, 2, 3]).cuda(), torch.tensor([3, 0, 1]).cuda()
    pattern = SparsePattern.from_bsr(crow, col, (50, 42), (150, 168))
    dtype = kernel.dtypes[0]
    a = torch.randn(150, 104, device="cuda").to(dtype)
    b = torch.randn(168, 104, device="cuda").to(dtype).mT
    for out_dtype in {dtype, torch.float32}:
        plan = sddmm.plan(pattern, k=104, dtype=dtype, out_dtype=out_dtype, kernel=kernel.name)
        assert_close(plan.run(a, b), pattern, a, b)


@pytest.mark.parametrize("name", ATTENTION_KERNELS)
def test_a_small_attention(name: str) -> None:
    """Rows of 20 and 13 elements, some of which are copied one by one; a bias and dropout."""
    pattern = random_pattern(150, 290, 9000, device="cuda")
    dtype = ATTENTION_KERNELS[name].dtypes[0]
    q, k, v = (
        torch.randn(2, rows, columns, device="cuda").to(dtype)
        for rows, columns in ((150, 20), (290, 20), (290, 13))
    )
    bias = torch.randn(9000, device="cuda").to(dtype)
    inputs = AttentionOperands(q, k, v, bias, 0.3, 0.2, torch.tensor([7], device="cuda"))
    problem = attention_problem(pattern, inputs)
    prepared = Planner(ATTENTION_KERNELS, AttentionExecutor).prepare(
        pattern, problem, device(0), name
    )
    out = torch.empty(2, 150, 13, device="cuda", dtype=dtype)
    lse = torch.empty(2, 150, device="cuda")
    prepared.forward(inputs, out, lse)
    assert_attention_close(
        out, pattern, q, k, v, lse=lse, bias=bias, dropout_p=0.2, seed=inputs.seed, scale=0.3
    )


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_first_call_in_one_launch(
    by_rows: bool, index_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_rows:
        monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    pattern = random_pattern(50, 290, 9000, device="cuda", index_dtype=index_dtype)
    indices, values = (pattern.major_indices, pattern.col_indices), torch.ones(9000, device="cuda")
    matrix = torch.sparse_csr_tensor(*indices, values, pattern.shape, check_invariants=False)
    a, b = torch.randn(50, 104, device="cuda"), torch.randn(290, 104, device="cuda").mT
    assert_close(sddmm.sddmm(matrix, a, b).values(), pattern, a, b)


@pytest.mark.parametrize("blocks", [((64, 64), (128, 64), (128, 256)), ((16, 16), (64, 64))])
def test_the_facts_of_a_pattern(blocks: tuple[tuple[int, int], ...]) -> None:
    """Tiles of several sizes, from one count of the smallest."""
    pattern = random_pattern(150, 290, 9000, device="cuda")
    facts = PatternLayouts(pattern, device(0), blocks).facts()
    dense = torch.zeros(256, 512, device="cuda")
    dense[pattern.row_ids.long(), pattern.col_indices.long()] = 1
    for rows, columns in blocks:
        tiles = dense.view(256 // rows, rows, 512 // columns, columns).sum((1, 3))
        counts = facts.tiles((rows, columns))
        assert counts is not None
        assert counts.nonempty == int((tiles > 0).sum())
        assert counts.from_class(4) == (int((tiles >= 16).sum()), int(tiles[tiles >= 16].sum()))


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_the_analysis_of_a_pattern(layout: str, index_dtype: torch.dtype) -> None:
    """Rows, counts of tiles, and where the nonzeros of all tiles begin, by several blocks."""
    pattern = random_pattern(150, 290, 9000, layout=layout, device="cuda", index_dtype=index_dtype)
    counted = AnalysisRequest((64, 64), count_tiles=True)
    located = AnalysisRequest((64, 64), tile_row_offsets=True)
    for request in (ROW_IDS, counted, located):
        found = analysis.launch(pattern, device(0), request).wait()
        assert found.ascends
        if found.row_ids is not None:
            assert torch.equal(found.row_ids.long(), pattern.row_ids.long())
        if found.tile_nnz is not None:
            assert int(found.tile_nnz.sum()) == 9000
        if found.offsets is not None:
            starts = found.offsets.offsets.view(-1, found.offsets.row_stride)
            assert torch.equal(starts[:150, 0].long(), pattern.by_row.indptr[:-1].long())
