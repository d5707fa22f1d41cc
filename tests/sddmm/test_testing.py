"""The yardstick itself: it passes what is right and fails what is subtly wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import sddmm
from sddmm.testing import (
    assert_close,
    emulated_gpu,
    magnitude,
    mismatches,
    poisoned_outputs,
    random_pattern,
    reference,
    tolerance,
)

S = random_pattern(40, 30, 300)
A, B = torch.randn(40, 64), torch.randn(64, 30)


def test_the_reference_agrees_with_a_float64_product() -> None:
    expected = (A.double() @ B.double())[S.row_ids, S.col_indices]
    torch.testing.assert_close(reference(S, A, B, alpha=0.5), 0.5 * expected)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_reference_scales_by_the_values(heads: int) -> None:
    weights = torch.randn(300)
    weighted = torch.sparse_csr_tensor(S.major_indices, S.col_indices, weights, (40, 30))
    expected = weights * (A.double() @ B.double())[S.row_ids, S.col_indices]
    got = reference(weighted, A.expand(heads, 40, 64), B.expand(heads, 64, 30))
    torch.testing.assert_close(got, expected.expand(heads, 300))
    torch.testing.assert_close(reference(weighted, A, B, scale=False) * weights, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_missing_last_product_a_swap_and_a_nan_are_each_caught(dtype: torch.dtype) -> None:
    a, b = A.to(dtype), B.to(dtype)
    right = sddmm.sddmm(S, a, b)
    assert_close(right, S, a, b)
    short = sddmm.sddmm(S, a[:, :-1], b[:-1])
    swapped = right.clone()
    least, most = int(right.argmin()), int(right.argmax())
    swapped[[least, most]] = right[[most, least]]
    unwritten = right.clone()
    unwritten[-1] = torch.nan
    for wrong in (short, swapped, unwritten):
        with pytest.raises(AssertionError, match="values are wrong, first at"):
            assert_close(wrong, S, a, b)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(right[:-1], S, a, b)


def test_values_of_a_coarser_precision_pass_at_that_precision_only() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        """To the 10 bits of TF32."""
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    values = sddmm.sddmm(S, rounded(A), rounded(B))
    assert_close(values, S, A, B, precision="tf32")
    with pytest.raises(AssertionError, match="are wrong"):
        assert_close(values, S, A, B)


def test_tolerance_grows_with_k_and_shrinks_with_the_accumulator() -> None:
    assert tolerance(torch.float16, 64) == tolerance(torch.float32, 64)
    assert tolerance(torch.float64, 64) < 1e-13 < tolerance(torch.float32, 64) < 5e-6
    assert tolerance(torch.float32, 64) < tolerance(torch.float32, 65)
    assert tolerance(torch.float32, 64, precision="tf32") > 5e-4


def test_overflow_of_the_result_type_is_right_rounding() -> None:
    truth = torch.tensor([1e6, 1e6, -1e6, torch.nan], dtype=torch.float64)
    values = torch.tensor([torch.inf, 60000.0, -torch.inf, torch.nan], dtype=torch.float16)
    assert mismatches(values, truth, torch.full((4,), 500.0)).tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_poisoned_outputs_make_unwritten_memory_nan() -> None:
    with poisoned_outputs():
        assert torch.empty(3).isnan().all()
        assert torch.empty_like(A).isnan().all()
        assert torch.empty(3, dtype=torch.int64).shape == (3,)


def test_random_patterns_are_what_was_asked_for() -> None:
    shuffled = random_pattern(20, 10, 200, layout="coo", shuffled=True)
    assert not (shuffled.row_ids.diff() >= 0).all()
    flat = shuffled.row_ids * 10 + shuffled.col_indices
    assert flat.sort().values.tolist() == list(range(200))
    with pytest.raises(ValueError, match=r"nnz must lie in 0\.\.m\*n = 6"):
        random_pattern(2, 3, 7)
    with pytest.raises(ValueError, match="layout must be"):
        random_pattern(2, 3, 4, layout="csc")


def test_subnormal_halves_are_allowed_the_error_of_the_smallest_normal_number() -> None:
    least = torch.finfo(torch.float16).smallest_normal
    normal, subnormal = (torch.full((40, 2), x, dtype=torch.float16) for x in (least, least / 32))
    b = torch.ones(2, 30, dtype=torch.float16)
    assert torch.equal(magnitude(S, subnormal, b), magnitude(S, normal, b))
    assert not magnitude(S, torch.zeros_like(normal), b).any()
    assert torch.equal(magnitude(S, subnormal.float(), b.float()) * 32, magnitude(S, normal, b))


def test_an_emulated_gpu_plans_and_computes_patterns_of_the_cpu() -> None:
    S, a, b = random_pattern(40, 30, 200), torch.randn(40, 24), torch.randn(24, 30)
    with emulated_gpu():
        plan = sddmm.plan(S, k=24, dtype=a.dtype, kernel="row_gather")
        assert plan.backend == "cuda"
        assert_close(plan.run(a, b), S, a, b)
    assert sddmm.plan(S.clone(), k=24, dtype=a.dtype).backend == "cpu"


def test_a_pattern_has_other_plans_within_an_emulated_gpu() -> None:
    S, a, b = random_pattern(40, 30, 200), torch.randn(40, 24), torch.randn(24, 30)
    for _ in range(2):
        assert sddmm.plan(S, k=24, dtype=a.dtype).backend == "cpu"
        sddmm.sddmm(S, a, b)
        with emulated_gpu() as launches:
            assert sddmm.plan(S, k=24, dtype=a.dtype).backend == "cuda"
            sddmm.sddmm(S, a, b)
        assert "row_gather" in launches


def test_a_plan_of_an_emulated_gpu_runs_there_alone() -> None:
    S, a, b = random_pattern(40, 30, 200), torch.randn(40, 24), torch.randn(24, 30)
    with emulated_gpu():
        plan = sddmm.plan(S, k=24, dtype=a.dtype)
        plan.run(a, b)
    for operand in (a, a.clone()):
        with pytest.raises(RuntimeError, match=r"run it within emulated_gpu\(\)"):
            plan.run(operand, b)
    with emulated_gpu():
        assert_close(plan.run(a, b), S, a, b)


def test_one_thread_at_a_time_is_in_emulated_gpu() -> None:
    def enter() -> bool:
        with emulated_gpu():
            return True

    with ThreadPoolExecutor(1) as other:
        with emulated_gpu():
            with pytest.raises(RuntimeError, match="another thread is in an emulated_gpu block"):
                other.submit(enter).result()
            assert enter()  # blocks of one thread nest
        assert other.submit(enter).result()
    assert sddmm.plan(random_pattern(4, 3, 2), k=2, dtype=torch.float32).backend == "cpu"


def test_an_emulated_gpu_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"device must be a Device.*got 'H200'"):
        emulated_gpu("H200").__enter__()  # type: ignore[arg-type]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"emulated_gpu: g\+\+, which compiles"), emulated_gpu():
        pass
