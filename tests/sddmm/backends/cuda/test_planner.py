"""The planners rank kernels once for all mini-batches of about one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.runtime.device import Device
from sddmm.backends import base
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.cost_model import Cost, DeviceModel
from sddmm.backends.cuda.facts import PatternFacts
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.kernels.row_gather.host import RowGather
from sddmm.backends.cuda.kernels.spmm_gather.host import SPMM_GATHER, SpmmGather
from sddmm.problem import SpmmProblem
from sddmm.testing import assert_close, assert_spmm_close, emulated_gpu, random_pattern

SIZE, K = 600, 16


def csr(nnz: int) -> Tensor:
    return random_pattern(SIZE, SIZE, nnz, layout="csr").to_torch(torch.randn(nnz))


def ranked(monkeypatch: pytest.MonkeyPatch, kernel: type[RowGather | SpmmGather]) -> list[Any]:
    """The problems for which this kernel is ranked from now on, by planners that know none yet."""
    monkeypatch.setattr(base, "BACKENDS", [CudaBackend(), *base.BACKENDS[1:]])
    problems: list[Any] = []
    cost_us: Callable[..., Cost] = kernel.cost_us

    def noted(self: RowGather | SpmmGather, problem: Any, *more: Any) -> Cost:
        problems.append(problem)
        return cost_us(self, problem, *more)

    monkeypatch.setattr(kernel, "cost_us", noted)
    return problems


def test_new_numbers_of_nonzeros_are_sampled_without_another_ranking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = ranked(monkeypatch, RowGather)
    a, b = torch.randn(SIZE, K), torch.randn(K, SIZE)
    with emulated_gpu():
        for batch, nnz in enumerate((6_100, 6_110, 6_118)):  # dense enough that tiles compete
            problems.clear()
            S = csr(nnz)
            out = sddmm.sddmm(S, a, b)
            assert bool(problems) == (batch == 0)
            assert_close(out.values(), S, a, b)


def test_new_numbers_of_nonzeros_are_multiplied_without_another_ranking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = ranked(monkeypatch, SpmmGather)
    dense = torch.randn(SIZE, K)
    with emulated_gpu():
        for batch, nnz in enumerate((2_950, 2_941, 2_960)):
            problems.clear()
            S = csr(nnz)
            out = sddmm.spmm(S, dense)
            assert bool(problems) == (batch == 0)
            assert_spmm_close(out, S, dense)


@dataclass(frozen=True, eq=False)
class Picky(SpmmGather):
    """Costs nothing, and refuses one number of nonzeros, though not its neighbours."""

    def refuses(self, problem: SpmmProblem, device: Device) -> str | None:
        return "is picky" if problem.nnz == 3_001 else super().refuses(problem, device)

    def cost_us(self, problem: SpmmProblem, facts: PatternFacts | None, model: DeviceModel) -> Cost:
        return Cost(0.0)


@pytest.mark.parametrize("transpose", [False, True])
def test_a_kernel_that_serves_alike_problems_only_is_not_taken(transpose: bool) -> None:
    picky = Picky(**{**vars(SPMM_GATHER), "name": "picky"})
    planner = CudaBackend(product_kernels={"picky": picky, "spmm_gather": SPMM_GATHER})
    for nnz, name in ((3_000, "picky"), (3_001, "spmm_gather"), (3_002, "picky")):
        S = random_pattern(SIZE, SIZE, nnz, layout="csr")
        problem = SpmmProblem(
            SIZE, SIZE, K, nnz, torch.float32, torch.float32, torch.float32, S.index_dtype, None,
            False, False, S.device,
        )  # fmt: skip
        with emulated_gpu():
            notes = planner.prepare_product(S, problem, transpose).notes
        assert notes[0].startswith(f"kernel   {name}:")
        assert any("picky: is picky" in note for note in notes) == (name != "picky")


def test_an_explanation_begins_with_the_chosen_kernel() -> None:
    S = random_pattern(SIZE, SIZE, 3_000, layout="csr")
    with emulated_gpu():
        lines = sddmm.plan(S, k=K, dtype=torch.float32).explain().splitlines()
    choices = [line.split() for line in lines if line.startswith(("  kernel", "    not"))]
    names = [words[1].rstrip(":") for words in choices]
    assert names[0] == "row_gather"
    assert {name for name, kernel in KERNELS.items() if not kernel.parts} <= set(names)
    assert len(set(names)) == len(names)
