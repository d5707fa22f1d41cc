"""Plans are reused while they hold, and never when they no longer do."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import sddmm
from sddmm import SparsePattern
from sddmm.backends.base import BACKENDS, Executor
from sddmm.backends.cpu.backend import CpuBackend
from sddmm.backends.selection import forget_choices, select_backend
from sddmm.cache import CACHE, Cache
from sddmm.prepared import MAX_PLANS_PER_PATTERN, plans_of
from sddmm.problem import make_problem
from sddmm.testing import assert_close, random_pattern


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The problems that the CPU backend prepared, in order."""
    calls: list[Any] = []
    prepare = CpuBackend.prepare

    def counting(self: CpuBackend, pattern: SparsePattern, problem: Any, *options: Any) -> Executor:
        calls.append(problem)
        return prepare(self, pattern, problem, *options)

    monkeypatch.setattr(CpuBackend, "prepare", counting)  # results do not tell how often
    return calls


def problem_for(S: SparsePattern, k: int = 4) -> Any:
    return make_problem(S, k=k, dtype=torch.float32)


def sparse(layout: str) -> torch.Tensor:
    S = random_pattern(6, 5, 12)
    values = torch.ones(12)
    if layout == "csr":
        return torch.sparse_csr_tensor(S.major_indices, S.col_indices, values, S.shape)
    indices = torch.stack([S.row_ids, S.col_indices])
    return torch.sparse_coo_tensor(indices, values, S.shape, is_coalesced=True)


@pytest.mark.parametrize(("layout", "plans"), [("csr", 0), ("coo", 1)])
def test_a_second_call_with_the_same_sparse_tensor_prepares_nothing(
    layout: str, plans: int, prepared: list[Any]
) -> None:
    S, a, b = sparse(layout), torch.randn(6, 4), torch.randn(4, 5)
    for _ in range(3):
        sddmm.sddmm(S, a, b, alpha=2.0)
    assert len(prepared) == plans  # CSR indices are read as they are
    for _ in range(3):  # neither multiplies the samples by S's values
        sddmm.sddmm(S, a, b, scale=False)
        sddmm.sampled_addmm(S, a, b)
    assert len(prepared) == 2 * plans
    sddmm.sddmm(S, a.double(), b.double(), scale=False)
    assert len(prepared) == 3 * plans


def test_training_prepares_once(prepared: list[Any]) -> None:
    S, b = sparse("csr"), torch.randn(4, 5)
    for _ in range(3):
        a = torch.randn(6, 4, requires_grad=True)
        sddmm.sddmm(S, a, b).values().sum().backward()
    assert len(prepared) == 1


def test_a_plan_of_a_pattern_serves_training_too(prepared: list[Any]) -> None:
    S = random_pattern(6, 5, 12)
    plan = sddmm.plan(S, k=4, dtype=torch.float32)
    for _ in range(3):
        a = torch.randn(6, 4, requires_grad=True)
        plan.run(a, torch.randn(4, 5)).sum().backward()
        sddmm.sddmm(S, a, torch.randn(4, 5))
    assert len(prepared) == 1


def test_a_pattern_made_of_the_same_indices_is_known_to_calls_and_planned_apart(
    prepared: list[Any],
) -> None:
    S, a, b = random_pattern(6, 5, 12), torch.randn(6, 4), torch.randn(4, 5)
    again = SparsePattern.from_csr(S.major_indices, S.col_indices, S.shape)
    sddmm.sddmm(S, a, b)
    sddmm.sddmm(again, a, b)
    assert len(prepared) == 1
    sddmm.plan(again, k=4, dtype=torch.float32)
    assert len(prepared) == 2


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_indices_changed_in_place_are_planned_anew(layout: str) -> None:
    S, a, b = sparse(layout), torch.randn(6, 4), torch.randn(4, 5)
    sddmm.sddmm(S, a, b)
    cols = S.col_indices() if layout == "csr" else S._indices()[1]
    cols.copy_((cols + 1) % 5)
    torch.testing.assert_close(
        sddmm.sddmm(S, a, b).values(),
        (a @ b)[S.to_sparse_coo()._indices().unbind()]
        if layout == "coo"
        else (a @ b)[SparsePattern.from_csr(S.crow_indices(), cols, S.shape).row_ids, cols],
    )
    cols[3] = 9
    with pytest.raises(ValueError, match=r"col_indices\[3\] is 9"):
        sddmm.sddmm(S, a, b)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("changed", ["rows", "cols"])
def test_numpy_indices_changed_in_place_are_seen(requires_grad: bool, changed: str) -> None:
    """Torch cannot count such changes, so nothing of theirs is kept from call to call."""
    indices = {"rows": np.array([0, 0, 2]), "cols": np.array([0, 1, 1])}
    a, b = torch.randn(3, 4, requires_grad=requires_grad), torch.randn(4, 3)

    def check() -> torch.Tensor:
        values = sddmm.sddmm((indices["rows"], indices["cols"], (3, 3)), a, b)
        where = torch.tensor(indices["rows"]), torch.tensor(indices["cols"])
        torch.testing.assert_close(values, (a @ b)[where])
        return values

    first = check()
    plan = sddmm.plan((indices["rows"], indices["cols"], (3, 3)), k=4, dtype=a.dtype)
    indices[changed][:] = [2, 0, 0]
    assert not torch.equal(check(), first)
    torch.testing.assert_close(plan.run(a, b), first)
    if requires_grad:
        first.sum().backward()
        expected = torch.zeros(3, 4)
        for row, col in ((0, 0), (0, 1), (2, 1)):
            expected[row] += b[:, col]
        torch.testing.assert_close(a.grad, expected)


def test_a_plan_follows_its_pattern_when_that_changes_in_place(prepared: list[Any]) -> None:
    S, a, b = random_pattern(6, 5, 12, layout="coo"), torch.randn(6, 4), torch.randn(4, 5)
    plan = sddmm.plan(S, k=4, dtype=torch.float32, alpha=2.0)
    plan.run(a, b)
    S.col_indices.copy_(S.col_indices.flip(0))
    for _ in range(2):
        torch.testing.assert_close(plan.run(a, b), 2 * (a @ b)[S.row_ids, S.col_indices])
    assert len(prepared) == 2
    S.col_indices[0] = 5
    with pytest.raises(ValueError, match=r"col_indices\[0\] is 5"):
        plan.run(a, b)


def test_freed_index_memory_is_never_mistaken_for_the_old_pattern() -> None:
    a, b = torch.randn(64, 4), torch.randn(4, 64)
    for seed in range(20):  # the allocator hands the same memory out again
        S = random_pattern(64, 64, 1000, seed=seed, layout="coo")
        rows, cols = S.row_ids.clone(), S.col_indices.clone()
        torch.testing.assert_close(sddmm.sddmm((rows, cols, (64, 64)), a, b), (a @ b)[rows, cols])
        del rows, cols


def test_plans_of_a_pattern_and_patterns_are_bounded() -> None:
    S = random_pattern(6, 5, 12)
    for k in range(1, 3 * MAX_PLANS_PER_PATTERN):
        CACHE.get_or_prepare(S, problem_for(S, k))
    assert len(plans_of(S).by_key) == MAX_PLANS_PER_PATTERN
    cache = Cache(max_patterns=3, max_bytes=10**6)
    patterns = [random_pattern(6, 5, 12, seed=seed) for seed in range(5)]
    kept = [cache.of_tensors(pattern) for pattern in patterns]
    assert len(cache) == 3
    again = SparsePattern.from_csr(patterns[4].major_indices, patterns[4].col_indices, (6, 5))
    assert cache.of_tensors(again) is kept[4]
    small = Cache(max_patterns=3, max_bytes=patterns[0].col_indices.nbytes)
    for pattern in patterns:
        small.of_tensors(pattern)
    assert len(small) == 1


def test_a_pattern_that_is_called_often_does_not_push_others_out() -> None:
    first, second = random_pattern(6, 5, 12), random_pattern(6, 5, 12, seed=1)
    cache = Cache(max_bytes=3 * (first.major_indices.nbytes + first.col_indices.nbytes))
    cache.of_tensors(second)
    for _ in range(5):
        cache.of_tensors(first)
    assert len(cache) == 2


def test_the_same_memory_read_as_another_shape_is_another_pattern() -> None:
    rows, cols = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 1])
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    for n in (2, 5):
        values = sddmm.sddmm((rows, cols, (3, n)), a, b[:, :n])
        torch.testing.assert_close(values, (a @ b)[rows, cols])
    values = sddmm.sddmm((rows[:2], cols[:2], (3, 5)), a, b)
    torch.testing.assert_close(values, (a @ b)[rows, cols][:2])


def test_memory_changed_through_an_alias_with_a_counter_of_its_own_is_planned_anew() -> None:
    rows, cols = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 1])
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    sddmm.sddmm((rows, cols, (3, 2)), a, b)
    alias = rows.data
    alias[0] = 2
    values = sddmm.sddmm((alias, cols, (3, 2)), a, b)
    torch.testing.assert_close(values, (a @ b)[rows, cols])


def test_many_threads_may_plan_and_run_at_once() -> None:
    S, a, b = sparse("csr"), torch.randn(6, 4), torch.randn(4, 5)
    expected = sddmm.sddmm(S, a, b).values()
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(50):
            CACHE.clear()
            if not torch.equal(sddmm.sddmm(S, a, b).values(), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_run_fills_out_and_refuses_one_that_does_not_fit() -> None:
    S = random_pattern(6, 5, 12)
    plan = sddmm.plan(S, k=4, dtype=torch.float32, out_dtype=torch.float64, alpha=3.0)
    a, b = torch.randn(6, 4), torch.randn(4, 5)
    out = torch.empty(12, dtype=torch.float64)
    assert plan.run(a, b, out=out) is out
    assert_close(out, S, a, b, alpha=3.0)
    for bad in (
        torch.empty(12),
        torch.empty(11, dtype=torch.float64),
        torch.empty(24).double()[::2],
    ):
        with pytest.raises(ValueError, match="out must be a contiguous float64 tensor"):
            plan.run(a, b, out=bad)
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            pytest.raises(ValueError, match="out must be a contiguous float64 tensor"),
        ):
            plan.run(a, b, out=bad)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.randn(6, 3), torch.randn(3, 5), "made for k=4, a and b have k=3"),
        (torch.randn(6, 4).double(), torch.randn(4, 5).double(), "made for dtype=torch.float32"),
        (torch.randn(2, 6, 4), torch.randn(2, 4, 5), "made for heads=None, a and b have heads=2"),
    ],
)
def test_run_refuses_operands_of_another_problem(a: Any, b: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sddmm.plan(random_pattern(6, 5, 12), k=4, dtype=torch.float32).run(a, b)


def test_a_plan_scales_by_the_values_as_they_are_now() -> None:
    S, a, b = sparse("csr"), torch.randn(6, 4), torch.randn(4, 5)
    plan = sddmm.plan(S, k=4, dtype=torch.float32)
    plain = sddmm.plan(S, k=4, dtype=torch.float32, scale=False)
    S.values().mul_(2)
    torch.testing.assert_close(plan.run(a, b), 2 * plain.run(a, b))


def test_explain_tells_the_choice_and_every_refusal() -> None:
    text = sddmm.plan(random_pattern(6, 5, 12), k=4, dtype=torch.float32, heads=2).explain()
    assert "2 heads of (6x4) @ (4x5) at 12 nonzeros (CSR, int64 indices)" in text
    assert "backend  cpu" in text
    assert "not      cuda: " in text


def test_backends_are_asked_in_order_and_the_last_always_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [backend.name for backend in BACKENDS] == ["cuda", "cpu", "torch_csr", "reference"]
    S = random_pattern(6, 5, 12)
    assert select_backend(problem_for(S))[0].name == "cpu"
    # As where numba is not installed.
    monkeypatch.setattr("sddmm.backends.cpu.backend.find_spec", lambda name: None)
    assert select_backend(problem_for(S))[0].name == "cpu"  # asked once
    forget_choices()
    backend, refusals = select_backend(problem_for(S))
    assert backend.name == "torch_csr"
    assert refusals["cpu"] == "numba is not installed (pip install 'sddmm[cpu]')"
    half = make_problem(S, k=4, dtype=torch.float16)
    backend, refusals = select_backend(half)
    assert backend.name == "reference"
    assert set(refusals) == {"cuda", "cpu", "torch_csr"}


@pytest.mark.parametrize(("value", "serves"), [("1", "torch_csr"), ("0", "cpu")])
def test_another_backend_serves_where_numba_is_told_not_to_compile(
    value: str, serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
    forget_choices()
    assert select_backend(problem_for(random_pattern(6, 5, 12)))[0].name == serves


@pytest.mark.parametrize("use", ["sddmm", "plan"])
def test_a_pattern_is_freed_with_its_last_reference(use: str) -> None:
    """Not by the garbage collector, which does not know how much of a GPU's memory it holds."""
    S = random_pattern(9, 8, 30)
    a, b = torch.randn(9, 4), torch.randn(4, 8)
    gc.disable()
    try:
        if use == "plan":
            sddmm.plan(S, k=4, dtype=a.dtype).run(a, b)
        else:
            sddmm.sddmm(S, a, b)
        gone = weakref.ref(S)
        del S
        CACHE.clear()
        assert gone() is None
    finally:
        gc.enable()
