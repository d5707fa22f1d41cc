"""Random cases of tests/fuzz, with fixed seeds; those that failed once, by name."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
import torch
from torch import Tensor

from sddmm.backends.base import Executor
from sddmm.prepared import FirstRun, PreparedPlan
from tests.fuzz.case import CHANGES, DENSITIES, ENTRIES, KINDS, SPECIALS, STRIDES, Case, draw
from tests.fuzz.run import run
from tests.fuzz.workers import Source, run_all

SEED, CHUNKS, PER_CHUNK = 13, 14, 30

FAILED_ONCE = {
    "an operand that torch negates when it is read": Case(
        strides_a="negated", strides_b="negated"
    ),
    "int32 indices with gaps between them, and a gradient": Case(
        m=1, n=14, k=7, heads=3, index_dtype="int32", filled=0.3, index_strides=2, gradients="ab",
        entry="plan",
    ),
    "int32 indices with gaps between them, by torch_csr": Case(
        m=33, n=140, k=7, kind="pattern_csr", index_dtype="int32", index_strides=2, entry="plan",
        backend="torch_csr",
    ),
    "more nonzeros than positions, by torch_csr": Case(
        duplicates="more_than_mn", density="full", entry="plan", backend="torch_csr"
    ),
    "S's values and a narrow result, by torch_csr": Case(
        seed=7, m=60, n=60, k=20, dtype="float64", out_dtype="float32", kind="scipy_csr",
        filled=0.6, alpha=0.5, backend="torch_csr", entry="plan",
    ),
    "a CSR tensor of unsorted columns, and gradients": Case(
        m=33, n=40, k=7, kind="torch_csr", order="columns", filled=0.3, gradients="ab"
    ),
    "a CSR tensor with duplicates, and gradients": Case(
        m=33, n=40, k=7, kind="torch_csr", duplicates="some", filled=0.3, gradients="abv"
    ),
    "a buffer refilled unseen under torch COO": Case(
        m=40, n=30, filled=0.3, kind="torch_coo", entry="op", change="refill"
    ),
    "a buffer refilled unseen under torch CSR, and a gradient": Case(
        m=33, n=10, k=12, kind="torch_csr", density="column", gradients="abv", change="refill"
    ),
    "a CSR tensor whose original indices change": Case(
        m=40, n=30, filled=0.3, kind="torch_csr", change="original"
    ),
    "indices given other memory": Case(m=40, n=30, filled=0.3, kind="pattern_csr", change="data"),
    "an index out of range after the first call": Case(
        m=40, n=30, filled=0.3, kind="tuple", change="out_of_range"
    ),
    "a deep copy, the original changed since": Case(
        m=40, n=30, filled=0.3, gradients="b", again="deepcopy"
    ),
    "a plan pickled after use": Case(m=40, n=30, filled=0.3, entry="plan", again="pickle"),
    "attention of subnormal numbers": Case(
        seed=1287455424, m=2500, n=1, k=129, dtype="float64", kind="scipy_csr", order="columns",
        filled=0.03, duplicates="some", special="subnormal", entry="attention",
    ),
    "alpha beyond half precision, and gradients": Case(
        m=40, n=30, filled=0.3, dtype="float16", alpha=1e6, out_dtype="float32", gradients="abv",
        kind="torch_csr",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_what_failed_once_is_right(case: Case) -> None:
    outcome = run(case)
    assert not outcome.failed, f"{outcome.kind}: {outcome.text}"


FAILED_ONCE_ON_A_GPU = {
    "a half gradient of b, long sums of large numbers": Case(
        seed=365441228, device="cuda", m=2893, n=2147, k=65, dtype="float16", kind="pattern_csr",
        order="columns", density="column", filled=0.002, max_nnz=300000, strides_a="negated",
        special="large", gradients="ab",
    ),
    "a half gradient of a, long sums of large numbers": Case(
        seed=1346792530, device="cuda", m=63, n=245, k=128, dtype="float16", kind="torch_coo",
        index_dtype="int64", density="full", filled=0.6, scale=False, special="large",
        gradients="a", change="fresh",
    ),
    "subnormal halves, which a tensor core does not normalize": Case(
        seed=1970493158, device="cuda", m=3315, n=1087, k=2, heads=3, dtype="float16",
        out_dtype="float32", kind="pattern_csr", filled=0.03, max_nnz=300000, index_strides=3,
        strides_b="transposed", alpha=1e6, special="wide",
    ),
    "spmm of every second value": Case(
        device="cuda", m=16, n=359, k=64, filled=0.1, value_strides=2, entry="spmm",
    ),
    "spmm of every third value, transposed, and gradients": Case(
        device="cuda", m=40, n=30, k=31, heads=3, dtype="float64", filled=0.1, value_strides=3,
        entry="spmm", transpose=True, gradients="av",
    ),
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("case", FAILED_ONCE_ON_A_GPU.values(), ids=FAILED_ONCE_ON_A_GPU)
def test_what_failed_once_on_a_gpu_is_right(case: Case) -> None:
    outcome = run(case)
    assert not outcome.failed, f"{outcome.kind}: {outcome.text}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_cases_are_right_or_refused_in_words(chunk: int) -> None:
    """And four in five are served: a package that refuses all would be right too."""
    failures, kinds = [], Counter[str]()
    for number in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        case = draw(SEED, number)
        outcome = run(case)
        kinds[outcome.kind] += 1
        if outcome.failed:
            failures.append(f"{outcome.kind}: {outcome.text}\n  seed {SEED}, {number}: {case}")
    assert not failures, "\n".join(failures)
    assert kinds["ok"] >= 0.75 * PER_CHUNK, kinds


def test_the_cases_are_of_every_kind() -> None:
    cases = [draw(SEED, number) for number in range(CHUNKS * PER_CHUNK)]
    for field, options in (
        ("kind", KINDS), ("density", DENSITIES), ("strides_a", STRIDES), ("strides_b", STRIDES),
        ("special", SPECIALS), ("entry", ENTRIES), ("change", CHANGES), ("heads", (0, 1, 3)),
        ("index_dtype", ("int32", "int64")), ("precision", ("ieee", "tf32", "tf32x3")),
        ("again", ("repeat", "copy", "deepcopy", "pickle")), ("gradients", ("ab", "abv")),
        ("duplicates", ("none", "some", "one_position", "more_than_mn")),
    ):  # fmt: skip
        drawn = Counter(getattr(case, field) for case in cases)
        assert all(drawn[option] >= 3 for option in options), (field, drawn)


@pytest.mark.parametrize("fault", ["a value", "a sign", "a NaN", "an old result"])
def test_a_fault_of_the_package_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, result = PreparedPlan.compute, FirstRun.result
    first: dict[tuple[object, ...], Tensor] = {}

    def spoiled(values: Tensor, address: int = 0) -> Tensor:
        if values.numel() == 0:
            return values
        last = values.view(-1)[-1:]
        if fault == "a value":
            last.mul_(1.02)
        elif fault == "a sign":
            last.neg_()
        elif fault == "a NaN":
            last.fill_(torch.nan)
        else:
            return first.setdefault((values.shape, values.dtype, address), values).clone()
        return values

    def faulty(self: PreparedPlan, a: Tensor, b: Tensor, *rest: object) -> Tensor:
        return spoiled(compute(self, a, b, *rest), a.data_ptr())  # type: ignore[arg-type]

    def faulty_first(self: FirstRun, execute: Executor) -> Tensor:
        return spoiled(result(self, execute))

    # Every call computes its values in one of these, and the fuzzer must see that they are wrong.
    monkeypatch.setattr(PreparedPlan, "compute", faulty)
    monkeypatch.setattr(FirstRun, "result", faulty_first)
    outcomes = [run(draw(SEED, number)) for number in range(30)]
    assert sum(outcome.kind == "wrong" for outcome in outcomes) >= (1 if "old" in fault else 5)


class Deadly(Source):
    """A source whose second case kills its process."""

    def case(self, number: int) -> Case:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Case(seed=number)


def test_a_crash_is_one_failing_case_and_not_the_end() -> None:
    done = dict(run_all(Deadly(0, "cpu"), range(4), workers=1, seconds=1e9))
    assert [done[number].kind for number in range(4)] == ["ok", "crash", "ok", "ok"]
    assert done[1].text == "the process ended with -9"
