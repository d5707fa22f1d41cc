"""A choice is told at DEBUG, a compilation at INFO; a call that finds its plan tells nothing."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch

import sddmm
from sddmm.backends.cpu.jit import jit
from sddmm.backends.selection import forget_choices, select_attention_backend
from sddmm.diagnostics import attention_problems
from sddmm.testing import emulated_gpu, random_pattern


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sddmm")


def test_the_choice_of_a_kernel_is_told_with_the_refusals_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pattern = random_pattern(600, 500, 9000)  # kernels that other tests compile too
    a, b = torch.randn(600, 64), torch.randn(64, 500)
    with emulated_gpu():
        plan = sddmm.plan(pattern, k=64, dtype=torch.float32)
        backend, choice = caplog.messages
        assert backend.startswith("backend cuda serves SddmmProblem(m=600, n=500, k=64, nnz=9000")
        assert "by cuda: kernel row_gather" in choice
        assert re.search(r"; not windows: [\d.]+ us predicted; ", choice)
        assert "tile_wmma_m16n16k16: computes float16, not float32" in choice
        caplog.clear()
        plan.run(a, b)
        sddmm.sddmm(pattern, a, b)  # by the plan
        assert caplog.messages == []


def test_the_backend_of_a_product_is_told_with_the_refusals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget_choices()
    pattern = random_pattern(9, 8, 20)
    sddmm.spmm(pattern, torch.ones(8, 4), values=torch.ones(pattern.nnz))
    refusal, backend, notes = (m for m in caplog.messages if "compiled in" not in m)
    assert refusal == "backend cuda refuses the product: torch sees no CUDA device"
    assert backend.startswith("backend cpu serves SpmmProblem(m=9, n=8, k=4, nnz=20")
    assert notes.endswith("the CPU's kernel, compiled by numba")


def test_what_attention_prepares_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    pattern = random_pattern(9, 8, 20)
    q = torch.ones(9, 4, requires_grad=True)
    for _ in range(2):
        sddmm.sparse_attention(pattern, q, torch.ones(8, 4), torch.ones(8, 4)).sum().backward()
    forward, backward = (m for m in caplog.messages if m.startswith("AttentionProblem(m=9, n=8"))
    assert forward.endswith("): the CPU's kernels, compiled by numba")
    assert backward.endswith(") with its backward: the CPU's kernels, compiled by numba")


def test_the_backend_of_attention_is_told_with_the_refusals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget_choices()
    problem = attention_problems(torch.device("cpu"))["float32"]
    for _ in range(2):
        select_attention_backend(problem)
    refusal, *others = caplog.messages
    assert refusal == "backend cuda refuses the attention: torch sees no CUDA device"
    assert all(line.startswith("backend ") for line in others)


def test_a_compilation_by_numba_is_told_at_info(caplog: pytest.LogCaptureFixture) -> None:
    functions: dict[str, Any] = {"__name__": "sddmm.testing"}
    exec("def double(x):\n    return 2 * x", functions)  # of no file, so that numba caches nothing
    assert jit(functions["double"])(21) == 42
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.message.startswith("double for the CPU: compiled in ")


def test_the_packages_install_no_handlers() -> None:
    packages = ("sddmm", "gemm_core")
    names = [n for n in logging.root.manager.loggerDict if n.split(".")[0] in packages]
    assert len(names) > 3
    assert all(not logging.getLogger(name).handlers for name in names)
