"""One small case per kernel of every operator, of gradients, and of what plans are made of: what
`make sanitize` runs."""

from __future__ import annotations

import pytest
import torch

import sddmm
from gemm_core.runtime.device import device
from sddmm.attention import attention, attention_backward, attention_problem
from sddmm.backends.base import Addend, AttentionGradients, AttentionOperands
from sddmm.backends.cuda import analysis
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.kernels.add_rows.host import add_rows
from sddmm.backends.cuda.kernels.block import BlockKernel
from sddmm.backends.cuda.kernels.gather_rows import host as gather_rows
from sddmm.backends.cuda.kernels.place_values.host import place_values
from sddmm.backends.cuda.kernels.registry import (
    ATTENTION_KERNELS,
    BLOCK_KERNELS,
    SPECS,
    SPMM_KERNELS,
)
from sddmm.backends.cuda.kernels.send_rows.host import Parcel, send_rows
from sddmm.backends.cuda.kernels.signals.host import put_signals, take_signals
from sddmm.backends.cuda.kernels.spmm_tile.host import SpmmTile
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.backends.cuda.planner import Planner
from sddmm.backends.cuda.products import ProductExecutor
from sddmm.backends.cuda.spec import ROW_IDS, AnalysisRequest, KernelSpec
from sddmm.products import product, product_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import (
    assert_attention_close,
    assert_attention_gradients_close,
    assert_close,
    assert_softmax_close,
    assert_spmm_close,
    random_pattern,
)

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


@pytest.mark.parametrize("name", [name for name in SPECS if "wgmma" in name])
def test_samples_that_a_second_launch_multiplies(name: str) -> None:
    """These tiles leave S's values to scale_samples."""
    spec = SPECS[name]
    pattern = random_pattern(150, 290, 900, layout="coo", shuffled=True, device="cuda")
    dtype = spec.dtypes[0]
    indices = torch.stack([pattern.row_ids, pattern.col_indices])
    scaled = torch.sparse_coo_tensor(indices, torch.randn(900).to("cuda", dtype), pattern.shape)
    a = torch.randn(150, 104, device="cuda").to(dtype)
    b = torch.randn(290, 104, device="cuda").to(dtype).mT
    plan = sddmm.plan(scaled, k=104, dtype=dtype, precision=spec.precision, kernel=name)
    assert_close(plan.run(a, b), scaled, a, b, precision=spec.precision)


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
@pytest.mark.parametrize(("d", "dv", "nnz"), [(20, 13, 9000), (128, 128, 9000), (20, 13, 300)])
def test_a_small_attention_with_gradients(name: str, d: int, dv: int, nnz: int) -> None:
    """Rows of 20 and 13 elements, some of which are copied one by one; a bias and dropout. Rows of
    128 elements, and few nonzeros, have their weights stored between the passes."""
    pattern = random_pattern(150, 290, nnz, device="cuda")
    dtype = ATTENTION_KERNELS[name].dtypes[0]
    q, k, v = (
        torch.randn(2, rows, columns, device="cuda").to(dtype)
        for rows, columns in ((150, d), (290, d), (290, dv))
    )
    bias = torch.randn(nnz, device="cuda").to(dtype)
    inputs = AttentionOperands(q, k, v, bias, 0.3, 0.2, torch.tensor([7], device="cuda"))
    options = {"bias": bias, "dropout_p": 0.2, "seed": inputs.seed, "scale": 0.3}
    problem = attention_problem(pattern, inputs)
    prepared = Planner(ATTENTION_KERNELS, AttentionExecutor).prepare(
        pattern, problem, device(0), name
    )
    out = torch.empty(2, 150, dv, device="cuda", dtype=dtype)
    lse = torch.empty(2, 150, device="cuda")
    prepared.forward(inputs, out, lse)
    assert_attention_close(out, pattern, q, k, v, lse=lse, **options)
    grad, gradients = torch.randn_like(out), AttentionGradients(*map(torch.empty_like, inputs[:4]))
    prepared.prepare_backward()
    prepared.backward(inputs, out, lse, grad, None, gradients)
    assert_attention_gradients_close(gradients, pattern, q, k, v, grad, **options)


@pytest.mark.parametrize("name", SPMM_KERNELS)
def test_a_small_product(name: str) -> None:
    """Unsorted COO, so that weights are read in another order, and a row that many warps cut."""
    rows = torch.cat([torch.randint(150, (3000,)), torch.full((6000,), 70)]).cuda()
    pattern = SparsePattern.from_coo(rows, torch.randint(290, (9000,)).cuda(), (150, 290))
    dtype = SPMM_KERNELS[name].dtypes[0]
    takes_floats = isinstance(SPMM_KERNELS[name], SpmmTile) and SPMM_KERNELS[name].float_weights
    values = torch.randn(2, 9000, device="cuda").to(torch.float32 if takes_floats else dtype)
    dense = torch.randn(2, 290, 104, device="cuda").to(dtype)
    problem = product_problem(pattern, values, dense, None, False, torch.float32)
    out = torch.empty(2, 150, 104, device="cuda")
    executor = Planner(SPMM_KERNELS, ProductExecutor).prepare(pattern, problem, device(0), name)
    executor(values, None, dense, 0.5, out)
    assert_spmm_close(out, pattern, dense, values=values, alpha=0.5)


def test_a_product_of_rows_in_two_tensors() -> None:
    pattern = random_pattern(150, 290, 9000, device="cuda")
    values, dense = (
        torch.randn(9000, device="cuda").half(),
        torch.randn(290, 104, device="cuda").half(),
    )
    first, beyond = dense[:200].clone(), torch.cat([dense[200:], dense[200:]], 1)[:, :104]
    got = product(pattern, values, first, beyond=beyond)
    assert torch.equal(got, product(pattern, values, dense))


@pytest.mark.parametrize("nnz", [300, 9000])
def test_an_attention_of_rows_in_two_tensors(nnz: int) -> None:
    pattern = random_pattern(150, 290, nnz, device="cuda")
    q, k, v, grad = (torch.randn(rows, 64, device="cuda").half() for rows in (150, 290, 290, 150))
    whole = AttentionOperands(q, k, v, None, 0.3)
    first, beyond = (k[:200].clone(), v[:200].clone()), (k[200:].clone(), v[200:].clone())
    apart = whole._replace(k=first[0], v=first[1], beyond=beyond)
    problem, needs, results = attention_problem(pattern, whole), (True, True, True, False), []
    for operands in (whole, apart):
        out, lse = attention(pattern, problem, operands)
        gradients = attention_backward(pattern, problem, operands, out, lse, grad, None, needs)
        results.append([out, lse, *gradients[:3]])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_products_that_are_added_to_other_sums() -> None:
    pattern = random_pattern(150, 290, 9000, device="cuda")
    values, dense = (torch.randn(*x, device="cuda").half() for x in ((9000,), (290, 104)))
    sums, rows = torch.randn(150, 104, device="cuda"), torch.randperm(200, device="cuda")[:150]
    out = torch.zeros(200, 104, device="cuda", dtype=torch.float16)
    problem = product_problem(pattern, values, dense, None, False, torch.float16)
    planner = Planner(SPMM_KERNELS, ProductExecutor)  # by name: rates measured here are no guide
    executor = planner.prepare(pattern, problem, device(0), "spmm_gather")
    executor.add(values, dense, 1.0, Addend(sums, rows), out, None)
    whole = product(pattern, values, dense, out_dtype=torch.float32)
    torch.testing.assert_close(out[rows], (sums + whole).half())


def test_what_moves_rows_and_values_between_gpus() -> None:
    x, rows = torch.randn(290, 104, device="cuda").half(), torch.randperm(290, device="cuda")[:77]
    chosen = torch.empty(77, 104, device="cuda", dtype=torch.float16)
    few = torch.empty(5, 104, device="cuda", dtype=torch.float16)
    send_rows(x, [Parcel(rows, chosen), Parcel(rows[:5], few)])
    assert torch.equal(chosen, x[rows])
    assert torch.equal(few, x[rows[:5]])
    signals = torch.zeros(3, device="cuda", dtype=torch.int32)
    words = [signals.data_ptr() + 4 * i for i in range(3)]
    put_signals(words, 1.0, 0)
    take_signals(words[1:], 1.0, 0)
    assert signals.tolist() == [1, 0, 0]
    totals = x.clone()
    add_rows(x, chosen, rows, totals)
    assert torch.equal(totals[rows], 2 * x[rows])
    values, part = torch.zeros(9000, device="cuda"), torch.randn(777, device="cuda")
    places = torch.randperm(9000, device="cuda")[:777].int()
    place_values(part, places, values)
    assert torch.equal(values[places.long()], part)


def test_a_small_softmax_with_its_gradient() -> None:
    pattern = random_pattern(150, 290, 9000, device="cuda")
    values = torch.randn(2, 9000, device="cuda", requires_grad=True)
    result = sddmm.softmax(pattern, values)
    assert_softmax_close(result, pattern, values)
    grad = torch.randn_like(result)
    (got,) = torch.autograd.grad(result, values, grad)
    weights, upstream, rows = result.detach().double(), grad.double(), pattern.row_ids.long()
    sums = torch.zeros(2, 150, device="cuda", dtype=torch.float64)
    sums.index_add_(1, rows, weights * upstream)
    torch.testing.assert_close(
        got.double(), weights * (upstream - sums[:, rows]), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_first_call_in_one_launch(
    by_rows: bool, index_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_rows:
        monkeypatch.setattr(gather_rows, "serves", lambda *_: False)
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
