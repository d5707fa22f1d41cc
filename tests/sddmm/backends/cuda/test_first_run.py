"""When a first call takes the way without a plan, and what its host does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from sddmm.backends import base
from sddmm.backends.base import SingleRuns
from sddmm.backends.cuda import single_run
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.pinned_results import PinnedResults
from sddmm.prepared import FirstRun
from sddmm.problem import make_problem
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import assert_close, emulated_gpu

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")

M, N, K, NNZ = 3, 50, 24, 6
CROW, COLS = torch.tensor([0, 2, 4, 6]), torch.tensor([0, 3, 1, 4, 2, 49])
PATTERN = SparsePattern.from_csr(CROW, COLS, (M, N))
WITHOUT_PLAN, WITH_PLAN = ["gather_csr"], ["analyse", "row_gather"]


def csr_tensor(values: Tensor | None = None, crow: Tensor = CROW, cols: Tensor = COLS) -> Tensor:
    values = torch.randn(NNZ) if values is None else values
    return torch.sparse_csr_tensor(crow, cols, values, (M, N), check_invariants=False)


def operands() -> tuple[Tensor, Tensor]:
    return torch.randn(M, K), torch.randn(N, K).mT


def runs_and_run(values: Tensor | None = None) -> tuple[SingleRuns, FirstRun]:
    """The runs without a plan on the current GPU, and one to try."""
    problem = make_problem(PATTERN, k=K, dtype=torch.float32)
    runs = CudaBackend().single_runs(problem, True, False)
    assert runs is not None
    return runs, FirstRun(problem, *operands(), values, 1.0, keeps_pattern=False)


def negated(x: Tensor) -> Tensor:
    """A view of numbers that torch negates when they are read."""
    return torch._neg_view(x)


def zeros_without_memory(x: Tensor) -> Tensor:
    return torch._efficientzerotensor(x.shape)


def apart(x: Tensor) -> Tensor:
    """The same numbers, none beside another."""
    return torch.stack([x, x], dim=-1)[..., 0]


def test_a_problem_is_computed_where_the_call_is_made() -> None:
    """Whatever computed an equal one before."""
    a, b = operands()
    for _ in range(2):
        S = csr_tensor()
        assert_close(sddmm.sddmm(S, a, b).values(), S, a, b)
        with emulated_gpu() as launches:
            S = csr_tensor()
            product = sddmm.sddmm(S, a, b)
        assert launches == WITHOUT_PLAN
        assert_close(product.values(), S, a, b)


def test_equal_first_calls_ask_the_backends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refusal, single_runs = base.refusal, CudaBackend.single_runs

    def asking(backend: Any, problem: Any) -> str | None:
        asked.append(backend.name)
        return refusal(backend, problem)

    def finding(self: CudaBackend, *key: Any) -> Any:
        asked.append("single runs")
        return single_runs(self, *key)

    monkeypatch.setattr(base, "refusal", asking)
    monkeypatch.setattr(CudaBackend, "single_runs", finding)
    with emulated_gpu() as launches:
        for _ in range(3):
            sddmm.sddmm(csr_tensor(), *operands())
    assert launches == 3 * WITHOUT_PLAN
    assert asked == ["cuda", "single runs"]


def test_runs_of_an_emulated_gpu_end_with_it() -> None:
    with emulated_gpu():
        runs, run = runs_and_run()
    assert not runs(PATTERN, run)
    with emulated_gpu():  # another one
        assert not runs(PATTERN, run)
    assert not run.is_launched


@pytest.mark.parametrize("change", [negated, zeros_without_memory, apart])
@pytest.mark.parametrize("changed", ["a", "b"])
def test_operands_that_no_kernel_reads_as_they_are_take_the_way_with_a_plan(
    changed: str, change: Callable[[Tensor], Tensor]
) -> None:
    a, b = operands()
    if changed == "a":
        a = change(a)
    else:
        b = change(b.mT).mT
    S = csr_tensor()
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b)
    assert launches == WITH_PLAN
    assert_close(product.values(), S, a.clone().contiguous(), b.clone().contiguous())


@pytest.mark.parametrize("change", [negated, zeros_without_memory, apart])
def test_values_that_no_kernel_reads_as_they_are_are_no_run_without_a_plan(
    change: Callable[[Tensor], Tensor],
) -> None:
    values = torch.randn(NNZ)
    with emulated_gpu() as launches:
        runs, run = runs_and_run(values)
        assert runs(PATTERN, run)
        runs, run = runs_and_run(change(values))
        assert not runs(PATTERN, run)
    assert launches == WITHOUT_PLAN


@pytest.mark.parametrize("changed", ["crow", "cols"])
def test_indices_apart_take_the_way_with_a_plan(changed: str) -> None:
    indices = {"crow": CROW, "cols": COLS}
    S, a, b = csr_tensor(**{**indices, changed: apart(indices[changed])}), *operands()
    with emulated_gpu() as launches:
        product = sddmm.sddmm(S, a, b)
    assert launches == WITH_PLAN
    assert_close(product.values(), csr_tensor(S.values()), a, b)


def test_another_current_device_takes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated_gpu():
        runs, run = runs_and_run()
        monkeypatch.setattr(single_run.loader.runtime, "current_device", lambda: 1)
        assert not runs(PATTERN, run)


def test_deterministic_algorithms_take_the_way_with_a_plan() -> None:
    S, a, b = csr_tensor(), *operands()
    sddmm.sddmm(csr_tensor(), a, b)
    torch.use_deterministic_algorithms(True)
    try:
        with emulated_gpu() as launches:
            first, second = (sddmm.sddmm(S, a, b).values() for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert launches[0] == "analyse"
    assert launches[-1] == launches[-2] != "gather_csr"
    assert torch.equal(first, second)


def test_a_first_call_is_refused_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    S, a, b = csr_tensor(), *operands()
    with emulated_gpu() as launches:
        sddmm.sddmm(csr_tensor(), a, b)
        with monkeypatch.context() as capture:
            capture.setattr("sddmm.prepared.is_capturing", lambda device: True)
            with pytest.raises(RuntimeError, match="call it once before the capture"):
                sddmm.sddmm(S, a, b)
        assert launches == WITHOUT_PLAN


@pytest.mark.parametrize("is_small", [True, False])
def test_the_host_makes_the_result_before_it_waits(
    is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of that, it waits: the next run reports in the same words."""
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    if not is_small:
        monkeypatch.setattr(single_run, "SINGLE_LAUNCH_US", 0.0)
    done: list[str] = []
    wait, make = PinnedResults.wait, torch.sparse_csr_tensor

    def waiting(self: PinnedResults, index: int) -> list[int]:
        done.append("wait")
        return wait(self, index)

    def making(*args: Any, **kwargs: Any) -> Tensor:
        done.append("make")
        if len(done) > 2:
            raise MemoryError("for the test")
        return make(*args, **kwargs)

    first, second, a, b = csr_tensor(), csr_tensor(), *operands()
    monkeypatch.setattr(PinnedResults, "wait", waiting)
    monkeypatch.setattr(torch, "sparse_csr_tensor", making)
    with emulated_gpu() as launches:
        product = sddmm.sddmm(first, a, b)
        with pytest.raises(MemoryError):
            sddmm.sddmm(second, a, b)
    assert_close(product.values(), first, a, b)
    assert launches == 2 * (WITHOUT_PLAN if is_small else WITH_PLAN)
    assert done == ["make", "wait", "make", "wait"]
