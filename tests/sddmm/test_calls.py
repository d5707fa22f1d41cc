"""The first call on a pattern is planned for a single run, all further ones for many."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

import sddmm
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.single_run import SingleRun
from sddmm.testing import assert_close, random_pattern
from tests.cases import cases

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

M, N, K, NNZ = 40, 30, 16, 300


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many runs each plan was prepared; results do not tell."""
    calls: list[int] = []
    prepare = CudaBackend.prepare

    def counting(
        self: CudaBackend, pattern: Any, problem: Any, kernel: str | None, number: int, *rest: Any
    ) -> Any:
        calls.append(number)
        return prepare(self, pattern, problem, kernel, number, *rest)

    run_once = SingleRun.__call__

    def counting_once(self: SingleRun[Any], pattern: Any, run: Any) -> bool:
        is_done = run_once(self, pattern, run)
        calls.extend([1] * is_done)
        return is_done

    monkeypatch.setattr(CudaBackend, "prepare", counting)
    monkeypatch.setattr(SingleRun, "__call__", counting_once)
    return calls


def inputs(kind: str = "pattern", seed: int = 0) -> Any:
    """An S whose nonzeros are unsorted where its kind allows."""
    S = random_pattern(M, N, NNZ, layout="coo", shuffled=True, seed=seed)
    if kind == "pattern":
        return S
    if kind == "tuple":
        return S.row_ids, S.col_indices, S.shape
    if kind == "coo":
        return torch.sparse_coo_tensor(torch.stack([S.row_ids, S.col_indices]), torch.ones(NNZ))
    csr = random_pattern(M, N, NNZ, seed=seed)
    return torch.sparse_csr_tensor(csr.major_indices, csr.col_indices, torch.ones(NNZ), (M, N))


def operands(k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(M, k), torch.randn(k, N)


@pytest.mark.parametrize("kind", ["pattern", "tuple", "csr", "coo"])
def test_the_second_call_prepares_for_many(kind: str, prepared: list[int]) -> None:
    S = inputs(kind)
    for number in range(1, 5):
        a, b = operands()
        result = sddmm.sddmm(S, a, b)
        if kind == "csr":
            result = result.values()
        elif kind == "coo":
            result = result._values()
        assert_close(result, S, a, b)
        assert prepared == [1, MANY_CALLS][:number]


def test_calls_of_other_sizes_count_apart(prepared: list[int]) -> None:
    S = inputs()
    for k in (K, 2 * K, K, 2 * K, K):
        sddmm.sddmm(S, *operands(k))
    assert prepared == [1, 1, MANY_CALLS, MANY_CALLS]


def test_indices_that_change_are_new(prepared: list[int]) -> None:
    S = inputs()
    a, b = operands()
    for _ in range(3):
        sddmm.sddmm(S, a, b)
    S.col_indices.copy_(S.col_indices.flip(0))
    for _ in range(3):
        assert_close(sddmm.sddmm(S, a, b), S, a, b)
    assert prepared == [1, MANY_CALLS] * 2


def test_a_plan_counts_as_the_calls_that_it_was_made_for(prepared: list[int]) -> None:
    S = inputs()
    sddmm.plan(S, k=K, dtype=torch.float32)
    sddmm.sddmm(S, *operands())
    assert prepared == [MANY_CALLS]
    S = inputs(seed=1)
    plan = sddmm.plan(S, k=K, dtype=torch.float32, calls=1)
    plan.run(*operands())
    sddmm.sddmm(S, *operands())
    assert prepared == [MANY_CALLS, 1], "the first call has the same plan"
    sddmm.sddmm(S, *operands())
    assert prepared == [MANY_CALLS, 1, MANY_CALLS]


def test_deterministic_algorithms_pin_one_way(prepared: list[int]) -> None:
    S = inputs()
    a, b = operands()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (sddmm.sddmm(S, a, b) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert prepared == [MANY_CALLS]
    assert torch.equal(first, second)


def test_numpy_indices_are_prepared_for_one_run_each_time(prepared: list[int]) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    S = scipy_sparse.random(M, N, 0.3, format="csr", dtype="float32")
    for _ in range(3):
        sddmm.sddmm(S, *operands())
    assert prepared == [1, 1, 1]


@pytest.mark.parametrize("kind", ["pattern", "csr"])
def test_the_products_of_one_training_step_count_as_one_call(
    kind: str, prepared: list[int]
) -> None:
    S = inputs(kind)
    for step in range(3):
        a, b = (x.requires_grad_() for x in operands())
        result = sddmm.sddmm(S, a, b)
        (result if kind == "pattern" else result.values()).sum().backward()
        assert prepared == [1, MANY_CALLS][: step + 1]


def test_the_gradient_of_values_is_computed_as_the_call_was(prepared: list[int]) -> None:
    pattern = random_pattern(M, N, NNZ)
    values = torch.ones(NNZ, requires_grad=True)
    for step in range(3):
        S = pattern.to_torch(values)
        a, b = operands()
        sddmm.sddmm(S, a, b).values().sum().backward()
        assert prepared == [1] * (step + 1), "S is another tensor in every step"


def test_the_operator_counts_its_calls_too(prepared: list[int]) -> None:
    S = inputs()
    for number in range(1, 4):
        a, b = operands()
        torch.ops.sddmm.sddmm(S.row_ids, S.col_indices, a, b, None)
        assert prepared == [1, MANY_CALLS][:number]


def test_ever_new_patterns_are_never_prepared_for_many_and_not_kept(prepared: list[int]) -> None:
    for kind in ("tuple", "csr"):
        for seed in range(40):
            sddmm.sddmm(inputs(kind, seed), *operands())
        assert sddmm.cache_info().patterns <= 1
    assert set(prepared) == {1}


FIRST_CALLS = [
    (case, index_dtype, dtype)
    for case in ("plain", "heads", "strided", "unaligned", "narrow", "wide")
    for index_dtype in (torch.int32, torch.int64)
    for dtype in (torch.float16, torch.float32, torch.float64)
]
# Half of them, with every pair of two properties.
HERE = [call for i, call in enumerate(FIRST_CALLS) if (i + i // 6) % 2 == 0]


@pytest.mark.parametrize(("case", "index_dtype", "dtype"), cases(FIRST_CALLS, here=HERE))
def test_a_first_call_of_any_operands(
    case: str, index_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    """With values of S and alpha, for CSR; operands that are read as they are, and others."""
    k = {"narrow": 1, "wide": 300, "unaligned": 17}.get(case, K)
    lead = (3,) if case == "heads" else ()
    a, b = torch.randn(*lead, M, k).to(dtype), torch.randn(*lead, N, k).to(dtype).mT
    if case == "strided":
        a, b = a.mT.contiguous().mT, b.contiguous()
    for layout in ("coo", "csr"):
        S = random_pattern(M, N, NNZ, layout=layout, index_dtype=index_dtype)
        assert_close(sddmm.sddmm(S, a, b, alpha=2.0), S, a, b, alpha=2.0)
    values = torch.randn(NNZ).to(dtype)
    for stored in (values, torch.stack([values, values], 1)[:, 0]):
        crow, cols = S.major_indices, S.col_indices
        matrix = torch.sparse_csr_tensor(crow, cols, stored, (M, N))
        result = sddmm.sddmm(matrix, a, b, alpha=2.0)
        got = result if case == "heads" else result.values()
        assert_close(got, matrix, a, b, alpha=2.0)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_a_first_call_reads_no_operand_at_an_index_out_of_range(
    layout: str, index_dtype: torch.dtype
) -> None:
    """Its kernel is launched before the host knows; a read out of range would crash here."""
    S = random_pattern(M, N, NNZ, layout=layout, index_dtype=index_dtype)
    S.col_indices[NNZ // 2] = 2**30
    for _ in range(3):
        with pytest.raises(ValueError, match=rf"col_indices\[{NNZ // 2}\] is {2**30}"):
            sddmm.sddmm(S, *operands())
    S.col_indices[NNZ // 2] = 0
    a, b = operands()
    assert_close(sddmm.sddmm(S, a, b), S, a, b)


def test_a_capture_runs_what_was_prepared_before_it(
    prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    S = inputs()
    a, b = operands()
    sddmm.sddmm(S, a, b)
    with monkeypatch.context() as capture:
        for module in ("cache", "prepared"):
            capture.setattr(f"sddmm.{module}.is_capturing", lambda device: True)
        captured = sddmm.sddmm(S, a, b)
        with pytest.raises(RuntimeError, match="call it once before the capture"):
            sddmm.sddmm(inputs(seed=1), a, b)
    assert_close(captured, S, a, b)
    assert prepared == [1]
    sddmm.sddmm(S, a, b)
    assert prepared == [1, MANY_CALLS]


@pytest.mark.parametrize(
    ("calls", "error"), [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_number_of_calls_that_is_none_is_refused(calls: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="calls must be an integer >= 1, got"):
        sddmm.plan(inputs(), k=K, dtype=torch.float32, calls=calls)


def test_more_calls_than_the_operator_counts_are_refused_before_a_gradient_needs_it() -> None:
    """And the most that it counts are planned for, with a gradient too."""
    S, (a, b) = inputs(), operands()
    with pytest.raises(ValueError, match=r"calls must be below 2\*\*63"):
        sddmm.plan(S, k=K, dtype=torch.float32, calls=2**63)
    most = sddmm.plan(S, k=K, dtype=torch.float32, calls=2**63 - 1)
    most.run(a.requires_grad_(), b).sum().backward()
    assert a.grad is not None


def test_a_plan_says_and_keeps_what_it_was_prepared_for(prepared: list[int]) -> None:
    S = inputs()
    plan = sddmm.plan(S, k=K, dtype=torch.float32, calls=1)
    assert "for a single run" in plan.explain()
    assert "for a single run" in pickle.loads(pickle.dumps(plan)).explain()
    S.col_indices.copy_(S.col_indices.flip(0))
    a, b = operands()
    assert_close(plan.run(a, b), S, a, b)
    assert prepared == [1, 1, 1]
    assert f"for {MANY_CALLS} runs" in sddmm.plan(S, k=K, dtype=torch.float32).explain()


def test_operands_that_require_grad_keep_the_way_of_a_plan(prepared: list[int]) -> None:
    plan = sddmm.plan(inputs(), k=K, dtype=torch.float32, calls=1)
    for _ in range(2):
        a, b = (x.requires_grad_() for x in operands())
        plan.run(a, b).sum().backward()
    assert prepared == [1]


_PROGRAM = """
import hashlib, torch, sddmm
from sddmm.testing import emulated_gpu, random_pattern
torch.manual_seed(0)
digest = hashlib.sha256()
with emulated_gpu():
    for seed in (0, 1, 0):
        S = random_pattern(40, 30, 300, layout="coo", shuffled=True, seed=seed)
        a, b = torch.randn(40, 16).half(), torch.randn(16, 30).half()
        for _ in range(3):
            digest.update(sddmm.sddmm(S, a, b, out_dtype=torch.float32).numpy().tobytes())
print(digest.hexdigest())
"""


def test_the_same_program_gives_the_same_bits() -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert len(first.strip()) == 64
    assert first == second
