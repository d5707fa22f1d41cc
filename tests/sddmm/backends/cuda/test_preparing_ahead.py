"""Products and attention launch what any pattern needs before the host waits for its analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from sddmm import SparsePattern
from sddmm.attention import attention_problem
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda.device_model import scaled_by_sm_count
from sddmm.backends.cuda.kernels.attention_gather.host import ATTENTION_GATHER
from sddmm.backends.cuda.pattern_layouts import AheadLayouts, PatternLayouts
from sddmm.backends.cuda.pinned_results import PinnedResults
from sddmm.backends.cuda.spec import ROW_IDS
from sddmm.testing import (
    H200,
    assert_attention_close,
    assert_attention_gradients_close,
    assert_spmm_close,
    emulated_gpu,
    random_pattern,
)

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")

M, N, D, NNZ = 60, 40, 16, 1100
FEW_NNZ = 5 * M  # whose rows products take to be short
WAIT = "wait for a report"

wait_for_report = PinnedResults.wait


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels launched and the waits for their reports, in their order."""
    with emulated_gpu() as launches:

        def wait(self: PinnedResults, index: int) -> list[int]:
            launches.append(WAIT)
            return wait_for_report(self, index)

        monkeypatch.setattr(PinnedResults, "wait", wait)
        yield launches


def product(S: Any) -> Tensor:
    return sddmm.spmm(S, dense(N), values=torch.ones(pattern_nnz(S)))


def turned_product(S: Any) -> Tensor:
    return sddmm.spmm(S, dense(M), values=torch.ones(pattern_nnz(S)), transpose=True)


def attention(S: Any) -> Tensor:
    out: Tensor = sddmm.sparse_attention(S, dense(M), dense(N), dense(N))
    return out


def pattern_nnz(S: Any) -> int:
    return S.nnz if isinstance(S, SparsePattern) else len(S[1])


def dense(rows: int) -> Tensor:
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(rows))


def check(call: Callable[[Any], Tensor], S: SparsePattern) -> None:
    result = call(S)
    if call is attention:
        assert_attention_close(result, S, dense(M), dense(N), dense(N))
        return
    transpose = call is turned_product
    operand = dense(M if transpose else N)
    assert_spmm_close(result, S, operand, values=torch.ones(S.nnz), transpose=transpose)


KERNELS = {product: "spmm_gather", attention: "attention_gather"}
CALLS = [product, turned_product, attention]


@pytest.mark.parametrize("call", KERNELS)
@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_rows_of_csr_are_shared_while_the_analysis_runs(
    call: Callable[[Any], Tensor], layout: str, index_dtype: torch.dtype, events: list[str]
) -> None:
    """Those of COO when it is done, as they may fall."""
    S = random_pattern(M, N, NNZ, layout=layout, index_dtype=index_dtype)
    check(call, S)
    ahead = ["spmm_shares"] if layout == "csr" else []
    assert events[: events.index(WAIT)] == ["analyse", *ahead]
    assert events[-1] == KERNELS[call]
    assert events.count("spmm_shares") == 1


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_short_rows_of_csr_are_found_while_the_analysis_runs(
    layout: str, events: list[str]
) -> None:
    check(product, random_pattern(M, N, FEW_NNZ, layout=layout))
    ahead = ["row_starts"] if layout == "csr" else []
    assert events[: events.index(WAIT)] == ["analyse", *ahead]
    assert (events[-1], events.count("row_starts")) == ("spmm_rows", 1)


@pytest.mark.parametrize("call", CALLS)
def test_a_pattern_in_another_order_is_sorted_then(
    call: Callable[[Any], Tensor], events: list[str]
) -> None:
    """Shares of unsorted rows would serve nobody, and none are made."""
    S = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
    check(call, S)
    assert events.count("spmm_shares") == 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("nnz", [FEW_NNZ, NNZ])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", [-(2**31), -1, 60, 2**31 - 1])
@pytest.mark.parametrize("kind", ["rows", "crow", "cols"])
def test_wrong_indices_are_refused_and_the_next_pattern_is_right(
    kind: str, wrong: int, index_dtype: torch.dtype, call: Callable[[Any], Tensor],
    nnz: int, events: list[str],
) -> None:  # fmt: skip
    layout = "csr" if kind == "crow" else "coo"
    S = random_pattern(M, N, nnz, layout=layout, index_dtype=index_dtype)
    changed = S.col_indices if kind == "cols" else S.major_indices
    changed[changed.numel() // 2 :: 7] = wrong
    with pytest.raises(ValueError, match="col_indices" if kind == "cols" else "row_indices|crow"):
        call(S)
    check(call, random_pattern(M, N, nnz, layout=layout, index_dtype=index_dtype))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupt_of_a_wait_leaves_no_wrong_report(
    number: int, call: Callable[[Any], Tensor], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    S, other = (random_pattern(M, N, NNZ, seed=seed) for seed in (0, 1))

    def interrupted(self: PinnedResults, index: int) -> list[int]:
        events.append(WAIT)
        if events.count(WAIT) == number:
            raise KeyboardInterrupt
        return wait_for_report(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(PinnedResults, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(S)
    check(call, other)
    check(call, S)


@pytest.mark.parametrize("call", CALLS)
def test_a_pattern_without_nonzeros(call: Callable[[Any], Tensor], events: list[str]) -> None:
    empty = torch.tensor([]).long()
    assert not call(SparsePattern.from_coo(empty, empty, (M, N))).any()


def test_gradients_of_rows_that_were_taken_to_ascend_serve_no_other_plan() -> None:
    S = random_pattern(M, N, NNZ, layout="coo", shuffled=True)
    q, k, v = (dense(rows).unsqueeze(0) for rows in (M, N, N))
    inputs = AttentionOperands(q, k, v, None, 1.0)
    gradients = AttentionGradients(*map(torch.empty_like, (q, k, v)), None)
    out, lse, grad = torch.empty_like(q), torch.empty(1, M), torch.randn(1, M, D)
    problem, model = attention_problem(S, inputs), scaled_by_sm_count(H200)
    with emulated_gpu():
        ahead = AheadLayouts(S, H200, ROW_IDS)
        of_unsorted = ATTENTION_GATHER.prepare(ahead, problem, model)
        ahead.wait()
        (plan,) = ATTENTION_GATHER.prepare(PatternLayouts(S, H200), problem, model)
        plan.forward(inputs, out, lse)
        plan.prepare_backward()
        plan.backward(inputs, out, lse, grad, None, gradients)
    del of_unsorted
    assert_attention_close(out, S, q, k, v, scale=1.0)
    assert_attention_gradients_close(gradients, S, q, k, v, grad, scale=1.0)


def test_what_was_prepared_ahead_serves_no_pattern_for_which_another_kernel_is_quicker() -> None:
    """Rows are shared for gathering before it is known that the tiles of a window are full."""
    ones = torch.ones(600, 600)
    S = SparsePattern.from_torch((ones.tril() * ones.triu(-64)) != 0)
    values, x = torch.randn(S.nnz).half(), torch.randn(600, 64).half()
    with emulated_gpu(replace(H200, sm_count=4)) as launches:
        result = sddmm.spmm(S, x, values=values)
    assert_spmm_close(result, S, x, values=values)
    assert launches.index("spmm_shares") < launches.index("tile_stats")
    assert launches[-1].startswith("spmm_tile")
