"""attention_scores: attention in two steps, with scores in memory, run on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda.attention import AttentionExecutor
from sddmm.backends.cuda.cost_model import Cost
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.facts import UniformFacts
from sddmm.backends.cuda.kernels.attention_scores import host
from sddmm.backends.cuda.kernels.registry import ATTENTION_KERNELS
from sddmm.backends.cuda.kernels.row_gather.host import RowGather
from sddmm.backends.cuda.planner import Planner
from sddmm.problem import AttentionProblem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import (
    H200,
    assert_attention_close,
    assert_attention_gradients_close,
    emulated_gpu,
    random_pattern,
)
from tests.sddmm.backends.cuda.test_attention_on_cpu import MANY, rows_of, with_hubs

MODEL = scaled_by_sm_count(H200)


def check(
    pattern: SparsePattern,
    d: int,
    dv: int,
    dtype: torch.dtype,
    *,
    heads: int = 1,
    bias: bool = False,
    dropout_p: float = 0.0,
    gap: int = 0,
) -> list[str]:
    """Compare the attention and its gradients with float64; the kernels launched."""
    m, n = pattern.shape
    q, k, v = (rows_of(heads, *size, dtype, gap).detach() for size in ((m, d), (n, d), (n, dv)))
    b = torch.randn(heads, pattern.nnz).to(dtype) if bias else None
    seed = torch.tensor([5]) if dropout_p else None
    scale = max(1, d) ** -0.5
    inputs = AttentionOperands(q, k, v, b, scale, dropout_p, seed)
    out = torch.full((heads, m, dv), torch.nan, dtype=dtype)
    lse = torch.full((heads, m), torch.nan)
    gradients = AttentionGradients(
        *(None if x is None else torch.full(x.shape, torch.nan, dtype=dtype) for x in (q, k, v, b))
    )
    grad = torch.randn_like(out)
    with emulated_gpu(MANY) as launches:
        planner = Planner(ATTENTION_KERNELS, AttentionExecutor)
        problem = attention_problem(pattern, inputs)
        prepared = planner.prepare(pattern, problem, MANY, "attention_scores")
        prepared.forward(inputs, out, lse)
        forward = launches.copy()
        prepared.prepare_backward()
        prepared.backward(inputs, out, lse, grad, None, gradients)
    options = {"bias": b, "dropout_p": dropout_p, "seed": seed, "scale": scale}
    assert_attention_close(out, pattern, q, k, v, lse=lse, **options)
    assert_attention_gradients_close(gradients, pattern, q, k, v, grad, **options)
    return forward


def test_scores_of_an_unsorted_pattern_with_a_bias_and_dropout() -> None:
    """Each nonzero's bias and factor are found by its position in S, its score by its row."""
    launches = check(with_hubs(), 64, 20, torch.float16, heads=3, bias=True, dropout_p=0.3)
    assert launches.count("row_gather") == 1
    assert launches.count("attention_gather") == 2  # the second merges rows that warps cut


def test_scores_of_a_few_heads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven heads, of which memory is for five, come as four and three. Each draws its own
    dropout."""
    pattern = with_hubs()
    monkeypatch.setattr(host, "MOST_SCORES", 5 * pattern.nnz + 1)
    launches = check(pattern, 36, 64, torch.bfloat16, heads=7, dropout_p=0.3, bias=True, gap=4)
    assert launches.count("row_gather") == 2


def test_heads_that_come_one_by_one_are_shared_among_as_many_warps_as_one_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pattern, numbers = random_pattern(200, 100, 12_000), []
    new_launcher = host.Launcher

    def spy(*arguments: Any, **options: Any) -> host.Launcher:
        numbers.append((launcher := new_launcher(*arguments, **options)).rows.number)
        return launcher

    monkeypatch.setattr(host, "Launcher", spy)
    monkeypatch.setattr(host, "MOST_SCORES", 12_000)
    for heads in (1, 5):
        check(pattern, 16, 16, torch.float16, heads=heads)
    one, several = numbers
    assert one == several > 50


@pytest.mark.parametrize("shuffled", [False, True])
def test_scores_of_a_part_of_a_head_at_a_time(
    shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that warps cut reach from one part into the next, and are merged at the end."""
    monkeypatch.setattr(host, "MOST_SCORES", 100)
    monkeypatch.setattr(host, "MOST_SCORES_ALONE", 200)
    pattern = with_hubs(shuffled)
    launches = check(pattern, 64, 64, torch.float32, heads=2, bias=True)
    steps = launches.count("row_gather") // 2
    assert steps * 200 > pattern.nnz
    assert launches.count("attention_gather") == 2 * (steps + 1)
    # SDDMM may keep partial sums of rows of more than 512 bytes, so fewer scores are kept.
    assert check(pattern, 160, 32, torch.float32).count("row_gather") > steps


def test_memory_for_scores_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    new_memory = host.new_memory

    def spy(what: str, shape: tuple[int, ...], *others: object) -> torch.Tensor:
        sizes.append(shape[0])
        return new_memory(what, shape, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(host, "new_memory", spy)
    monkeypatch.setattr(host, "MOST_SCORES", 300)
    monkeypatch.setattr(host, "MOST_SCORES_ALONE", 600)
    check(random_pattern(100, 100, 299), 32, 32, torch.float32, heads=4)
    check(with_hubs(), 32, 32, torch.float32, heads=2)
    check(with_hubs(), 160, 32, torch.float32)
    alone, parts, sliced = sizes
    assert alone == 299
    assert 300 < parts <= 600
    assert 0 < sliced <= 300


def test_windows_of_sddmm_compute_the_scores_where_they_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RowGather, "cost_us", lambda self, problem, facts, model: Cost(1e6))
    launches = check(with_hubs(), 64, 64, torch.float16, heads=2)
    assert launches.count("windows") == 1
    assert "row_gather" not in launches


@pytest.mark.parametrize(
    ("rows", "nnz", "d", "dtype", "best"),
    [
        (10_000, 1_000_000, 256, torch.float16, "attention_scores"),
        (10_000, 1_000_000, 64, torch.float32, "attention_scores"),
        (10_000, 1_000_000, 128, torch.bfloat16, "attention_scores"),
        (10_000, 1_000_000, 32, torch.float16, "attention_gather"),
        (100_000, 3_000_000, 64, torch.float16, "attention_gather"),
        (233_000, 57_000_000, 128, torch.bfloat16, "attention_scores"),
        (233_000, 57_000_000, 64, torch.float16, "attention_gather"),
        (102_400, 257_000, 64, torch.float16, "attention_gather"),
    ],
)
def test_two_steps_are_predicted_to_pay_where_rows_are_long(
    rows: int, nnz: int, d: int, dtype: torch.dtype, best: str
) -> None:
    problem, facts = problem_of(rows, nnz, d, dtype), UniformFacts((rows, rows), nnz)
    costs = {}
    for name in ("attention_gather", "attention_scores"):
        cost = ATTENTION_KERNELS[name].cost_us(problem, facts, MODEL)
        assert cost is not None
        costs[name] = cost.run_us
    assert min(costs, key=lambda name: costs[name]) == best


def problem_of(rows: int, nnz: int, d: int, dtype: torch.dtype) -> AttentionProblem:
    return AttentionProblem(rows, rows, nnz, d, d, 1, dtype, torch.int32, torch.device("cuda", 0))


def test_a_pattern_without_nonzeros_and_operands_without_columns() -> None:
    empty = SparsePattern.from_coo(torch.tensor([]).long(), torch.tensor([]).long(), (5, 7))
    assert check(empty, 16, 16, torch.float16, heads=2).count("row_gather") == 0
    check(random_pattern(40, 30, 200), 0, 16, torch.float16)
