"""The kernels of sparse attention, run on the CPU: shares, cut rows, tails, and gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.runtime.device import Device
from sddmm import SparsePattern
from sddmm.backends.base import AttentionOperands
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.kernels.attention_gather.groups import THREADS, groups_of, row_macros
from sddmm.backends.cuda.kernels.attention_gather.shares import SharedRows, rows_by_warp
from sddmm.backends.cuda.kernels.attention_gather.tunings import (
    SHORT_TUNING,
    TUNING,
    tuning_of,
)
from sddmm.backends.cuda.kernels.attention_sums import host as attention_sums
from sddmm.backends.cuda.pattern_layouts import PatternLayouts
from sddmm.problem import AttentionProblem
from sddmm.testing import (
    H200,
    assert_attention_close,
    assert_attention_gradients_close,
    emulated_gpu,
    random_pattern,
)
from tests.sddmm.memory import at_a_cliff

# A warp has from 32 nonzeros and rows on, so that few multiprocessors give a warp many.
FEW, MANY = replace(H200, sm_count=1), replace(H200, sm_count=20)
# Where L2 does not hold the operands, rows of few nonzeros are loaded as others are.
MANY_WITH_LITTLE_L2 = replace(MANY, l2_bytes=1000)


def rows_of(heads: int | None, count: int, d: int, dtype: torch.dtype, gap: int) -> Tensor:
    """Random rows at the edge of memory; those of all heads interleaved, as (rows, heads, d) are,
    and `gap` elements apart."""
    generator = torch.Generator().manual_seed(count + d)
    x = torch.randn(count, heads or 1, d + gap, generator=generator).to(dtype)
    x = at_a_cliff(x[..., :d]).transpose(0, 1)
    return (x[0] if heads is None else x).requires_grad_()


def check(
    pattern: SparsePattern,
    d: int,
    dv: int,
    dtype: torch.dtype,
    *,
    heads: int | None = None,
    gap: int = 0,
    bias: str = "",
    dropout_p: float = 0.0,
    device: Device = FEW,
    change: Callable[..., None] | None = None,
) -> list[str]:
    """Compare the attention and its gradients with float64; the kernels launched.

    bias: "shared" by all heads, or "by head". change: called with q, k, v and the bias before.
    """
    m, n = pattern.shape
    q, k, v = (rows_of(heads, *size, dtype, gap) for size in ((m, d), (n, d), (n, dv)))
    generator = torch.Generator().manual_seed(5)
    lead = (heads,) if bias == "by head" and heads else ()
    b = torch.randn(*lead, pattern.nnz, generator=generator).to(dtype).requires_grad_()
    inputs = [q, k, v, b] if bias else [q, k, v]
    if change is not None:
        with torch.no_grad():
            change(*inputs)
    grad = torch.randn(*q.shape[:-1], dv, generator=generator).to(dtype)
    grad_lse = torch.randn(q.shape[:-1], generator=generator)
    options: dict[str, object] = {"dropout_p": dropout_p} | ({"bias": b} if bias else {})
    with emulated_gpu(device) as launches:
        state = generator.get_state()
        out, lse = sddmm.sparse_attention(
            pattern, q, k, v, generator=generator if dropout_p else None, return_lse=True, **options
        )
        gradients = torch.autograd.grad((out, lse), inputs, (grad, grad_lse))
    if dropout_p:
        generator.set_state(state)
        options["seed"] = torch.randint(2**63 - 1, (1,), generator=generator)
    assert_attention_close(out, pattern, q, k, v, lse=lse, **options)
    assert_attention_gradients_close(
        gradients, pattern, q, k, v, grad, grad_lse=grad_lse, **options
    )
    return launches


def with_hubs(shuffled: bool = True) -> SparsePattern:
    """Two long rows, the second of which begins in a share where the first ends; a long column;
    rows of a few nonzeros, and many empty ones; duplicates."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.tensor([40] * 290 + [41] * 170),
        torch.randint(0, 150, (200,), generator=generator),
    ]
    cols = [torch.randint(0, 90, (460,), generator=generator), torch.full((200,), 7)]
    some = torch.arange(100)
    row, col = torch.cat([*rows, some]), torch.cat([*cols, some % 90])
    order = torch.randperm(row.numel(), generator=generator) if shuffled else row.argsort()
    return SparsePattern.from_coo(row[order], col[order], (300, 95))


def test_rows_of_two_loads_of_a_warp_with_tails_and_strides() -> None:
    launches = check(random_pattern(30, 40, 150), 132, 130, torch.float32, heads=2, gap=2)
    # No row is cut, and rows of many bytes have their weights stored.
    found = ("attention_gather", "attention_gradient", "attention_sums")
    assert [launches.count(name) for name in found] == [1, 1, 1]


@pytest.mark.parametrize("apart", ["rows", "heads", "neither"])
@pytest.mark.parametrize("changed", ["q", "k", "v"])
def test_loads_are_as_wide_as_the_alignment_of_every_row_allows(changed: str, apart: str) -> None:
    """Rows of 40 bytes, 64 bytes apart; those of one operand 66, or its heads 2 bytes more."""
    operands = []
    for name, size in (("q", 67), ("k", 90), ("v", 90)):
        pitch = 33 if name == changed and apart == "rows" else 32
        head = 33 * 90 - 90 * 33 % 8 + (name == changed and apart == "heads")
        memory = torch.randn(3 * head, generator=torch.Generator().manual_seed(size)).half()
        operands.append(memory.as_strided((2, size, 20), (head, pitch, 1)))
    pattern = random_pattern(67, 90, 400)
    with emulated_gpu(FEW):
        assert_attention_close(sddmm.sparse_attention(pattern, *operands), pattern, *operands)


@pytest.mark.parametrize("device", [MANY, MANY_WITH_LITTLE_L2])
@pytest.mark.parametrize("bias", ["", "shared"])
@pytest.mark.parametrize("stored", [False, True])
def test_rows_and_columns_that_many_warps_cut(bias: str, stored: bool, device: Device) -> None:
    """Each head drops weights of its own, and the gradients drop the same. The weights of rows of
    few bytes are computed by both passes, those of others by the pass by rows, for the other."""
    heads = 2 if bias else None
    dropout_p = 0.4 if bias else 0.0
    launches = check(
        with_hubs(), 64, 64, torch.float32 if stored else torch.float16, heads=heads, bias=bias,
        dropout_p=dropout_p, device=device,
    )  # fmt: skip
    assert launches.count("attention_gather") == 2
    by_rows = 3 if bias == "shared" else 2  # the second head adds to the bias' gradient
    assert launches.count("attention_gradient") == by_rows + (0 if stored else 2)
    assert launches.count("attention_sums") == (by_rows if stored else 0)
    assert launches.count("attention_delta") == (0 if stored else 1)


@pytest.mark.parametrize(
    ("d", "dv", "dtype", "bias"),
    [
        (64, 64, torch.float32, "shared"),
        (128, 96, torch.float32, ""),
        (96, 128, torch.float32, ""),
        (64, 48, torch.float16, ""),
    ],
)
def test_rows_of_many_nonzeros_and_keys_and_values_of_other_sizes(
    d: int, dv: int, dtype: torch.dtype, bias: str
) -> None:
    """Rows have more nonzeros than are loaded together; where sizes differ, the lanes that load a
    row reach past the end of the shorter one alone. Only rows of many bytes have weights stored."""
    launches = check(random_pattern(30, 40, 400), d, dv, dtype, heads=2, bias=bias)
    assert ("attention_sums" in launches) == (dtype == torch.float32)


def test_heads_store_as_many_weights_as_are_allowed_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pattern = with_hubs()
    monkeypatch.setattr(attention_sums, "MOST_WEIGHTS", 2 * pattern.nnz + 1)
    launches = check(pattern, 64, 64, torch.float32, heads=3, bias="by head", device=MANY)
    passes = [x for x in launches if x in ("attention_gradient", "attention_sums")]
    # Two heads, the third, and what merges pieces of all.
    assert passes == ["attention_gradient", "attention_sums"] * 3
    monkeypatch.setattr(attention_sums, "MOST_WEIGHTS", pattern.nnz - 1)
    launches = check(pattern, 64, 64, torch.float32, heads=3, device=MANY)
    assert "attention_sums" not in launches


def test_columns_of_few_nonzeros_have_their_weights_stored() -> None:
    launches = check(random_pattern(90, 67, 300), 16, 8, torch.bfloat16, heads=2)
    assert "attention_sums" in launches
    launches = check(random_pattern(90, 67, 500), 16, 8, torch.bfloat16, heads=2)
    assert "attention_sums" not in launches


@pytest.mark.parametrize("device", [MANY, MANY_WITH_LITTLE_L2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_infinities_and_nan_stay_in_the_rows_that_they_reach(
    dtype: torch.dtype, device: Device
) -> None:
    """In cut rows too. A row with no score but -inf is 0 and has no gradients; one whose scores are
    far below zero has as good a result as others."""
    pattern = with_hubs(shuffled=False)
    rows = pattern.row_ids

    def change(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> None:
        bias[(rows == 40).nonzero()[:-3]] = -torch.inf  # whole shares of a row
        bias[rows == 3] = -torch.inf
        bias[rows % 10 == 6] -= 300
        bias[(rows == 5).nonzero()[0]] = torch.inf
        q[8:40:6, 5] = torch.nan
        v[12:40:3, 63] = torch.inf
        k[20:40:6, 1] = -torch.inf

    check(pattern, 64, 64, dtype, bias="shared", device=device, change=change)


@pytest.mark.parametrize("d", [16, 64])
def test_nan_of_a_row_reaches_the_columns_of_its_nonzeros_alone(d: int) -> None:
    """Though lanes hold the weights of the next column's nonzeros beside those of a batch."""

    def change(q: Tensor, k: Tensor, v: Tensor) -> None:
        q[8] = torch.nan

    launches = check(random_pattern(90, 67, 300), d, d, torch.float32, change=change)
    assert "attention_sums" in launches


def test_operands_of_another_alignment_on_a_known_pattern() -> None:
    pattern = random_pattern(67, 90, 400)
    with emulated_gpu(FEW):
        for gap in (0, 1, 0):
            q, k, v = (rows_of(2, size, 20, torch.float16, gap).detach() for size in (67, 90, 90))
            assert_attention_close(sddmm.sparse_attention(pattern, q, k, v), pattern, q, k, v)


def test_only_the_passes_whose_gradients_are_needed_are_launched() -> None:
    pattern = random_pattern(67, 90, 300)
    q, k, v = (rows_of(None, size, 64, torch.float16, 0) for size in (67, 90, 90))
    for x in (q, k, v):
        with emulated_gpu(FEW) as launches:
            out = sddmm.sparse_attention(pattern, *(y if y is x else y.detach() for y in (q, k, v)))
            out.sum().backward()
        assert launches.count("attention_gradient") == 1
        assert "attention_sums" not in launches


def test_it_says_what_it_refuses_and_predicts() -> None:
    def problem(d: int, dtype: torch.dtype) -> AttentionProblem:
        return AttentionProblem(
            67, 90, 700, d, 64, 1, dtype, torch.int64, torch.device("cpu")
        )  # fmt: skip

    with emulated_gpu():
        backend = CudaBackend()
        assert backend.refuses_attention(problem(512, torch.float16)) is None
        assert "at most 512" in str(backend.refuses_attention(problem(513, torch.float16)))
        assert "not float64" in str(backend.refuses_attention(problem(64, torch.float64)))
        pattern = random_pattern(67, 90, 700)
        notes = backend.prepare_attention(pattern, problem(64, torch.float16)).notes
    assert "predicted" in notes[0]


def test_a_launch_on_a_known_pattern_enters_few_functions() -> None:
    """All that follows from the problem and the pattern is found once."""
    pattern = random_pattern(67, 90, 700)
    q, k, v = (rows_of(2, size, 64, torch.float16, 0).detach() for size in (67, 90, 90))
    inputs = AttentionOperands(q, k, v, None, 0.125)
    out, lse, entered = torch.empty_like(q), torch.empty(2, 67), []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/sddmm/backends/" in frame.f_code.co_filename:
            entered.append(frame.f_code.co_qualname)

    with emulated_gpu(MANY):
        problem = attention_problem(pattern, 64, 2)
        prepared = CudaBackend().prepare_attention(pattern, problem)
        prepared.forward(inputs, out, lse)
        sys.setprofile(note)
        try:
            prepared.forward(inputs, out, lse)
        finally:
            sys.setprofile(None)
    assert "Launcher.run" in entered
    assert len(entered) <= 10


@pytest.mark.parametrize(("d", "has_dropout"), [(64, False), (64, True), (16, False), (512, False)])
def test_a_small_pattern_has_one_warp_for_each_that_runs_at_once(d: int, has_dropout: bool) -> None:
    """One more, and all would wait for it; many fewer, and the GPU would idle."""
    pattern = random_pattern(500, 500, 30_000)
    problem = attention_problem(pattern, d, 1, has_dropout)
    macros = row_macros(d, d, 2, 16, TUNING, MANY, has_dropout)
    at_once = MANY.sm_count * macros["MIN_BLOCKS"] * THREADS // 32
    assert 0.9 * at_once < shares_of(pattern, problem, MANY).number <= at_once


@pytest.mark.parametrize(("per_row", "m"), [(3, 2000), (20, 500), (300, 200)])
def test_shares_are_so_large_that_most_end_where_a_row_does(per_row: int, m: int) -> None:
    """So that there is nothing to merge."""
    rows = torch.arange(m).repeat_interleave(per_row)
    pattern = SparsePattern.from_coo(rows, torch.arange(m * per_row) % 700, (m, 700))
    shares = shares_of(pattern, attention_problem(pattern, 64, 1), MANY if m > 200 else FEW)
    assert shares.cuts == 0
    assert shares.number > 40


def test_rows_of_few_nonzeros_are_loaded_by_smaller_groups_if_l2_holds_the_operands() -> None:
    few, many = random_pattern(300, 95, 3200), random_pattern(300, 95, 3300)
    problem = attention_problem(few, 64, 1)
    assert tuning_of(problem, MANY) == SHORT_TUNING
    assert tuning_of(problem, MANY_WITH_LITTLE_L2) == TUNING
    assert tuning_of(attention_problem(many, 64, 1), MANY) == TUNING
    short, usual = (groups_of(64, 64, 2, tuning) for tuning in (SHORT_TUNING, TUNING))
    assert (short.lanes, short.chunks, usual.lanes, usual.chunks) == (4, 2, 8, 1)


def test_heads_share_a_large_pattern_as_one_does_unless_pieces_of_rows_take_much_memory() -> None:
    short_rows = random_pattern(20_000, 30, 60_000)
    one, many = (
        shares_of(short_rows, attention_problem(short_rows, 64, heads), FEW) for heads in (1, 40)
    )
    assert one.number > 100
    assert many.number > 0.9 * one.number
    cols = torch.arange(110_000)
    long_row = SparsePattern.from_coo(torch.zeros_like(cols), cols, (1, 110_000))
    one, many = (
        shares_of(long_row, attention_problem(long_row, 512, heads), FEW) for heads in (1, 400)
    )
    piece_bytes = 4 * 32 * (2 + 4 * 8)
    assert one.pieces > 90
    assert many.pieces * 400 * piece_bytes <= 2**25


def attention_problem(
    pattern: SparsePattern, d: int, heads: int, has_dropout: bool = False
) -> AttentionProblem:
    sizes = (*pattern.shape, pattern.nnz, d, d, heads, torch.float16, torch.int32, pattern.device)
    return AttentionProblem(*sizes, has_dropout=has_dropout)


def shares_of(pattern: SparsePattern, problem: AttentionProblem, device: Device) -> SharedRows:
    with emulated_gpu(device):
        nonzeros = PatternLayouts(pattern, device).by_row()
        return rows_by_warp(nonzeros, problem, problem.m, TUNING, device)
