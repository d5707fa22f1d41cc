"""attention_tile's source, run on the CPU: masks, parts of rows of tiles, tails, and infinities.

Half types are those of attention_tile, float32 is that of attention_tile_simt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.facts import CountedFacts, TileCounts
from sddmm.backends.cuda.kernels.attention_tile.tiles import part_limit
from sddmm.backends.cuda.kernels.attention_tile_gradient import host as gradient_host
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS
from sddmm.backends.cuda.planner import Planner
from sddmm.problem import AttentionProblem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import (
    H200,
    assert_attention_close,
    assert_attention_gradients_close,
    emulated_gpu,
)
from tests.sddmm.memory import at_a_cliff

FEW = replace(H200, sm_count=1)


def check(
    pattern: SparsePattern,
    d: int,
    dv: int,
    dtype: torch.dtype,
    *,
    heads: int = 1,
    bias: str = "",
    dropout_p: float = 0.0,
    scale: float | None = None,
    change: Callable[[Tensor, Tensor, Tensor], None] | None = None,
    device: Device = FEW,
    gradient_rows: set[int] | None = None,
) -> list[str]:
    """Compare the attention and its gradients with float64; the kernels launched. bias: of each
    head, or shared by all. gradient_rows: those of the blocks that compute the gradients."""
    generator = torch.Generator().manual_seed(0)
    m, n = pattern.shape
    q, k, v = (
        at_a_cliff(torch.randn(heads, rows, columns, generator=generator).to(dtype))
        for rows, columns in ((m, d), (n, d), (n, dv))
    )
    shape = (heads, pattern.nnz) if bias == "by head" else (pattern.nnz,)
    b = torch.randn(shape, generator=generator).to(dtype) if bias else None
    if change is not None:
        change(q, k, v)
    seed = torch.tensor([99]) if dropout_p else None
    scale = d**-0.5 if scale is None else scale
    operands = AttentionOperands(q, k, v, b, scale, dropout_p, seed)
    problem = attention_problem(pattern, operands)
    out = at_a_cliff(torch.full((heads, m, dv), torch.nan, dtype=dtype))
    lse = at_a_cliff(torch.full((heads, m), torch.nan))
    grad = at_a_cliff(torch.randn(out.shape, generator=generator).to(dtype))
    grad_lse = at_a_cliff(torch.randn(lse.shape, generator=generator))
    gradients = AttentionGradients(
        *(None if x is None else at_a_cliff(torch.full_like(x, torch.nan)) for x in (q, k, v, b))
    )
    loads = mock.patch.object(gradient_host, "load", wraps=gradient_host.load)
    with emulated_gpu(device) as launches, loads as load:
        planner = Planner(ATTENTION_KERNELS, AttentionExecutor)
        kernel = "attention_tile_simt" if dtype == torch.float32 else "attention_tile"
        prepared = planner.prepare(pattern, problem, device, kernel)
        prepared.forward(operands, out, lse)
        prepared.prepare_backward()
        prepared.backward(operands, out, lse, grad, grad_lse, gradients)
    if gradient_rows is not None:
        assert {call.args[2] for call in load.call_args_list} == gradient_rows
    options = {"bias": b, "dropout_p": dropout_p, "seed": seed, "scale": scale}
    assert_attention_close(out, pattern, q, k, v, lse=lse, **options)
    assert_attention_gradients_close(
        gradients, pattern, q, k, v, grad, grad_lse=grad_lse, **options
    )
    return launches


def window(m: int, n: int, width: int) -> SparsePattern:
    """A window about the diagonal, and three columns that all rows have."""
    rows, cols = torch.arange(m)[:, None], torch.arange(n)
    return SparsePattern.from_torch(((rows - cols).abs() <= width) | (cols < 3))


def test_a_window_with_a_bias_and_dropout() -> None:
    """Full and partial tiles, and those at the edges of the matrix; rows shorter than fragments.
    So many heads that the gradients are computed by blocks of 128 rows, but of 64 columns, as 128
    would have too many tiles."""
    launches = check(
        window(70, 130, 70), 8, 16, torch.float16, heads=3, bias="shared", dropout_p=0.3,
        gradient_rows={64, 128},
    )  # fmt: skip
    assert launches.count("attention_tile_gradient") == 4  # a pass by rows for each head


@pytest.mark.parametrize(
    ("dtype", "length", "kernel", "gradient"),
    [
        (torch.float16, 64 * 12 + 12, "attention_tile", "attention_tile_gradient"),
        (torch.float32, 64 * 5 + 12, "attention_tile_simt", "attention_gradient"),
    ],
)
def test_parts_of_long_rows_and_columns_of_tiles_are_merged(
    dtype: torch.dtype, length: int, kernel: str, gradient: str
) -> None:
    """With scores that rise by much more than 2^8 from tile to tile, and with a negative scale.
    Rows of floats are cut from fewer tiles on."""
    for shape, scale in (((20, length), 4.0), ((length, 20), -0.5)):
        mask = torch.ones(shape, dtype=torch.bool)
        launches = check(SparsePattern.from_torch(mask), 8, 16, dtype, scale=scale)
        assert launches.count(kernel) == (2 if shape[1] == length else 1)
        assert launches.count(gradient) == 3


@pytest.mark.parametrize(
    ("counts", "heads", "sm_count", "limit"),
    [
        ([100] * 4, 1, 4, 100),  # alike, and one for each multiprocessor: twice a block's share
        ([100] * 4, 1, 5, 20),  # too few
        ([300, 1, 1, 1], 1, 4, 19),  # one is longer
        ([300, 1, 1, 1], 3, 4, 228),  # heads make many
        ([9, 9], 8, 132, 12),
    ],
)
def test_rows_of_tiles_stay_whole_where_they_balance_themselves(
    counts: list[int], heads: int, sm_count: int, limit: int
) -> None:
    device = replace(H200, sm_count=sm_count)
    assert part_limit(np.array(counts), heads, 2, device) == limit


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_nonzeros_in_any_order_duplicates_and_rows_without_any(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(100, 150, (400,), generator=generator)
    cols = torch.randint(0, 70, (400,), generator=generator)
    pattern = SparsePattern.from_coo(rows, cols, (200, 90))
    check(pattern, 8, 16, dtype, bias="by head", dropout_p=0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_transpose_of_a_mask_by_its_columns(dtype: torch.dtype) -> None:
    """Rows that start at no multiple of 16 bytes."""
    check(window(80, 90, 30).T, 20, 13, dtype, bias="by head")


@pytest.mark.parametrize(("d", "dtype"), [(70, torch.float16), (128, torch.float32)])
def test_rows_longer_than_64_elements(d: int, dtype: torch.dtype) -> None:
    check(window(70, 90, 30), d, 128, dtype)


def test_scattered_tiles_are_not_stacked() -> None:
    """Blocks of 64 rows and columns, of which neighbours have no columns in common."""
    blocks = torch.zeros(4, 4, dtype=torch.bool)
    blocks[[0, 1, 2, 3], [2, 0, 3, 1]] = True
    mask = blocks.repeat_interleave(64, 0).repeat_interleave(64, 1)[:, :250]
    check(SparsePattern.from_torch(mask), 16, 8, torch.bfloat16, heads=2, gradient_rows={64})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_infinities_and_nan_reach_the_rows_that_they_must_and_no_other(dtype: torch.dtype) -> None:
    def change(q: Tensor, k: Tensor, v: Tensor) -> None:
        v[0, 60, 3], k[0, 80, 5], q[0, 7, 1] = torch.inf, torch.nan, torch.inf

    gradient_rows = None if dtype == torch.float32 else {64}
    check(window(70, 90, 20), 8, 16, dtype, change=change, gradient_rows=gradient_rows)


def test_rows_of_finite_halves_are_multiplied_by_tiles_not_one_by_one() -> None:
    """Tiles round weights to halves, in which 0.5 + 2^-15 is 0.5; rows that are computed anew, as
    those with an infinity are, do not."""
    pattern = SparsePattern.from_torch(torch.ones(70, 2, dtype=torch.bool))
    signs = torch.ones(1, 70, 1, dtype=torch.float16)
    signs[:, 1::2] = -1
    k = torch.tensor([[[0.0], [1.0]]], dtype=torch.float16)
    v = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float16)
    operands = AttentionOperands(signs, k, v, None, 2.0**-13)
    out, lse = torch.empty_like(signs), torch.empty(1, 70)
    gradients = AttentionGradients(*(torch.empty_like(x) for x in (signs, k, v)), None)
    with emulated_gpu(FEW):
        planner = Planner(ATTENTION_KERNELS, AttentionExecutor)
        problem = attention_problem(pattern, operands)
        prepared = planner.prepare(pattern, problem, FEW, "attention_tile")
        prepared.forward(operands, out, lse)
        prepared.prepare_backward()
        prepared.backward(operands, out, lse, signs, None, gradients)
    assert torch.equal(out, torch.zeros_like(out))
    assert gradients.v is not None
    assert torch.equal(gradients.v, torch.zeros_like(v))


def test_rows_of_finite_floats_are_multiplied_by_tiles_not_one_by_one() -> None:
    """Products of a tile are added in their order, in which 1 is lost beside 2^25; those of a row
    that is computed anew, as one with an infinity is, would be added by pairs of lanes."""
    pattern = window(70, 90, 20)
    q = torch.zeros(1, 70, 8)
    q[..., :3] = torch.tensor([2.0**25, 1.0, -(2.0**25)])
    k, v = torch.ones(1, 90, 8), torch.randn(1, 90, 16, generator=torch.Generator().manual_seed(0))
    out, lse = torch.empty(1, 70, 16), torch.empty(1, 70)
    operands = AttentionOperands(q, k, v, None, 1.0)
    with emulated_gpu(FEW):
        planner = Planner(ATTENTION_KERNELS, AttentionExecutor)
        problem = attention_problem(pattern, operands)
        planner.prepare(pattern, problem, FEW, "attention_tile_simt").forward(operands, out, lse)
    keys = torch.zeros(70, 90).index_put_((pattern.row_ids, pattern.col_ids), torch.tensor(1.0))
    torch.testing.assert_close(lse[0], keys.sum(1).log())
    torch.testing.assert_close(out[0], keys @ v[0] / keys.sum(1, keepdim=True))


def problem_of(dtype: torch.dtype, columns: int) -> AttentionProblem:
    device = torch.device("cuda", 0)
    return AttentionProblem(2**14, 2**14, 2**22, columns, columns, 8, dtype, torch.int32, device)


@pytest.mark.parametrize(
    ("dtype", "by_tiles"),
    [(torch.float16, "attention_tile"), (torch.float32, "attention_tile_simt")],
)
@pytest.mark.parametrize("full", [False, True])
def test_tiles_are_estimated_to_be_faster_where_they_are_full(
    full: bool, dtype: torch.dtype, by_tiles: str
) -> None:
    problem = problem_of(dtype, 64)
    tiles = 2**10 if full else 2**16
    counts = {(64, 64): TileCounts(tiles, tiles if full else 0, ())}
    facts = CountedFacts(problem.nnz, problem.nnz, True, counts, ())
    model = scaled_by_sm_count(H200)
    costs = {
        name: cost.run_us
        for name, kernel in ATTENTION_KERNELS.items()
        if kernel.refuses(problem, H200) is None
        and (cost := kernel.cost_us(problem, facts, model)) is not None
    }
    assert (min(costs, key=lambda name: costs[name]) == by_tiles) == full


def test_floats_are_not_estimated_to_be_faster_than_their_multiply_adds() -> None:
    """A multiprocessor of an H200 does 128 of these in each of 1980 cycles a microsecond."""
    problem, tiles = problem_of(torch.float32, 64), 2**14
    facts = CountedFacts(
        problem.nnz, problem.nnz, True, {(64, 64): TileCounts(tiles, tiles, ())}, ()
    )
    cost = ATTENTION_KERNELS["attention_tile_simt"].cost_us(
        problem, facts, scaled_by_sm_count(H200)
    )
    assert cost is not None
    bound_us = problem.heads * tiles * 64 * 64 * (64 + 64) / (132 * 128 * 1980)
    assert bound_us < cost.run_us < 2 * bound_us


def test_floats_need_the_shared_memory_that_their_rows_take() -> None:
    kernel = ATTENTION_KERNELS["attention_tile_simt"]
    small = replace(H200, shared_bytes=101_376)
    assert kernel.refuses(problem_of(torch.float32, 64), small) is None
    assert kernel.refuses(problem_of(torch.float32, 128), H200) is None
    reason = kernel.refuses(problem_of(torch.float32, 128), small)
    assert reason == "needs 111648 bytes of shared memory for d and dv of 128 and 128, has 101376"
